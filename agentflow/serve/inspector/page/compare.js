// @ts-check
/** Two runs side by side, aligned and compared by the server: their first difference, and their totals. */

import { diffOf } from "./diff.js";
import { dollars, duration, el, fill, pretty, thousands } from "./dom.js";
import { totals } from "./cost.js";
import { List } from "./list.js";
import { decisionText, fieldText, line, phase, plural, summary, verdictText } from "./words.js";

/** @typedef {import("./log.js").Log} Log */
/** @typedef {import("./log.js").Row} Row */
/** @typedef {{left: Row | null, right: Row | null, how: "same" | "changed" | "left" | "right"}} Pair */

/** @typedef {{where: string, what: string, one: any, other: any, hooks: string[]}} Difference */
/** @typedef {{differences: Difference[], pairs: [number | null, number | null, Pair["how"]][]}} Diff the server's comparison */

const APART = new Set(["duration_ms", "waited_ms", "usage", "model", "history"]);
const MOST = 200;

/**
 * The rows of two runs as pairs, as they were aligned.
 * @param {Log} left
 * @param {Log} right
 * @param {Diff} diff
 * @returns {Pair[]}
 */
function paired(left, right, diff) {
  const [a, b] = [left, right].map((log) => log.rows.filter((row) => row.entry.kind === "event"));
  return diff.pairs.map(([one, other, how]) => ({ left: one === null ? null : a[one], right: other === null ? null : b[other], how }));
}

/** @param {Log} log @param {Row} row @returns {[string, string][]} */
function fieldsOf(log, row) {
  /** @type {[string, string][]} */
  const found = Object.entries(row.entry.fields ?? {})
    .filter(([name, value]) => !APART.has(name) && value !== null)
    .map(([name, value]) => [name, fieldText(log, name, value, row.lists[name])]);
  if (row.entry.decision) found.push(["decision", `${row.entry.decision.hook} ${decisionText(row.entry.decision)}`]);
  const hooks = log.hooksOf(row).filter((hook) => hook.via !== "shadow" && (hook.changes?.length || hook.verdict));
  if (hooks.length) found.push(["hooks", hooks.map((hook) => `${hook.hook} ${verdictText(hook.verdict) || `changed ${hook.changes.map((/** @type {any} */ change) => change.field).join(", ")}`}`).join("\n")]);
  return found;
}

/**
 * @param {HTMLElement} place
 * @param {{log: Log, name: string}} a
 * @param {{log: Log, name: string}} b
 * @param {Diff} diff
 */
export function showComparison(place, a, b, diff) {
  const pairs = paired(a.log, b.log, diff);
  const first = pairs.findIndex((pair) => pair.how !== "same");
  const listed = el("div.list.pairs", { tabindex: "0", role: "listbox", "aria-label": "Events of both runs", "aria-keyshortcuts": "j k e" });
  const detail = el("section.detail", { "aria-live": "polite" });
  const list = new List(listed, {
    height: 28,
    choose: (index) => choose(index),
    draw: (made, index) => {
      const pair = pairs[index];
      made.classList.add(pair.how);
      made.replaceChildren(half(a.log, pair.left), el("span.sign", null, { same: "=", changed: "≠", left: "−", right: "+" }[pair.how]), half(b.log, pair.right));
    },
  });
  /** @param {number} index */
  function choose(index) {
    if (index < 0 || index >= pairs.length) return;
    list.select(index);
    showPair(detail, a.log, b.log, pairs[index]);
  }
  const parts = diff.differences[0] ? `${diff.differences[0].where}: ${diff.differences[0].what}` : first < 0 ? "" : describe(a.log, b.log, pairs[first]);
  const parted = parts ? `They diverge at ${parts}.` : "They are equal.";
  const differ = pairs.filter((pair) => pair.how !== "same").length;
  const jump = el("button", { type: "button", click: () => choose(first), disabled: first < 0 }, "Show where");
  fill(place, el("header.compared", null, sums(a, b), el("p.parted", null, el("strong", null, parted), differ ? ` ${differ} of ${pairs.length} events differ. ` : " ", jump), differences(diff.differences)), el("div.panes", null, listed, detail));
  list.resize(pairs.length);
  choose(Math.max(0, first));
  return {
    /** @param {number} step */
    move: (step) => choose(Math.min(pairs.length - 1, Math.max(0, list.chosen + step))),
    next: () => {
      const found = pairs.findIndex((pair, n) => n > list.chosen && pair.how !== "same");
      if (found >= 0) choose(found);
    },
  };
}

