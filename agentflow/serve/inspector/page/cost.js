// @ts-check
/** Tokens and cost over time, and of each model call. */

import { dollars, duration, el, fill, thousands } from "./dom.js";

/** @typedef {import("./log.js").Log} Log */
/** @typedef {import("./log.js").Row} Row */

const SVG = "http://www.w3.org/2000/svg";

/**
 * The model calls of a run with their usage, in order.
 * @param {Log} log
 */
export function modelCalls(log) {
  return log.rows
    .filter((row) => row.type === "PostReasoning")
    .map((row) => ({ row, usage: row.entry.fields?.usage ?? {}, ms: row.entry.fields?.duration_ms ?? 0, model: row.entry.fields?.model ?? "" }));
}

/**
 * The usage of a run: the sum of its top calls.
 * @param {Log} log
 */
export function totals(log) {
  const sum = { input: 0, output: 0, cost: 0, rounds: 0, tools: 0, errors: 0, decided: 0, changed: 0, outcome: "", seconds: 0 };
  for (const row of log.rows) {
    if (row.type === "PostReasoning") sum.rounds++;
    if (row.type === "PostActing") sum.tools++;
    if (row.type === "Error") sum.errors++;
    if (row.level === "veto" && row.entry.decision) sum.decided++;
    if (row.type === "CallEnded" && !log.calls.get(row.call)?.parent) {
      const usage = row.entry.fields?.usage ?? {};
      sum.input += usage.input_tokens ?? 0;
      sum.output += usage.output_tokens ?? 0;
      sum.cost += usage.cost ?? 0;
      sum.outcome = row.entry.fields?.outcome ?? "completed";
    }
  }
  if (!sum.outcome)
    for (const { usage } of modelCalls(log)) {
      sum.input += usage.input_tokens ?? 0;
      sum.output += usage.output_tokens ?? 0;
      sum.cost += usage.cost ?? 0;
    }
  sum.changed = log.hooks.filter((hook) => hook.changes?.length && hook.via !== "shadow").length;
  for (const span of log.spans) if (span.kind === "call" && !log.calls.get(span.call)?.parent) sum.seconds += (Number.isNaN(span.end) ? log.ends : span.end) - span.start;
  return sum;
}

/**
 * @param {HTMLElement} place
 * @param {Log} log
 * @param {(row: Row) => void} choose
 */
export function showCost(place, log, choose) {
  const calls = modelCalls(log);
  if (!calls.length) {
    fill(place, el("p.empty", null, "This run has no model replies."));
    return;
  }
  fill(
    place,
    el(
      "div.charts",
      null,
      chart(log, "Tokens so far", calls, (one) => (one.usage.input_tokens ?? 0) + (one.usage.output_tokens ?? 0), thousands),
      calls.some((one) => one.usage.cost) ? chart(log, "Cost so far", calls, (one) => one.usage.cost ?? 0, dollars) : null,
    ),
    table(log, calls, choose),
  );
}

/** @typedef {ReturnType<typeof modelCalls>[number]} ModelCall */

/** @param {Log} log @param {string} title @param {ModelCall[]} calls @param {(one: ModelCall) => number} value @param {(n: number) => string} words */
function chart(log, title, calls, value, words) {
  const [width, height] = [480, 120];
  const begin = log.begins;
  const length = Math.max(1e-6, log.ends - begin);
  let sum = 0;
  let path = `M0 ${height}`;
  const whole = calls.reduce((all, one) => all + value(one), 0) || 1;
  for (const one of calls) {
    const x = ((one.row.time - begin) / length) * width;
    path += ` H${x.toFixed(1)}`;
    sum += value(one);
    path += ` V${(height - (sum / whole) * (height - 8)).toFixed(1)}`;
  }
  path += ` H${width}`;
  const figure = document.createElementNS(SVG, "svg");
  figure.setAttribute("viewBox", `0 0 ${width} ${height}`);
  figure.setAttribute("preserveAspectRatio", "none");
  figure.setAttribute("role", "img");
  figure.setAttribute("aria-label", `${title}: ${words(sum)}`);
  for (const [kind, d] of [
    ["area", `${path} V${height} Z`],
    ["curve", path],
  ]) {
    const made = document.createElementNS(SVG, "path");
    made.setAttribute("d", d);
    made.setAttribute("class", kind);
    figure.append(made);
  }
  return el("figure", null, el("figcaption", null, title, el("strong", null, words(sum))), figure);
}

/** @param {Log} log @param {ModelCall[]} calls @param {(row: Row) => void} choose */
function table(log, calls, choose) {
  const heads = ["round", "agent", "model", "in", "cached", "out", "cost", "took"];
  const rows = calls.slice(0, 2000).map((one) =>
    el(
      "tr",
      { tabindex: "0", click: () => choose(one.row), keydown: (/** @type {KeyboardEvent} */ event) => event.key === "Enter" && choose(one.row) },
      el("td.number", null, one.row.iteration),
      el("td", null, log.source(one.row) || log.agent(one.row.call)),
      el("td", null, one.model),
      el("td.number", null, thousands(one.usage.input_tokens ?? 0)),
      el("td.number", null, one.usage.cache_read_tokens ? thousands(one.usage.cache_read_tokens) : ""),
      el("td.number", null, thousands(one.usage.output_tokens ?? 0)),
      el("td.number", null, one.usage.cost ? dollars(one.usage.cost) : ""),
      el("td.number", null, duration(one.ms / 1000)),
    ),
  );
  return el("div.scroll", null, el("table.calls", null, el("thead", null, el("tr", null, ...heads.map((name, n) => el(n > 2 || !n ? "th.number" : "th", null, name)))), el("tbody", null, ...rows)));
}
