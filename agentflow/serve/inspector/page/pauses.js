// @ts-check
/** Runs that wait at a breakpoint: look, edit, decide, step, go on. */

import { el, long, pretty } from "./dom.js";

/**
 * @typedef {object} Pause
 * @property {string} id
 * @property {string} type
 * @property {string} agent
 * @property {number} round
 * @property {string[]} writable
 * @property {string[]} verdicts
 * @property {{hook: string, kind: string, priority: number, here: boolean}[]} chain
 * @property {Record<string, any>} fields
 * @property {{role: string, text: string}[]} history
 * @property {string} ends
 */

/** @type {Map<string, HTMLElement>} */
const shown = new Map();

/**
 * @param {HTMLElement} place
 * @param {Pause[]} pauses
 * @param {(path: string, body: any) => Promise<any>} post
 */
export function showPauses(place, pauses, post) {
  for (const [id, card] of shown)
    if (!pauses.some((pause) => pause.id === id)) {
      card.remove();
      shown.delete(id);
    }
  for (const pause of pauses)
    if (!shown.has(pause.id)) {
      const card = made(pause, post);
      shown.set(pause.id, card);
      place.append(card);
    }
  place.hidden = !shown.size;
}

/** @param {Pause} pause @param {(path: string, body: any) => Promise<any>} post */
function made(pause, post) {
  const said = el("p.banner.error", { role: "alert", hidden: true });
  /** @param {any} what */
  const act = async (what) => {
    try {
      const answer = await post(`api/pauses/${pause.id}`, what);
      said.hidden = true;
      return answer;
    } catch (error) {
      said.hidden = false;
      said.textContent = String(error instanceof Error ? error.message.replace(/^\d+: /, "") : error);
      return null;
    }
  };
  const why = /** @type {HTMLInputElement} */ (el("input", { type: "text", "aria-label": "Reason or value of the verdict", placeholder: "reason or value" }));
  return el(
    "section.paused",
    { "aria-label": `${pause.agent} is paused`, "data-pause": pause.id },
    el("header", null, el("strong", null, `‖ ${pause.type}`), ` ${pause.agent}${pause.round ? `, round ${pause.round}` : ""}`, pause.ends ? el("span.muted", null, ` · ${pause.ends}`) : null),
    said,
    el(
      "div.buttons",
      null,
      el("button.main", { type: "button", click: () => act({ do: "continue" }) }, "Continue"),
      el("button", { type: "button", click: () => act({ do: "step" }) }, "Step"),
      why,
      ...pause.verdicts.map((name) => el("button", { type: "button", click: () => act({ do: "decide", verdict: name, value: why.value }) }, name)),
    ),
    ...pause.writable.map((name) => editor(name, pause.fields[name], act)),
    details("Event", long(pretty(pause.fields), "code")),
    details("Hooks", el("ol.chain", null, ...pause.chain.map((one) => el(one.here ? "li.here" : "li", null, `${one.hook} `, el("span.muted", null, `${one.kind}, ${one.priority}`))))),
    details("History", el("ol.messages", null, ...pause.history.map((one) => el("li.message", null, el("header", null, el("span.role", null, one.role)), long(one.text, "said"))))),
  );
}

/** @param {string} title @param {HTMLElement} body */
function details(title, body) {
  return el("details", null, el("summary", null, title), body);
}

/** @param {string} name @param {any} value @param {(what: any) => Promise<any>} act */
function editor(name, value, act) {
  const area = /** @type {HTMLTextAreaElement} */ (el("textarea", { "aria-label": name, spellcheck: "false", name, rows: String(Math.min(12, pretty(value).split("\n").length)) }));
  area.value = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  const done = el("span.muted", { role: "status" });
  const set = el("button", { type: "button" }, `Set ${name}`);
  set.addEventListener("click", async () => {
    const answer = await act({ do: "edit", field: name, value: area.value });
    done.textContent = answer ? "set" : "";
    if (answer) area.value = typeof answer.value === "string" ? answer.value : JSON.stringify(answer.value, null, 2);
  });
  area.addEventListener("input", () => (done.textContent = ""));
  return el("div.editor", null, el("h4", null, name), area, el("div", null, set, done));
}
