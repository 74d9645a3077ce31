// @ts-check
/** A diff of two texts: removed and added lines, and the changed words of a line. */

import { el, visible } from "./dom.js";

const MOST_LINES = 4000;
const MOST_EDITS = 1200;
const CONTEXT = 3;

/**
 * The common and the different parts, in order (Myers' algorithm; if the texts differ too much, all is replaced).
 * @template T
 * @param {T[]} before
 * @param {T[]} after
 * @returns {["=" | "-" | "+", T][]}
 */
export function edits(before, after) {
  let head = 0;
  while (head < before.length && head < after.length && before[head] === after[head]) head++;
  let tail = 0;
  while (tail < before.length - head && tail < after.length - head && before[before.length - 1 - tail] === after[after.length - 1 - tail]) tail++;
  const middle = shortest(before.slice(head, before.length - tail), after.slice(head, after.length - tail));
  /** @param {T[]} same @returns {["=", T][]} */
  const unchanged = (same) => same.map((one) => ["=", one]);
  return [...unchanged(before.slice(0, head)), ...middle, ...unchanged(before.slice(before.length - tail))];
}

/**
 * @template T
 * @param {T[]} a
 * @param {T[]} b
 * @returns {["=" | "-" | "+", T][]}
 */
function shortest(a, b) {
  /** @returns {["=" | "-" | "+", T][]} */
  const replaced = () => [...a.map((one) => /** @type {["-", T]} */ (["-", one])), ...b.map((one) => /** @type {["+", T]} */ (["+", one]))];
  if (!a.length || !b.length || a.length + b.length > MOST_LINES) return replaced();
  /** @type {Map<number, number>[]} */
  const trace = [];
  let reach = new Map([[1, 0]]);
  for (let d = 0; d <= Math.min(a.length + b.length, MOST_EDITS); d++) {
    trace.push(reach);
    const next = new Map(reach);
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
      let x = down ? (reach.get(k + 1) ?? 0) : (reach.get(k - 1) ?? 0) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      next.set(k, x);
      if (x >= a.length && x - k >= b.length) return walkedBack(a, b, trace, d);
    }
    reach = next;
  }
  return replaced();
}

/**
 * @template T
 * @param {T[]} a
 * @param {T[]} b
 * @param {Map<number, number>[]} trace
 * @param {number} last
 * @returns {["=" | "-" | "+", T][]}
 */
function walkedBack(a, b, trace, last) {
  /** @type {["=" | "-" | "+", T][]} */
  const found = [];
  let x = a.length;
  let y = b.length;
  for (let d = last; d >= 0; d--) {
    const reach = trace[d];
    const k = x - y;
    const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
    const fromK = down ? k + 1 : k - 1;
    const fromX = d === 0 ? 0 : (reach.get(fromK) ?? 0);
    const fromY = d === 0 ? 0 : fromX - fromK;
    while (x > fromX && y > fromY) found.push(["=", a[(--x, --y, x)]]);
    if (d > 0) found.push(down ? ["+", b[--y]] : ["-", a[--x]]);
  }
  return found.reverse();
}

/**
 * Two texts as one, with removed and added parts marked.
 * @param {string} before
 * @param {string} after
 */
export function diffOf(before, after) {
  const body = el("pre.diff", { dir: "ltr" });
  const found = edits(before.split("\n"), after.split("\n"));
  for (let at = 0; at < found.length; ) {
    if (found[at][0] === "=") at = common(body, found, at);
    else at = changed(body, found, at);
  }
  if (!body.childNodes.length) body.append("(the same)");
  return body;
}

/**
 * @param {HTMLElement} body
 * @param {["=" | "-" | "+", string][]} found
 * @param {number} at
 */
function common(body, found, at) {
  let end = at;
  while (end < found.length && found[end][0] === "=") end++;
  const first = at === 0 ? 0 : CONTEXT;
  const last = end === found.length ? 0 : CONTEXT;
  for (let n = at; n < end; n++) {
    if (end - at > first + last + 1 && n >= at + first && n < end - last) {
      if (n === at + first) body.append(el("div.gap", null, `… ${end - at - first - last} lines`));
      continue;
    }
    body.append(el("div.same", null, `  ${found[n][1]}`));
  }
  return end;
}

/**
 * @param {HTMLElement} body
 * @param {["=" | "-" | "+", string][]} found
 * @param {number} at
 */
function changed(body, found, at) {
  /** @type {string[]} */
  const removed = [];
  /** @type {string[]} */
  const added = [];
  for (; at < found.length && found[at][0] !== "="; at++) (found[at][0] === "-" ? removed : added).push(found[at][1]);
  const pairs = removed.length === added.length && removed.length <= 40;
  const words = pairs ? removed.map((text, n) => edits(split(text), split(added[n]))) : [];
  removed.forEach((text, n) => body.append(marked("del", "−", text, words[n], "-")));
  added.forEach((text, n) => body.append(marked("ins", "+", text, words[n], "+")));
  return at;
}

/** @param {string} text */
function split(text) {
  return text.length > 4000 ? [text] : (text.match(/\w+|\s+|[^\w\s]/gu) ?? []);
}

/**
 * @param {string} kind
 * @param {string} sign
 * @param {string} text
 * @param {["=" | "-" | "+", string][] | undefined} words
 * @param {"-" | "+"} own
 */
function marked(kind, sign, text, words, own) {
  const row = el(`div.${kind}`, null, `${sign} `);
  const shared = words?.some(([change]) => change === "=");
  if (!words || !shared) row.append(visible(text.slice(0, 20000)));
  else
    for (const [change, word] of words)
      if (change === "=") row.append(visible(word));
      else if (change === own) row.append(el("mark", null, word));
  return row;
}
