// @ts-check
/** The web chat. Texts of users, models and tools become text nodes (`dom.js`, `markdown.js`), never markup. */

import { Api, Refused } from "./api.js";
import { dollars, el, pretty, short, thousands, visible } from "./dom.js";
import { link, showMarkdown } from "./markdown.js";

/** @typedef {{ id: string, kind: string, question?: string, name?: string, label?: string, input?: object }} Question */
/** @typedef {{ id: string, role: string, text: string, thinking?: string, sources?: any[], files?: any[], tools: any[] }} Message */
/** @typedef {{ item: HTMLElement, body: HTMLElement, text: string, thinking: string }} Reply */

const $ = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
const [log, form, stop, status, welcome, scroller, after, side, list] = ["log", "form", "stop", "status", "welcome", "scroll", "after", "side", "sessions"].map($);
const text = /** @type {HTMLTextAreaElement} */ ($("text"));
const chooser = /** @type {HTMLSelectElement} */ ($("agent"));
const [send, retry, more] = /** @type {HTMLButtonElement[]} */ (["send", "retry", "more"].map($));

/** @type {Record<string, string>} */
const STATES = { running: "running", success: "done", denied: "denied", suspended: "waiting for you", interrupted: "stopped", timeout: "timed out" };
/** @type {Record<string, string>} */
const ENDS = { interrupted: "You stopped the answer.", limited: "The answer stopped at a limit.", parked: "The server is restarting. The answer continues in a moment." };
const LISTED = 30;

const api = new Api(() => sessionStorage.getItem("token"));
/** @type {{ name: string, description: string }[]} */
let agents = [];
let agent = "";
let session = ""; // empty: a new conversation
let run = ""; // the run that is followed
let position = ""; // of its last event
let busy = false;
let editing = ""; // the id of the message that is edited
let drawn = ""; // the history that is shown
let view = new AbortController(); // aborted when another conversation is shown
/** @type {Map<string, string>} by session */
const titles = new Map();
/** @type {Map<string, HTMLElement>} list items by the id of their content */
let items = new Map();
/** @type {Reply | null} the reply that is being streamed */
let open = null;
/** @type {Question[]} */
let questions = [];
/** @type {WeakMap<HTMLElement, string>} the text of each reply and user message */
const texts = new WeakMap();

const pathOf = (/** @type {string} */ id) => `agents/${encodeURIComponent(agent)}/sessions/${encodeURIComponent(id)}`;
const addressOf = (/** @type {string} */ id) => `#/${encodeURIComponent(agent)}${id && `/${encodeURIComponent(id)}`}`;
const pause = (/** @type {number} */ ms) => new Promise((resolve) => setTimeout(resolve, ms));

// ---- showing

/** @param {string} kind @param {string} [id] */
function add(kind, id) {
  const item = log.appendChild(el(`li.${kind}`));
  if (id) items.set(id, item);
  welcome.hidden = true;
  return item;
}

/** @param {string} content @param {boolean} [bad] */
const note = (content, bad) => add(bad ? "note.bad" : "note").append(visible(content));

/** @param {Message} message */
function showUser({ id, text: said }) {
  const item = add("user");
  item.dataset.id = id;
  const body = item.appendChild(el("div.bubble", { dir: "auto" }));
  body.append(said);
  texts.set(item, said);
  item.append(el("button.icon.edit", { type: "button", title: "Edit and resend", "aria-label": "Edit and resend", click: () => edit(item) }, icon("M4 20h4L19 9l-4-4L4 16z")));
}

/** @param {string} path */
function icon(path) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  made.setAttribute("viewBox", "0 0 24 24");
  made.ariaHidden = "true";
  made.appendChild(document.createElementNS(made.namespaceURI, "path")).setAttribute("d", path);
  return made;
}

/** @param {string} [id] @returns {Reply} */
function newReply(id) {
  const item = add("reply", id && `reply ${id}`);
  return { item, body: item.appendChild(el("div.text", { dir: "auto" })), text: "", thinking: "" };
}

/** @param {Reply} reply */
function paint(reply) {
  showMarkdown(reply.body, reply.text);
  texts.set(reply.item, reply.text);
  if (!reply.thinking) return;
  let folded = reply.item.querySelector("details.thinking");
  if (!folded) {
    folded = el("details.thinking", null, el("summary", null, "Thinking"), el("div.quiet", { dir: "auto" }));
    reply.item.prepend(folded);
  }
  /** @type {HTMLElement} */ (folded.lastElementChild).textContent = reply.thinking;
}

