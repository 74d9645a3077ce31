// @ts-check
/** One event in full: the decision, each hook's changes, every field. */

import { diffOf } from "./diff.js";
import { clock, duration, el, fill, long, pretty, short, since } from "./dom.js";
import { decisionText, errorText, fieldText, groupTook, chunksText, verdictText, waited } from "./words.js";

/** @typedef {import("./log.js").Log} Log */
/** @typedef {import("./log.js").Row} Row */

/**
 * @param {HTMLElement} place
 * @param {Log} log
 * @param {Row} row
 */
export function showDetail(place, log, row) {
  const { entry } = row;
  const hooks = log.hooksOf(row);
  fill(
    place,
    el("h2", null, row.type, row.level ? el(`span.chip.${row.level}`, null, row.level === "veto" ? "decided" : "error") : null),
    facts(log, row),
    entry.decision ? banner(entry.decision) : null,
    ...hooks.map((hook) => hookCard(log, hook)),
    ...(entry.requests ?? []).filter((/** @type {any} */ one) => one.list || one.tools || one.options).map((/** @type {any} */ one) => request(log, one)),
    ...fields(log, row),
  );
}

/**
 * A group: its request and its result.
 * @param {HTMLElement} place
 * @param {Log} log
 * @param {import("./log.js").Group} group
 * @param {(row: Row) => void} choose
 */
export function showGroup(place, log, group, choose) {
  const took = Number.isNaN(group.end) ? "" : groupTook(group);
  const ends = [group.first, group.last].filter((row, n) => row && (n === 0 || row !== group.first));
  const parts = ends.map((row) => {
    const part = el("section.part");
    showDetail(part, log, /** @type {Row} */ (row));
    part.querySelector("h2")?.append(el("button.more", { type: "button", click: () => choose(/** @type {Row} */ (row)) }, "Go to the event"));
    return part;
  });
  fill(
    place,
    el("h2", null, group.name, el("span.chip", null, group.kind === "round" ? "tools" : group.kind), el(`span.chip.${stateKind(group.state)}`, null, group.state)),
    el("dl.facts", null, ...[["took", took], ["waited", waited(group.last)], ["events", countOf(group)], ["round", group.iteration || ""]].filter(([, value]) => value !== "").map(([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value)))),
    ...parts,
  );
}

/** @param {import("./log.js").Group} group @returns {number} */
function countOf(group) {
  let count = 0;
  for (const item of group.items) count += "items" in item ? countOf(item) : item.count;
  return count;
}

/** @param {string} state the outcome of a group */
export function stateKind(state) {
  return { completed: "good", success: "good", running: "accent", failed: "error", error: "error", timeout: "error", not_found: "error" }[state] ?? "veto";
}

/** @param {Log} log @param {Row} row */
function facts(log, row) {
  const ms = row.entry.fields?.duration_ms;
  const pairs = [
    ["agent", log.agent(row.call)],
    ["source", log.source(row)],
    ["round", row.iteration || ""],
    ["event", row.seq < 0 ? "" : row.count > 1 ? `${row.seq}–${row.seq + row.count - 1}` : row.seq],
    ["at", row.time ? `${since(row.time - log.begins)} · ${clock(row.time)}` : ""],
    ["took", ms === undefined ? "" : duration(ms / 1000)],
    ["waited", waited(row)],
    ["call", row.call],
  ];
  return el("dl.facts", null, ...pairs.filter(([, value]) => value !== "").map(([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value))));
}

/** @param {any} decision */
function banner(decision) {
  return el(`p.banner.${decision.verdict ? "veto" : "error"}`, null, el("strong", null, decision.hook), ` ${decisionText(decision)}`);
}

