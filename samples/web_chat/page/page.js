// The page of the chat. What comes from the backend is put in as text (`textContent`), never as markup.

const $ = (id) => document.getElementById(id);
const [log, form, text, send, stop, status, welcome] = ["log", "form", "text", "send", "stop", "status", "welcome"].map($);
const scroller = document.querySelector("main");

const STATES = { running: "runs", success: "done", denied: "not done", suspended: "waits for you", interrupted: "stopped" };
const ENDS = {
  interrupted: "You stopped the answer.",
  limited: "The answer was ended: it took too many steps.",
  shutdown: "The server restarts. The answer goes on in a moment.",
};

let items = new Map(); // list items by the id of what they show
let open = null; // the reply that is being said
let busy = false; // a call runs, here or in another tab
let asked = 0; // how many questions wait

// ---- showing

function element(tag, name, content) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (content !== undefined) made.textContent = content;
  return made;
}

function add(name, id) {
  const item = log.appendChild(element("li", name));
  if (id !== undefined) items.set(id, item);
  welcome.hidden = true;
  return item;
}

function bubble(name, id) {
  const item = add(name, id);
  const made = item.appendChild(element("div", "bubble"));
  made.dir = "auto";
  return item;
}

function note(content, bad) {
  add(bad ? "note bad" : "note").textContent = content;
}

const show = {
  user: ({ id, text }) => {
    bubble("user", `user ${id}`).firstChild.textContent = text;
  },
  words: ({ text, restart }) => {
    open ??= bubble("reply open");
    if (restart) open.firstChild.textContent = "";
    open.firstChild.append(text);
  },
  reply: ({ id, text }) => {
    const item = items.get(`reply ${id}`) ?? open ?? bubble("reply");
    items.set(`reply ${id}`, item);
    if (item.firstChild.textContent !== text) item.firstChild.textContent = text;
    close();
  },
  tool: ({ id, label, state }) => {
    close();
    let item = items.get(`tool ${id}`);
    if (!item) {
      item = add("tool", `tool ${id}`);
      item.append(element("span", "mark"), element("bdi"), element("span", "unseen"));
      item.firstChild.ariaHidden = "true";
    }
    item.dataset.state = state;
    item.children[1].textContent = state === "running" ? `${label}…` : label;
    item.children[2].textContent = STATES[state] ?? "failed";
  },
  end: ({ outcome, id, text, reference, questions }) => {
    if (text && outcome !== "interrupted") show.reply({ id, text });
    close();
    if (outcome === "failed") note(`Something went wrong. If you write to us, say ${reference}.`, true);
    else if (ENDS[outcome]) note(ENDS[outcome]);
    ask(questions ?? []);
  },
};

function close() {
  open?.classList.remove("open");
  open = null;
}

function ask(questions) {
  asked = questions.length;
  const decisions = Object.create(null); // any id is a plain key here, `__proto__` too
  for (const { id, question } of questions) {
    const item = add("ask");
    item.tabIndex = -1;
    const label = item.appendChild(element("p", "", question));
    label.id = `question-${items.size}-${log.childElementCount}`;
    const row = item.appendChild(element("div"));
    row.role = "group";
    row.setAttribute("aria-labelledby", label.id);
    for (const [yes, word] of [[true, "Yes"], [false, "No"]]) {
      const button = row.appendChild(element("button", yes ? "yes" : "no", word));
      button.type = "button";
      button.ariaPressed = "false";
      button.onclick = () => {
        decisions[id] = yes;
        for (const one of row.children) one.ariaPressed = String(one === button);
        if (Object.keys(decisions).length === questions.length) goOn(decisions);
      };
    }
  }
  // The question has the focus, and no button of it: an Enter that was meant for something else decides nothing.
  if (asked && !document.activeElement?.value) log.querySelector(".ask")?.focus();
  settle();
}

function settle() {
  log.ariaBusy = String(busy);
  stop.hidden = !busy;
  send.hidden = busy;
  send.disabled = asked > 0 || !text.value.trim();
  text.placeholder = asked ? "Please answer above" : "Write a message";
  const [state, words] = busy ? ["busy", "Answering…"] : asked ? ["asks", "Waits for you"] : ["ready", "Online"];
  status.dataset.state = state;
  status.textContent = words;
}

function follow(change) {
  const near = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
  change();
  if (near) scroller.scrollTop = scroller.scrollHeight;
}

// ---- asking the backend

function post(path, data) {
  return fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(data) });
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (left + value).split("\n\n");
    left = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
  }
}

// Begin or go on, and show what happens; false if the backend has refused.
async function call(path, data) {
  busy = true;
  settle();
  let ended = null;
  try {
    const response = await post(path, data);
    if (response.status === 409) {
      await reload("This conversation goes on in another tab.");
      return false;
    }
    if (!response.ok) throw new Error(String(response.status));
    for await (const event of events(response)) {
      if (event.type === "end") [ended, busy] = [event.outcome, false];
      follow(() => show[event.type]?.(event));
    }
  } catch {
    // The connection is lost: what is stored is the truth.
  }
  busy = false;
  settle();
  if (ended === null || ended === "shutdown") await reload();
  return true;
}

// Show the conversation as it is stored; wait for the server, and for a call that runs in another tab.
async function reload(said) {
  close();
  busy = true;
  for (let wait = 250; ; wait = Math.min(wait * 2, 4000)) {
    try {
      const response = await fetch("history");
      if (!response.ok) throw new Error(String(response.status));
      const { messages, questions, running, cut } = await response.json();
      log.replaceChildren();
      items = new Map();
      asked = 0;
      for (const message of messages) show[message.type](message);
      welcome.hidden = messages.length > 0;
      scroller.scrollTop = scroller.scrollHeight;
      if (!running) {
        busy = false;
        ask(questions);
        scroller.scrollTop = scroller.scrollHeight;
        if (cut && !questions.length) await goOn({});
        return;
      }
      if (said) note(said);
      settle();
      wait = Math.min(wait, 1000);
    } catch {
      status.dataset.state = "lost";
      status.textContent = "Connection lost. Trying again…";
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

async function goOn(decisions) {
  for (const item of log.querySelectorAll(".ask")) item.remove();
  asked = 0;
  text.focus();
  await call("go-on", { decisions });
}

async function say(words) {
  if (busy || asked || !words.trim()) return;
  follow(() => show.user({ id: `new ${items.size}`, text: words }));
  scroller.scrollTop = scroller.scrollHeight;
  text.value = "";
  if (!(await call("chat", { text: words }))) text.value ||= words; // refused: nothing is lost
  settle();
}

form.onsubmit = (event) => {
  event.preventDefault();
  say(text.value);
};
text.oninput = settle;
text.onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) form.onsubmit(event);
};
document.onkeydown = (event) => {
  if (event.key === "Escape" && busy) stop.click();
};
stop.onclick = () => {
  post("stop", {}).catch(() => {});
  text.focus();
};
for (const idea of welcome.querySelectorAll("button")) idea.onclick = () => say(idea.textContent);
document.onvisibilitychange = () => {
  if (!document.hidden && !busy) reload(); // another tab may have gone on
};

reload();