let painting = false;
function paintSoon() {
  if (painting) return;
  painting = true;
  setTimeout(() => {
    painting = false;
    if (open) keepBottom(() => open && paint(open));
  }, 30);
}

/** @param {HTMLElement} item @param {{ sources?: any[], files?: any[] }} message */
function showMore(item, { sources, files }) {
  for (const old of item.querySelectorAll(".sources, .file")) old.remove();
  for (const { media_type: type, url } of files ?? []) {
    // An image of another server is not loaded: its address could contain what this conversation says.
    if (/^data:image\//.test(url)) item.append(el("img.file", { src: url, alt: "Image" }));
    else if (/^data:/.test(url)) item.append(el("a.file", { href: url, download: "" }, `File (${short(type, 60)})`));
    else item.append(el("p.file", null, ...link(url, `File (${short(type, 60)})`)));
  }
  if (!sources?.length) return;
  const entries = sources.map(({ title, url, quote }) => el("li", { title: quote && short(quote, 500) }, ...link(url ?? "", visible(title || url || short(quote ?? "Source", 80)))));
  item.append(el("details.sources", null, el("summary", null, `Sources (${sources.length})`), el("ol", null, ...entries)));
}

/** @param {boolean} [drop] whether it is shown elsewhere */
function close(drop) {
  if (!open) return;
  open.item.classList.remove("open");
  if (drop || !(open.text || open.thinking)) open.item.remove();
  else paint(open);
  open = null;
}

/** @type {Record<string, (event: any) => void>} by the type of the event */
const show = {
  text({ text: said, restart }) {
    open ??= newReply();
    open.item.classList.add("open");
    open.text = restart ? said : open.text + said;
    paintSoon();
  },
  thinking({ text: said }) {
    open ??= newReply();
    open.thinking += said;
    paintSoon();
  },
  reply({ id, text: said, ...rest }) {
    const known = items.get(`reply ${id}`);
    if (known) return close(true); // events that the history has too
    open ??= newReply();
    const { item } = open;
    items.set(`reply ${id}`, item);
    open.text = said;
    paint(open);
    item.classList.remove("open");
    open = null;
    showMore(item, rest);
  },
  tool(event) {
    const known = items.get(`tool ${event.id}`);
    close(known && !open?.text);
    showTool(known ?? add("tool", `tool ${event.id}`), event);
  },
  tool_output({ id, text: said }) {
    const item = items.get(`tool ${id}`);
    if (item) section(item, "Output").append(visible(said));
  },
  end({ outcome, text: said, questions: asked, usage, reference }) {
    if (["denied", "stopped", "limited"].includes(outcome) && said && said !== lastReply()) {
      open = newReply();
      open.text = said;
    }
    close();
    if (outcome === "failed") note(`Something went wrong. The server's log describes it under ${reference}.`, true);
    else if (ENDS[outcome]) note(ENDS[outcome]);
    const cost = typeof usage?.cost === "number" ? ` · ${dollars(usage.cost)}` : "";
    $("usage").textContent = usage ? `${thousands(usage.input_tokens)} tokens in · ${thousands(usage.output_tokens)} out${cost}` : "";
    ask(asked ?? []);
  },
  gap() {
    drawn = "";
  },
};

/** @param {HTMLElement} item @param {any} tool */
function showTool(item, { name, label, state, input, result }) {
  if (!item.firstElementChild) {
    item.append(el("details", null, el("summary", null, el("span.mark", { "aria-hidden": "true" }), el("bdi"), el("span.state")), el("div.parts")));
  }
  const [, title, word] = /** @type {HTMLElement[]} */ ([...(item.querySelector("summary")?.children ?? [])]);
  item.dataset.state = state;
  title.textContent = short(label ?? name ?? "Tool", 100);
  word.textContent = STATES[state] ?? "failed";
  if (input && Object.keys(input).length) section(item, "Arguments").textContent = visible(pretty(input));
  if (result !== undefined) section(item, "Result").textContent = visible(result);
  item.classList.toggle("plain", !item.querySelector(".parts")?.hasChildNodes());
}

/** @param {HTMLElement} item @param {string} name the text of a tool's part, made if it is new */
function section(item, name) {
  const parts = /** @type {HTMLElement} */ (item.querySelector(".parts"));
  item.classList.remove("plain");
  const found = [...parts.children].find((part) => part.firstElementChild?.textContent === name);
  return /** @type {HTMLElement} */ ((found ?? parts.appendChild(el("section", null, el("h4", null, name), el("pre", { tabindex: 0 })))).lastElementChild);
}

/** The text of the last reply. */
function lastReply() {
  const last = [...log.querySelectorAll("li.reply")].at(-1);
  return (last && texts.get(/** @type {HTMLElement} */ (last))) ?? "";
}

/** Make a change; if the end of the conversation was visible, it stays so. @param {() => void} change */
function keepBottom(change) {
  const near = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
  change();
  if (near) scroller.scrollTop = scroller.scrollHeight;
}

// ---- decisions

/** @param {Question[]} asked */
function ask(asked) {
  questions = asked.filter(({ kind }) => kind !== "parked");
  /** @type {Record<string, any>} */
  const decisions = Object.create(null); // any id is a plain key here, `__proto__` too
  for (const question of questions) add("ask").append(...card(question, (decision, item) => {
    decisions[question.id] = decision;
    item.classList.add("decided");
    const next = /** @type {HTMLElement | null} */ (log.querySelector(".ask:not(.decided)"));
    if (next) next.focus();
    else resume(decisions);
  }));
  const first = /** @type {HTMLElement | null} */ (log.querySelector(".ask"));
  // The question has the focus, not its buttons, so that a stray Enter decides nothing.
  if (first && !(document.activeElement === text && text.value)) first.focus();
  settle();
}

/** @param {Question} question @param {(decision: object, item: HTMLElement) => void} decide @returns {Node[]} */
function card({ id, kind, question, name, label, input }, decide) {
  const item = /** @type {HTMLElement} */ (log.lastElementChild);
  item.tabIndex = -1;
  const what = short(label ?? name ?? "this tool", 100);
  const title = el("p.question", { id: `question-${log.childElementCount}` }, question ?? (kind === "external" ? `The result of “${what}” is wanted.` : `Allow “${what}”?`));
  item.setAttribute("role", "group");
  item.setAttribute("aria-labelledby", title.id);
  const problem = el("p.problem", { role: "alert" });
  const field = /** @type {HTMLTextAreaElement} */ (el("textarea", { rows: 3, spellcheck: "false", "aria-label": kind === "external" ? "Result" : "Arguments" }));
  const shown = el("pre", { tabindex: 0 }, pretty(input ?? {}));
  const buttons = el("div.row");
  /** @param {string} kindOf @param {string} word @param {() => void} click */
  const button = (kindOf, word, click) => buttons.append(el(`button.${kindOf}`, { type: "button", click }, word));
  const reason = /** @type {HTMLInputElement} */ (el("input", { placeholder: "Reason, if you deny (optional)", maxlength: 2000, "aria-label": "Reason for denying" }));
  let edited = false;
  if (kind === "external") button("main", "Send result", () => decide({ action: "answer", value: read() ?? field.value }, item));
  else {
    button("main", "Approve", () => {
      const changed = edited ? read() : null;
      if (!edited) decide({ action: "approve" }, item);
      else if (changed && typeof changed === "object" && !Array.isArray(changed)) decide({ action: "approve", input: changed }, item);
      else {
        problem.textContent = "The arguments are not a JSON object.";
        field.focus();
      }
    });
  }
  button("plain", "Deny", () => decide({ action: "deny", ...(reason.value.trim() && { reason: reason.value.trim() }) }, item));
  if (kind === "approval" && input) {
    button("plain", "Edit", () => {
      edited = !edited;
      field.value = pretty(input);
      field.rows = Math.min(field.value.split("\n").length, 12);
      (edited ? shown : field).replaceWith(edited ? field : shown);
      /** @type {HTMLElement} */ (buttons.lastElementChild).textContent = edited ? "Undo" : "Edit";
      if (edited) field.focus();
    });
  }
  item.dataset.question = id;
  const tool = name && question ? el("p.quiet", null, what) : null;
  return [title, tool, input && kind !== "external" ? shown : null, kind === "external" ? (input ? shown : null) : null, kind === "external" ? field : null, problem, reason, buttons].filter((one) => one !== null);

  function read() {
    try {
      return JSON.parse(field.value);
    } catch {
      return null;
    }
  }
}

/** @param {Record<string, any>} decisions */
async function resume(decisions) {
  const { signal } = view;
  const begun = await attempt(() => api.ask("POST", `${pathOf(session)}/resume`, { decisions }));
  if (signal.aborted) return;
  if (!begun) {
    for (const item of log.querySelectorAll(".ask")) item.remove();
    return ask(questions);
  }
  for (const item of log.querySelectorAll(".ask, .continue")) item.remove();
  questions = [];
  text.focus();
  await follow(begun.id, begun.id === run ? position : "", signal);
}

// ---- requests

/** Whether the server is reachable. @param {boolean} is */
function connected(is) {
  if (is) settle();
  else [status.dataset.state, status.textContent] = ["lost", "Connection lost. Trying again…"];
}

/** Read something; wait for the server, and for a person who signs in. @param {string} path @param {AbortSignal} signal @returns {Promise<any>} null if it does not exist */
async function get(path, signal) {
  for (let wait = 250; !signal.aborted; wait = Math.min(wait * 2, 5000)) {
    try {
      const found = await api.ask("GET", path);
      if (status.dataset.state === "lost") connected(true);
      return found;
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        await signIn();
        continue;
      }
      if (error instanceof Refused && error.status < 429) return error.status === 404 ? null : problem(error);
      connected(false);
    }
    await pause(wait);
  }
}

