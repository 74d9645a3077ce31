// @ts-check
/** Evaluations: the list of result files, and one with its cases beside a baseline. */

import { clock, dollars, duration, el, fill, long, thousands } from "./dom.js";

/**
 * @typedef {{id: string, file: string, time: number, problem: string, dataset: string, agent: string, cost: number | null, rate: number, cases: number, trials: number, passed: number}} Row
 * @typedef {{name: string, number: number, passed: boolean, log: string, run: string, failures: string[], errors: string[], scores: Record<string, number>, labels: Record<string, string>, reasons: Record<string, string>, answer: string, outcome: string, tools: string[], rounds: number, seconds: number, tokens: number}} Trial
 * @typedef {{name: string, status: string, before: number | null, rate: number | null, scores: Record<string, (number | null)[]>, trials: Trial[]}} Case
 */

const KINDS = /** @type {Record<string, string>} */ ({ worse: "error", missing: "error", changed: "veto", better: "good", new: "accent" });

/** @param {HTMLElement} place @param {Row[]} rows */
export function showEvaluations(place, rows) {
  const lines = rows.map((row) => {
    const link = el("a", { href: `#/evaluation/${row.id}/${before(rows, row)}` }, row.dataset || row.agent || row.file);
    const state = row.problem ? ["error", "damaged"] : row.passed === row.trials ? ["good", "passed"] : ["error", `${row.trials - row.passed} failed`];
    return el(
      "tr",
      { click: (/** @type {MouseEvent} */ event) => row.problem || event.target instanceof HTMLAnchorElement || link.click() },
      el("td.who", null, row.problem ? el("strong", null, row.file) : link, el("span.muted", null, row.problem || `${row.agent} · ${row.file}`)),
      el("td.states", null, el(`span.chip.${state[0]}`, null, state[1])),
      el("td.when", null, clock(row.time)),
      ...(row.problem ? ["", "", ""] : [percent(row.rate), `${row.cases}`, row.trials === row.cases ? "" : `${row.trials}`]).map((text) => el("td.number", null, text)),
      el("td.number", null, row.cost ? dollars(row.cost) : ""),
    );
  });
  const none = rows.length ? null : el("p.muted.none", null, "No results. `agentflow eval … --save runs/results.json` writes them.");
  fill(place, el("h1.title", null, "Evaluations"), none, table("runs", ["Dataset", "Result", "Written", "Pass rate", "Cases", "Trials", "Cost"], lines));
}

/** @param {HTMLElement} place @param {Row & {cases_: Case[], baseline: string}} one @param {Row[]} rows */
export function showEvaluation(place, one, rows) {
  const others = rows.filter((row) => row.id !== one.id && !row.problem && row.dataset === one.dataset);
  const choose = /** @type {HTMLSelectElement} */ (
    el("select", { "aria-label": "Baseline" }, el("option", { value: "" }, "no baseline"), ...others.map((row) => el("option", { value: row.id }, `${row.file}, ${clock(row.time)}`)))
  );
  choose.value = one.baseline;
  choose.addEventListener("input", () => (location.hash = `#/evaluation/${one.id}/${choose.value}`));
  const lines = one.cases_.flatMap((found) => {
    const details = el("tr.trials", { hidden: true }, el("td", { colspan: 6 }, ...found.trials.map(trial)));
    const open = el("button.fold", { type: "button", "aria-expanded": "false", click: () => open.setAttribute("aria-expanded", String(!(details.hidden = !details.hidden))) }, found.name);
    const passed = found.trials.filter((one) => one.passed).length;
    const labels = found.trials.flatMap((one) => Object.entries(one.labels).map(([name, label]) => `${name}: ${label}`));
    const scores = Object.entries(found.scores).map(([name, [was, now]]) => `${name} ${number(now)}${was === null || was === now ? "" : ` (was ${number(was)})`}`);
    return [
      el(
        "tr",
        null,
        el("td.who", null, found.trials.length ? open : found.name),
        el("td.states", null, found.trials.length ? el(`span.chip.${passed === found.trials.length ? "good" : "error"}`, null, `${passed} of ${found.trials.length}`) : null),
        el("td.states", null, found.status && found.status !== "same" ? el(`span.chip.${KINDS[found.status]}`, null, found.status) : null, found.before === null || found.before === found.rate ? null : ` was ${percent(found.before)}`),
        el("td", null, [...scores, ...new Set(labels)].join(", ")),
        el("td.number.wide", null, found.trials.length ? duration(mean(found.trials.map((one) => one.seconds))) : ""),
        el("td.number.wide", null, found.trials.length ? thousands(Math.round(mean(found.trials.map((one) => one.tokens)))) : ""),
      ),
      details,
    ];
  });
  const about = `${one.agent} · ${one.file} · ${clock(one.time)} · ${percent(one.rate)} of ${one.cases} cases${one.cost ? ` · ${dollars(one.cost)}` : ""}`;
  fill(place, el("h1.title", null, one.dataset || one.agent), el("div.filters", null, el("span.muted", null, about), el("span.room"), "Against ", choose), table("cases", ["Case", "Passed", "Change", "Grades", "Time", "Tokens"], lines));
}

/** @param {Trial} one */
function trial(one) {
  const grades = Object.entries(one.scores).map(([name, score]) => `${name} ${number(score)}`);
  const labels = Object.entries(one.labels).map(([name, label]) => `${name}: ${label}`);
  const link = one.log ? el("a", { href: `#/run/${one.log}` }, "the run") : null;
  return el(
    "section.trial",
    null,
    el("p.muted", null, el(`span.chip.${one.passed ? "good" : "error"}`, null, one.passed ? "passed" : "failed"), ` #${one.number} · ${[one.outcome, `${one.rounds} round${one.rounds === 1 ? "" : "s"}`, ...one.tools, ...grades, ...labels].join(" · ")} `, link),
    ...one.failures.map((text) => el("p.banner.error", null, text)),
    ...one.errors.map((text) => el("p.banner.veto", null, `cannot evaluate: ${text}`)),
    ...Object.entries(one.reasons).map(([name, text]) => el("p.muted", null, `${name}: ${text}`)),
    long(one.answer),
  );
}

/** The evaluation of the same dataset before this one. @param {Row[]} rows the newest first @param {Row} row */
function before(rows, row) {
  return rows.slice(rows.indexOf(row) + 1).find((other) => !other.problem && other.dataset === row.dataset && other.agent === row.agent)?.id ?? "";
}

/** @param {string} kind @param {string[]} heads @param {HTMLElement[]} lines */
function table(kind, heads, lines) {
  const kinds = /** @type {Record<string, string>} */ ({ "Pass rate": "number", Cases: "number", Trials: "number", Cost: "number", Time: "number wide", Tokens: "number wide" });
  const row = el("tr", null, ...heads.map((name) => el("th", { class: kinds[name] ?? null }, name)));
  return el("div.scroll", null, el(`table.${kind}`, null, el("thead", null, row), el("tbody", null, ...lines)));
}

/** @param {number} rate */
function percent(rate) {
  return `${Math.round(100 * rate)} %`;
}

/** @param {number | null} value */
function number(value) {
  return value === null ? "–" : String(Number(value.toPrecision(4)));
}

/** @param {number[]} values */
function mean(values) {
  return values.reduce((sum, one) => sum + one, 0) / values.length;
}