/** @param {Log} log @param {any} hook */
function hookCard(log, hook) {
  const how = { on_event: "", around: "around the work", shadow: "shadow: not applied" }[/** @type {"around"} */ (hook.via)] ?? "";
  const head = el(
    "header",
    null,
    el("strong", null, hook.hook),
    el("span.muted", null, [how, `priority ${hook.priority}`, duration(hook.duration_ms / 1000)].filter(Boolean).join(" · ")),
  );
  const said = [
    hook.verdict ? el("p.veto", null, verdictText(hook.verdict)) : null,
    hook.error ? el("p.error", null, errorText(hook.error)) : null,
  ];
  const changes = (hook.changes ?? []).map((/** @type {any} */ change) =>
    el(
      "div",
      null,
      el("h4", null, change.field),
      diffOf(fieldText(log, change.field, change.before ?? "", change.lists?.before), fieldText(log, change.field, change.after ?? "", change.lists?.after)),
    ),
  );
  return el(`section.hook.${hook.via}`, null, head, ...said, ...changes);
}

/** @param {Log} log @param {any} one */
function request(log, one) {
  return el(
    "section.hook",
    null,
    el("header", null, el("strong", null, `Sent to ${one.model || "the model"}`), el("span.muted", null, "differences from the event")),
    one.list ? el("div", null, el("h4", null, "messages"), long(fieldText(log, "messages", null, one.list))) : null,
    one.tools ? el("div", null, el("h4", null, "tools"), long(fieldText(log, "tools", one.tools))) : null,
    one.options ? el("div", null, el("h4", null, "options"), long(pretty(one.options))) : null,
  );
}

/** @param {Log} log @param {Row} row */
function fields(log, row) {
  const { entry } = row;
  if (entry.pieces) return [chunks(entry)];
  const shown = Object.entries(entry.fields ?? (entry.kind === "interrupt" ? { how: entry.how, reason: entry.reason } : {})).filter(([name, value]) => value !== null && name !== "duration_ms" && name !== "waited_ms" && !(name === "original_tool_use" && value === entry.fields.tool_use));
  return shown.map(([name, value]) => field(log, row, name, value));
}

/** @param {Log} log @param {Row} row @param {string} name @param {any} value */
function field(log, row, name, value) {
  if (name === "error" && value && typeof value === "object") value = { ...value, message: undefined, "": undefined };
  const list = row.lists[name];
  const count = list ? log.refs(list).length : Array.isArray(value) ? value.length : 0;
  const text = name === "error" ? `${errorText(row.entry.fields.error)}\n${pretty(value)}` : fieldText(log, name, value, list);
  if (!text.trim()) return null;
  const simple = text.length < 80 && !text.includes("\n");
  if (simple) return el("div.field.simple", null, el("h3", null, name), el("code", null, text));
  return el("details.field", { open: count < 12 }, el("summary", null, el("h3", null, name), count ? el("span.muted", null, `${count}`) : null), long(text));
}

/** @param {any} entry */
function chunks(entry) {
  const all = entry.kind === "chunks" ? chunksText(entry.pieces) : entry.pieces.map(pretty).join("\n");
  const last = entry.at?.at(-1) ?? 0;
  return el(
    "div.field",
    null,
    el("h3", null, `${entry.pieces.length} chunks`, el("span.muted", null, ` within ${duration(last / 1000)}${entry.attempt > 1 ? ` · attempt ${entry.attempt}` : ""}`)),
    long(all),
    entry.pieces.length > 1 ? each(entry) : null,
  );
}

/** @param {any} entry */
function each(entry) {
  const rows = entry.pieces.slice(0, 500).map((/** @type {any} */ chunk, /** @type {number} */ n) =>
    el("tr", null, el("td.number", null, `+${(entry.at?.[n] ?? 0).toFixed(1)} ms`), el("td", null, el("code", null, short(typeof chunk === "string" ? JSON.stringify(chunk) : JSON.stringify(chunk), 200)))),
  );
  const rest = entry.pieces.length - rows.length;
  return el("details", null, el("summary", null, "each chunk"), el("table", null, el("tbody", null, ...rows)), rest > 0 ? el("p.muted", null, `and ${rest} more`) : null);
}