/** @param {unknown} error */
function problem(error) {
  const said = error instanceof Refused ? error.message : "The server cannot be reached. Try again in a moment.";
  keepBottom(() => note(said, true));
  return null;
}

/** Do something that a person asked for; if it is refused, say why. @param {() => Promise<any>} work */
async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) {
      await signIn();
      return attempt(work);
    }
    return problem(error);
  }
}

async function signIn() {
  const dialog = /** @type {HTMLDialogElement} */ ($("login"));
  const token = /** @type {HTMLInputElement} */ ($("token"));
  token.value = "";
  if (!dialog.open) dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  sessionStorage.setItem("token", token.value);
}

// ---- the conversation

/** Show what the address names. */
function route() {
  const [, name, id] = location.hash.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return "";
    }
  });
  const found = agents.find((one) => one.name === name) ?? agents[0];
  if (found && agent !== found.name) titles.clear();
  [agent, session] = [found?.name ?? "", (found?.name === name && id) || ""];
  chooser.value = agent;
  view.abort();
  view = new AbortController();
  [run, position, busy, drawn] = ["", "", false, ""];
  edit(null);
  draw({ messages: [], questions: [], status: "idle" });
  drawer(false);
  refresh();
  if (session) load(view.signal);
  else text.focus();
}

/** Show the stored conversation, and follow its run. @param {AbortSignal} signal @param {number} [patience] how often to wait for a server that continues it @returns {Promise<void>} */
async function load(signal, patience = 0) {
  const history = await get(pathOf(session), signal);
  if (signal.aborted) return;
  if (!history) return note("There is no such conversation.", true);
  const same = JSON.stringify(history);
  if (same !== drawn) draw(history);
  drawn = same;
  if (history.status === "running") return follow(history.run, "", signal);
  if (history.status !== "unfinished") return;
  if (patience) {
    await pause(500);
    return signal.aborted || load(signal, patience - 1);
  }
  const item = add("note.continue");
  item.append("The answer was interrupted. ", el("button", { type: "button", click: () => resume({}) }, "Continue"));
}

