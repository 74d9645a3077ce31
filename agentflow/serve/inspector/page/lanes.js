// @ts-check
/** Lanes of a timeline. Parallel work of one lane is in separate rows; idle times are omitted. */

/** @typedef {import("./log.js").Log} Log */
/** @typedef {import("./log.js").Group} Group */
/** @typedef {import("./log.js").Entry} Entry */
/**
 * @typedef {object} Lane
 * @property {string} key
 * @property {string} label
 * @property {string} kind "call", "model", "side", "tool", "hooks"
 * @property {number} depth
 * @property {Group[]} spans
 * @property {number[]} places the row of each span
 * @property {number} rows
 * @property {Entry[]} marks the effects of hooks
 */

const LONGEST_GAP = 3;
const ORDER = ["call", "model", "side", "tool", "hooks"];

/**
 * @param {Log} log
 * @returns {Lane[]}
 */
export function lanesOf(log) {
  /** @type {Map<string, Lane>} */
  const lanes = new Map();
  /** @param {string} source @param {string} kind @param {string} name @param {string} label */
  const lane = (source, kind, name, label) => {
    const key = `${source}|${kind}|${name}`;
    let found = lanes.get(key);
    if (!found) {
      const depth = source ? source.split("/").length : 0;
      found = { key, label, kind, depth, spans: [], places: [], rows: 1, marks: [] };
      lanes.set(key, found);
    }
    return found;
  };
  for (const span of log.spans) {
    const named = span.kind === "tool" || span.kind === "side" ? span.name : "";
    const label = span.kind === "call" || named ? span.name : "model";
    lane(span.source, span.kind, named, label).spans.push(span);
  }
  for (const hook of log.hooks) {
    if (!(hook.changes?.length || hook.verdict || hook.error)) continue;
    lane(log.calls.get(hook.call)?.source ?? "", "hooks", "", "hooks").marks.push(hook);
  }
  for (const one of lanes.values()) pack(one);
  const sources = [...new Set([...lanes.values()].map((one) => one.key.split("|")[0]))].sort(byTree);
  return sources.flatMap((source) =>
    [...lanes.values()].filter((one) => one.key.split("|")[0] === source).sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind)),
  );
}

/** @param {string} a @param {string} b */
function byTree(a, b) {
  return a === b ? 0 : a < b ? -1 : 1;
}

/**
 * Put overlapping spans in rows of their own.
 * @param {Lane} lane
 */
function pack(lane) {
  /** @type {number[]} */
  const ends = [];
  lane.places = lane.spans.map((span) => {
    let row = ends.findIndex((end) => end <= span.start);
    if (row < 0) row = ends.length;
    ends[row] = Number.isNaN(span.end) ? Infinity : span.end;
    return row;
  });
  lane.rows = Math.max(1, ends.length);
}

/** Times as positions, without idle hours: if a run waited for a person, the wait is omitted. */
export class Scale {
  /** @param {Log} log */
  constructor(log) {
    this.begins = Number.isFinite(log.begins) ? log.begins : 0;
    /** @type {{at: number, cut: number}[]} the omitted times, and their starts */
    this.cuts = [];
    const calls = log.spans.filter((span) => span.kind === "call").sort((a, b) => a.start - b.start);
    let until = this.begins;
    let cut = 0;
    for (const call of calls) {
      if (call.start - until > LONGEST_GAP) {
        cut += call.start - until - 0.5;
        this.cuts.push({ at: call.start, cut });
      }
      until = Math.max(until, Number.isNaN(call.end) ? log.ends : call.end);
    }
    this.length = Math.max(1e-3, this.place(Math.max(log.ends, this.begins)));
  }

  /** @param {number} time */
  place(time) {
    let cut = 0;
    for (const one of this.cuts) if (time >= one.at) cut = one.cut;
    return time - this.begins - cut;
  }
}
