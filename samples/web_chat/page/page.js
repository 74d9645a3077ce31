// The page of the chat. The backend's data is inserted as text (`textContent`), never as markup.

/** @typedef {{ id: string, question: string }} Question */

const $ = (/** @type {string} */ selector) => /** @type {HTMLElement} */ (document.querySelector(selector));
const [log, form, stop, status, welcome, scroller] = ["#log", "#form", "#stop", "#status", "#welcome", "main"].map($);
const text = /** @type {HTMLTextAreaElement} */ ($("#text"));
const send = /** @type {HTMLButtonElement} */ ($("#send"));

/** @type {Record<string, string>} */
const STATES = { running: "running", success: "done", denied: "not done", suspended: "waiting for you", interrupted: "stopped" };
/** @type {Record<string, string>} */
const ENDS = {
  interrupted: "You stopped the answer.",
  limited: "The answer stopped: it took too many steps.",
  shutdown: "The server is restarting. The answer will continue in a moment.",
};

/** @type {Map<string, HTMLElement>} */
let items = new Map(); // list items by the id of their content
/** @type {HTMLElement | null} */
let open = null; // the reply that is being streamed
let busy = false; // a call is running, here or in another tab
let asked = 0; // the number of open questions

// ---- showing

/**
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {string} [name] its class
 * @param {string} [content]
 */
function element(tag, name, content) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (content !== undefined) made.textContent = content;
  return made;
}

/** @param {string} name @param {string} [id] */
function add(name, id) {
  const item = log.appendChild(element("li", name));
  if (id !== undefined) items.set(id, item);
  welcome.hidden = true;
  return item;
}

/** @param {string} name @param {string} [id] */
function bubble(name, id) {
  const item = add(name, id);
  item.appendChild(element("div", "bubble")).dir = "auto";
  return item;
}

const inside = (/** @type {HTMLElement} */ item) => /** @type {HTMLElement} */ (item.firstElementChild);

/** @param {string} content @param {boolean} [bad] */
function note(content, bad) {
  add(bad ? "note bad" : "note").textContent = content;
}

/** @type {Record<string, (event: any) => void>} by the type of the backend's event */
const show = {
  user: ({ id, text }) => {
    inside(bubble("user", `user ${id}`)).textContent = text;
  },
  text: ({ text, restart }) => {
    open ??= bubble("reply open");
    if (restart) inside(open).textContent = "";
    inside(open).append(text);
  },
  reply: ({ id, text }) => {
    const item = items.get(`reply ${id}`) ?? open ?? bubble("reply");
    items.set(`reply ${id}`, item);
    if (inside(item).textContent !== text) inside(item).textContent = text;
    close();
  },
  tool: ({ id, label, state }) => {
    close();
    let item = items.get(`tool ${id}`);
    if (!item) {
      item = add("tool", `tool ${id}`);
      item.append(element("span", "mark"), element("bdi"), element("span", "unseen"));
      inside(item).ariaHidden = "true";
    }
    item.dataset.state = state;
    item.children[1].textContent = state === "running" ? `${label}…` : label;
    item.children[2].textContent = STATES[state] ?? "failed";
  },
  end: ({ outcome, id, text, reference, questions }) => {
    if (text && outcome !== "interrupted") show.reply({ id, text });
    close();
    if (outcome === "failed") note(`Something went wrong. If you write to us, quote ${reference}.`, true);
    else if (ENDS[outcome]) note(ENDS[outcome]);
    ask(questions ?? []);
  },
};

function close() {
  open?.classList.remove("open");
  open = null;
}