/** @param {{ messages: Message[], questions: Question[], status: string }} history */
function draw({ messages, questions: asked }) {
  log.replaceChildren();
  items = new Map();
  open = null;
  $("usage").textContent = "";
  for (const message of messages) {
    if (message.role === "user") showUser(message);
    else {
      if (message.text || message.thinking || message.files) {
        const reply = newReply(message.id);
        [reply.text, reply.thinking] = [message.text, message.thinking ?? ""];
        paint(reply);
        showMore(reply.item, message);
      }
      for (const tool of message.tools) showTool(add("tool", `tool ${tool.id}`), tool);
    }
  }
  welcome.hidden = Boolean(session);
  [$("name").textContent, $("about").textContent] = [agent, visible(agents.find((one) => one.name === agent)?.description ?? "")];
  name(messages);
  ask(asked);
  scroller.scrollTop = scroller.scrollHeight;
}

/** @param {Message[]} messages */
function name(messages) {
  const first = messages.find(({ role }) => role === "user");
  if (first && session) titles.set(session, short(first.text, 80));
  const title = titles.get(session) ?? (session ? "Conversation" : agent);
  $("title").textContent = title;
  document.title = `${title} · ${agent}`;
}

/** Show the events of a run until it ends. @param {string} id @param {string} from @param {AbortSignal} signal @returns {Promise<void>} */
async function follow(id, from, signal) {
  [run, position, busy] = [id, from, true];
  settle();
  let outcome = "";
  for await (const event of api.events(id, from, signal, connected)) {
    if (signal.aborted) return;
    position = event.position;
    if (event.type === "end") [outcome, busy] = [event.outcome, false];
    keepBottom(() => show[event.type]?.(event));
  }
  if (signal.aborted) return;
  busy = false;
  settle();
  refresh();
  if (!outcome || outcome === "parked") return load(signal, 20);
  const history = await get(pathOf(session), signal);
  if (signal.aborted || !history || busy) return;
  const said = history.messages.filter((/** @type {Message} */ { role }) => role === "user");
  const mine = [...log.querySelectorAll("li.user")];
  if (!drawn || said.length !== mine.length) draw(history);
  else mine.forEach((item, at) => (/** @type {HTMLElement} */ (item).dataset.id = said[at].id));
  drawn = JSON.stringify(history);
  settle();
}

