// @ts-check
/** The conversation as the model saw it at a round: the request, its new messages, and the answer. */

import { el, fill, long, pretty, short } from "./dom.js";
import { blockText, blocks, callText, plural, resultText, usageText } from "./words.js";

/** @typedef {import("./log.js").Log} Log */
/** @typedef {import("./log.js").Row} Row */

const AT_ONCE = 60;

/**
 * The requests of a run, in order.
 * @param {Log} log
 */
export function requests(log) {
  return log.rows.filter((row) => row.type === "PreReasoning" && row.lists.input_messages);
}

/**
 * The request that a row belongs to: the last one of its call before it, or else the last one at all before it.
 * @param {Log} log
 * @param {Row | null} row
 * @returns {Row | null}
 */
export function requestAt(log, row) {
  const all = requests(log);
  if (!row) return all[0] ?? null;
  let found = null;
  for (const one of all) if (one.index <= row.index && (one.call === row.call || !found || found.call !== row.call)) found = one;
  return found ?? all.find((one) => one.call === row.call) ?? all[0] ?? null;
}

/**
 * @param {HTMLElement} place
 * @param {Log} log
 * @param {Row | null} row
 * @param {(row: Row) => void} choose
 */
export function showConversation(place, log, row, choose) {
  const request = requestAt(log, row);
  if (!request) {
    fill(place, el("p.empty", null, "No model was called in this run."));
    return;
  }
  const all = requests(log);
  const at = all.indexOf(request);
  const before = [...all.slice(0, at)].reverse().find((one) => one.call === request.call);
  const sent = request.entry.requests?.find((/** @type {any} */ one) => one.list)?.list ?? request.lists.input_messages;
  const refs = log.refs(sent);
  const opened = log.rows.find((one) => one.type === "PreCall" && one.call === request.call);
  const known = before ? before.lists.input_messages : opened?.lists.history;
  const old = new Set(known ? log.refs(known) : []);
  const kind = (/** @type {string} */ ref) => (old.has(ref) || (!before && log.messages.get(ref)?.role === "system") ? "" : "new");
  const gone = before ? [...old].filter((ref) => !refs.includes(ref)).length : 0;
  const reply = log.rows.slice(request.index).find((one) => one.type === "PostReasoning" && one.call === request.call);
  const steps = el(
    "nav.steps",
    { "aria-label": "Requests" },
    el("button", { type: "button", disabled: at === 0, click: () => choose(all[at - 1]), "aria-label": "Previous request" }, "‹"),
    el("span", null, `Request ${at + 1} of ${all.length}`, el("span.muted", null, ` · ${[log.agent(request.call), `round ${request.iteration}`, request.entry.fields?.model].filter(Boolean).join(" · ")}`)),
    el("button", { type: "button", disabled: at === all.length - 1, click: () => choose(all[at + 1]), "aria-label": "Next request" }, "›"),
  );
  const first = Math.max(0, refs.length - AT_ONCE);
  const list = el("ol.messages", null);
  for (const ref of refs.slice(first)) list.append(card(log, ref, kind(ref)));
  const earlier = first
    ? el("button.more", {
        type: "button",
        click: (/** @type {Event} */ event) => {
          list.prepend(...refs.slice(0, first).map((ref) => card(log, ref, kind(ref))));
          /** @type {HTMLElement} */ (event.target).remove();
        },
      })
    : null;
  if (earlier) earlier.textContent = `${plural(first, "message")} before`;
  fill(
    place,
    steps,
    gone ? el("p.banner.veto", null, `${plural(gone, "message")} of the previous request ${gone === 1 ? "is" : "are"} not in this one.`) : null,
    earlier,
    list,
    reply ? el("h3.answer", null, "Answer", el("span.muted", null, ` ${usageText(reply.entry.fields?.usage)}`)) : null,
    reply ? el("ol.messages", null, card(log, reply.entry.fields.reasoning_result, "reply")) : null,
    offered(log, request),
  );
  const fresh = list.querySelector(".new");
  if (fresh instanceof HTMLElement && fresh !== list.firstElementChild) place.scrollTop += fresh.getBoundingClientRect().top - steps.getBoundingClientRect().bottom - 8;
}

/**
 * A message.
 * @param {Log} log
 * @param {string} ref
 * @param {string} kind "new", "reply", ""
 */
export function card(log, ref, kind) {
  const message = log.messages.get(ref) ?? { role: "?", content: [], digest: "this message is not in the log" };
  const made = blocks(log, message).map(block);
  if (!made.length) made.push(el("p.muted", null, message.digest ? `digest ${message.digest}` : "(empty)"));
  const synthetic = message.metadata?.synthetic;
  return el(
    `li.message.${/^\w+$/.test(message.role) ? message.role : "other"}${kind ? `.${kind}` : ""}`,
    null,
    el("header", null, el("span.role", null, message.role), kind === "new" ? el("span.chip.accent", null, "new") : null, synthetic ? el("span.chip", null, short(String(synthetic), 40)) : null),
    ...made,
  );
}

/** @param {any} one */
function block(one) {
  switch (one.type) {
    case "text":
      return long(one.text ?? "", "said");
    case "thinking":
      return el("details.thinking", null, el("summary", null, "thinking"), long(blockText(one), "said"));
    case "tool_use":
      return el("div.call", null, el("span.chip.tool", null, "calls"), long(callText(one), "code"));
    case "tool_result":
      return el(`div.result.${one.state === "success" ? "ok" : "off"}`, null, el(`span.chip.${one.state === "success" ? "good" : one.state === "denied" ? "veto" : "error"}`, null, `${one.name ?? ""} ${one.state ?? ""}`), long(resultText(one), "code"));
    default:
      return long(pretty(one), "code");
  }
}

/** @param {Log} log @param {Row} request */
function offered(log, request) {
  const fields = request.entry.fields ?? {};
  const tools = (fields.tools ?? []).map((/** @type {string} */ ref) => log.tools.get(ref) ?? { name: ref });
  return el(
    "details.field",
    null,
    el("summary", null, el("h3", null, "Tools and options"), el("span.muted", null, plural(tools.length, "tool"))),
    ...tools.map((/** @type {any} */ tool) => el("div.tool", null, el("strong", null, tool.name), el("span.muted", null, ` ${tool.type ?? ""}`), el("p", null, short(tool.description ?? "", 400)))),
    long(pretty(fields.options ?? {}), "code"),
  );
}