/** @param {Question[]} questions */
function ask(questions) {
  asked = questions.length;
  /** @type {Record<string, boolean>} */
  const decisions = Object.create(null); // any id is a plain key here, `__proto__` too
  for (const { id, question } of questions) {
    const item = add("ask");
    item.tabIndex = -1;
    const label = item.appendChild(element("p", "", question));
    label.id = `question-${items.size}-${log.childElementCount}`;
    const row = item.appendChild(element("div"));
    row.role = "group";
    row.setAttribute("aria-labelledby", label.id);
    for (const yes of [true, false]) {
      const button = row.appendChild(element("button", yes ? "yes" : "no", yes ? "Yes" : "No"));
      button.type = "button";
      button.ariaPressed = "false";
      button.onclick = () => {
        decisions[id] = yes;
        for (const one of row.children) one.ariaPressed = String(one === button);
        if (Object.keys(decisions).length === questions.length) resume(decisions);
      };
    }
  }
  // The question has the focus, not its buttons, so that a stray Enter decides nothing.
  const writes = document.activeElement === text && text.value;
  if (asked && !writes) /** @type {HTMLElement | null} */ (log.querySelector(".ask"))?.focus();
  settle();
}

function settle() {
  log.ariaBusy = String(busy);
  stop.hidden = !busy;
  send.hidden = busy;
  send.disabled = asked > 0 || !text.value.trim();
  text.placeholder = asked ? "Please answer above" : "Write a message";
  const [state, label] = busy ? ["busy", "Answering…"] : asked ? ["asks", "Waiting for you"] : ["ready", "Online"];
  status.dataset.state = state;
  status.textContent = label;
}

/** @param {() => void} change */
function follow(change) {
  const near = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
  change();
  if (near) scroller.scrollTop = scroller.scrollHeight;
}

// ---- requests to the backend

/** @param {string} path @param {object} data */
function post(path, data) {
  return fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(data) });
}

/** @param {Response} response */
async function* events(response) {
  const body = /** @type {ReadableStream<BufferSource>} */ (response.body);
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (left + value).split("\n\n");
    left = lines.pop() ?? "";
    for (const line of lines) if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
  }
}

/**
 * Start or resume a call and show its events; false if the backend refused.
 * @param {string} path
 * @param {object} data
 */
async function call(path, data) {
  busy = true;
  settle();
  let ended = null;
  try {
    const response = await post(path, data);
    if (response.status === 409) {
      await reload("This conversation continues in another tab.");
      return false;
    }
    if (!response.ok) throw new Error(String(response.status));
    for await (const event of events(response)) {
      if (event.type === "end") [ended, busy] = [event.outcome, false];
      follow(() => show[event.type]?.(event));
    }
  } catch {
    // The connection is lost: reload the stored conversation.
  }
  busy = false;
  settle();
  if (ended === null || ended === "shutdown") await reload();
  return true;
}

/**
 * Show the stored conversation; wait for the server, and for a call in another tab.
 * @param {string} [said] shown if there is one
 */
async function reload(said) {
  close();
  busy = true;
  for (let wait = 250; ; wait = Math.min(wait * 2, 4000)) {
    try {
      const response = await fetch("history");
      if (!response.ok) throw new Error(String(response.status));
      const { messages, questions, running, unfinished } = await response.json();
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
        if (unfinished && !questions.length) await resume({});
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

/** @param {Record<string, boolean>} decisions */
async function resume(decisions) {
  for (const item of log.querySelectorAll(".ask")) item.remove();
  asked = 0;
  text.focus();
  await call("resume", { decisions });
}

/** @param {string} message */
async function say(message) {
  if (busy || asked || !message.trim()) return;
  follow(() => show.user({ id: `new ${items.size}`, text: message }));
  scroller.scrollTop = scroller.scrollHeight;
  text.value = "";
  if (!(await call("chat", { text: message }))) text.value ||= message; // refused: keep the message
  settle();
}

/** @param {Event} event */
function submit(event) {
  event.preventDefault();
  say(text.value);
}

form.onsubmit = submit;
text.oninput = settle;
text.onkeydown = (/** @type {KeyboardEvent} */ event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
};
document.onkeydown = (event) => {
  if (event.key === "Escape" && busy) stop.click();
};
stop.onclick = () => {
  post("stop", {}).catch(() => {});
  text.focus();
};
for (const idea of welcome.querySelectorAll("button")) idea.onclick = () => say(idea.textContent ?? "");
document.onvisibilitychange = () => {
  if (!document.hidden && !busy) reload(); // another tab may have continued
};

reload();