/** @param {string} said */
async function say(said) {
  if (!said.trim() || !agent || questions.length) return;
  const { signal } = view;
  if (busy) {
    if (!run) return; // the last message is still being sent
    if (await attempt(() => api.ask("POST", `runs/${run}/steer`, { text: said }).then(() => true))) sent(said);
    return;
  }
  const origin = editing;
  [run, busy, text.value] = ["", true, ""];
  settle();
  const begun = await attempt(async () => {
    const target = origin ? (await api.ask("POST", `${pathOf(session)}/fork`, { before: origin })).session : session || undefined;
    return await api.ask("POST", `agents/${encodeURIComponent(agent)}/runs`, { input: said, session: target });
  });
  busy = false;
  if (signal.aborted) return;
  if (!begun) {
    text.value ||= said;
    settle();
    if (session) await load(signal); // another tab may have continued
    return;
  }
  if (origin) {
    text.value = "";
    location.hash = addressOf(begun.session); // shows the copy
    return;
  }
  const fresh = !session;
  session = begun.session;
  if (fresh) {
    titles.set(session, short(said, 80));
    history.replaceState(null, "", addressOf(session));
    name([]);
    refresh();
  }
  drawn ||= "live";
  sent(said);
  await follow(begun.id, "", signal);
}

/** @param {string} said */
function sent(said) {
  $("usage").textContent = "";
  if (text.value === said) text.value = "";
  showUser({ id: "", role: "user", text: said, tools: [] });
  scroller.scrollTop = scroller.scrollHeight;
  settle();
}

/** @param {HTMLElement | null} item the message to edit; null ends it */
function edit(item) {
  if (item && (busy || !item.dataset.id)) return;
  if (editing && !item) text.value = "";
  editing = item?.dataset.id ?? "";
  $("editing").hidden = !editing;
  if (item) {
    text.value = texts.get(item) ?? "";
    text.focus();
  }
  settle();
}

function settle() {
  const asked = questions.length > 0;
  log.ariaBusy = String(busy);
  stop.hidden = !busy || !run;
  send.hidden = busy && !text.value.trim();
  send.disabled = asked || !text.value.trim();
  const last = lastUser();
  after.hidden = busy || asked || !last?.dataset.id;
  text.placeholder = asked ? "Please answer above" : busy ? "Add something for the running answer" : "Write a message";
  const [state, word] = busy && !run ? ["sends", "Sending…"] : busy ? ["busy", "Answering…"] : asked ? ["asks", "Waiting for you"] : ["ready", "Ready"];
  if (status.dataset.state !== state) [status.dataset.state, status.textContent] = [state, word];
}

const lastUser = () => /** @type {HTMLElement | undefined} */ ([...log.querySelectorAll("li.user")].at(-1));

// ---- the list of conversations

let listed = LISTED;
let refreshing = 0;