/** @param {Difference[]} all */
function differences(all) {
  if (!all.length) return null;
  const said = (/** @type {any} */ value) => (value === null || value === "" ? el("span.muted", null, "(nothing)") : line(typeof value === "string" ? value : pretty(value)));
  return el(
    "details.differences",
    null,
    el("summary", null, plural(all.length, "difference")),
    el("table", null, el("tbody", null, ...all.slice(0, MOST).map((one) => el("tr", null, el("th", { scope: "row" }, `${one.where}: ${one.what}`), el("td", null, said(one.one)), el("td", null, said(one.other)), el("td.muted", null, one.hooks.join(", ")))))),
  );
}

/** @param {Log} a @param {Log} b @param {Pair} pair */
function describe(a, b, pair) {
  const [log, row] = pair.left ? [a, pair.left] : [b, /** @type {Row} */ (pair.right)];
  const only = pair.how === "left" ? " (only on the left)" : pair.how === "right" ? " (only on the right)" : "";
  return `${row.type} of ${log.source(row) || log.agent(row.call)}${row.iteration ? `, round ${row.iteration}` : ""}${only}`;
}

/** @param {Log} log @param {Row | null} row */
function half(log, row) {
  if (!row) return el("span.half.none", null, "");
  return el("span.half", null, el("span.round", null, row.iteration || ""), el(`span.dot.${phase(row.type)}`), el("span.type", null, row.type), el("span.what", null, line(summary(log, row))));
}

/** @param {{log: Log, name: string}} a @param {{log: Log, name: string}} b */
function sums(a, b) {
  const [x, y] = [totals(a.log), totals(b.log)];
  /** @type {[string, string | number, string | number][]} */
  const rows = [
    ["outcome", x.outcome || "–", y.outcome || "–"],
    ["model calls", x.rounds, y.rounds],
    ["tool calls", x.tools, y.tools],
    ["tokens in", thousands(x.input), thousands(y.input)],
    ["tokens out", thousands(x.output), thousands(y.output)],
    ["cost", dollars(x.cost), dollars(y.cost)],
    ["time", duration(x.seconds), duration(y.seconds)],
  ];
  return el(
    "table.sums",
    null,
    el("thead", null, el("tr", null, el("th", null, ""), el("th", null, a.name), el("th", null, b.name))),
    el("tbody", null, ...rows.map(([name, left, right]) => el(left === right ? "tr" : "tr.differs", null, el("th", { scope: "row" }, name), el("td", null, left), el("td", null, right)))),
  );
}

/** @param {HTMLElement} place @param {Log} a @param {Log} b @param {Pair} pair */
function showPair(place, a, b, pair) {
  const row = pair.left ?? pair.right;
  const before = new Map(pair.left ? fieldsOf(a, pair.left) : []);
  const after = new Map(pair.right ? fieldsOf(b, pair.right) : []);
  const names = [...new Set([...before.keys(), ...after.keys()])];
  fill(
    place,
    el("h2", null, row?.type ?? ""),
    ...names
      .filter((name) => pair.how === "same" || before.get(name) !== after.get(name))
      .map((name) => el("section.field", null, el("h3", null, name), diffOf(before.get(name) ?? "", after.get(name) ?? ""))),
  );
}