/** Show the list; titles that are not known are read from the conversations, one after the other. */
async function refresh() {
  const mine = ++refreshing;
  const { signal } = new AbortController();
  if (!agent) return;
  const found = await get(`agents/${encodeURIComponent(agent)}/sessions?limit=${listed}`, signal);
  if (mine !== refreshing || !found) return;
  list.replaceChildren(...found.sessions.map(entry));
  more.hidden = found.total <= found.sessions.length;
  for (const { id } of found.sessions) {
    if (titles.has(id)) continue;
    const history = await get(pathOf(id), signal);
    if (mine !== refreshing) return;
    const first = history?.messages.find((/** @type {Message} */ { role }) => role === "user");
    titles.set(id, first ? short(first.text, 80) : "Empty");
    const shown = list.querySelector(`[href="${CSS.escape(addressOf(id))}"] bdi`);
    if (shown) shown.textContent = titles.get(id) ?? "";
  }
}

/** @param {{ id: string, updated: number, status: string }} info */
function entry({ id, updated, status: state }) {
  const words = { unfinished: "running", suspended: "waiting" };
  const when = new Date(updated * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  const mark = words[/** @type {keyof words} */ (state)];
  const address = el("a", { href: addressOf(id), "aria-current": id === session && "page", title: when }, el("bdi", null, titles.get(id) ?? "…"), mark && el(`span.chip.${mark}`, null, mark));
  return el("li", null, address, el("button.icon", { type: "button", title: "Delete", "aria-label": `Delete ${titles.get(id) ?? "conversation"}`, click: () => remove(id) }, icon("M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13")));
}

/** @param {string} id */
async function remove(id) {
  const dialog = /** @type {HTMLDialogElement} */ ($("sure"));
  $("sure-name").textContent = titles.get(id) ?? "";
  dialog.returnValue = "no";
  dialog.showModal();
  // The question before this one may still have to report that it was closed.
  await new Promise((resolve) => (dialog.onclose = () => dialog.open || resolve(undefined)));
  if (dialog.returnValue !== "yes") return;
  if (id === session && busy && run) await attempt(() => api.ask("POST", `runs/${run}/interrupt`, {}));
  if ((await attempt(() => api.ask("DELETE", pathOf(id)).then(() => true))) === null) return;
  titles.delete(id);
  if (id === session) location.hash = addressOf("");
  else refresh();
}

/** @param {boolean} shown */
function drawer(shown) {
  document.body.classList.toggle("drawer", shown);
  $("menu").ariaExpanded = String(shown);
  if (shown) /** @type {HTMLElement | null} */ (side.querySelector("[aria-current], #new"))?.focus();
}

// ---- what a person does

form.onsubmit = (/** @type {Event} */ event) => {
  event.preventDefault();
  if (!send.disabled) say(text.value);
};
text.oninput = settle;
text.onkeydown = (/** @type {KeyboardEvent} */ event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!send.disabled) say(text.value);
  } else if (event.key === "ArrowUp" && !text.value && !busy) {
    event.preventDefault();
    edit(lastUser() ?? null);
  }
};
document.onkeydown = (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (document.body.classList.contains("drawer")) {
      drawer(false);
      $("menu").focus();
    } else if (editing) edit(null);
    else if (busy) stop.click();
  } else if (event.altKey && event.code === "KeyN") $("new").click();
};
stop.onclick = () => {
  text.focus();
  if (run) attempt(() => api.ask("POST", `runs/${run}/interrupt`, {}));
};
retry.onclick = () => {
  const last = lastUser();
  if (!last?.dataset.id) return;
  editing = last.dataset.id;
  say(texts.get(last) ?? "");
};
$("copy").onclick = async () => {
  await navigator.clipboard.writeText(lastReply());
  status.textContent = "Copied";
};
$("new").onclick = () => {
  if (location.hash === addressOf("")) route();
  else location.hash = addressOf("");
};
$("cancel").onclick = () => edit(null);
$("menu").onclick = () => drawer(!document.body.classList.contains("drawer"));
$("shade").onclick = () => drawer(false);
$("skip").onclick = (event) => {
  event.preventDefault();
  text.focus();
};
chooser.onchange = () => (location.hash = `#/${encodeURIComponent(chooser.value)}`);
more.onclick = () => {
  listed += LISTED;
  refresh();
};
window.onhashchange = route;
document.onvisibilitychange = () => {
  if (!document.hidden && !busy && session && !editing) load(view.signal); // another tab may have continued
};

/** Begin. */
async function begin() {
  agents = (await get("agents", view.signal)) ?? [];
  chooser.replaceChildren(...agents.map(({ name: one }) => el("option", { value: one }, one)));
  chooser.disabled = agents.length < 2;
  route();
}

begin();
