// @ts-check
/** The list of runs, with filters; two can be marked, and are shown beside each other. */

import { clock, dollars, duration, el, fill, thousands } from "./dom.js";

/**
 * @typedef {object} Run
 * @property {string} id
 * @property {string} run
 * @property {string} file
 * @property {string} agent
 * @property {string} model
 * @property {string} said
 * @property {string} outcome
 * @property {number} started
 * @property {number} seconds
 * @property {number} rounds
 * @property {number} tools
 * @property {number} tokens
 * @property {number} cost
 * @property {number} errors
 * @property {number} decided
 * @property {string} problem
 */

const MOST = 2000;

/**
 * @param {HTMLElement} place
 * @param {() => Promise<Run[]>} load
 */
export async function showRuns(place, load) {
  const words = /** @type {HTMLInputElement} */ (el("input", { type: "search", id: "search", placeholder: "Filter by agent, model, words …", "aria-label": "Filter" }));
  const agent = /** @type {HTMLSelectElement} */ (el("select", { "aria-label": "Agent" }));
  const outcome = /** @type {HTMLSelectElement} */ (el("select", { "aria-label": "Outcome" }));
  const trouble = /** @type {HTMLInputElement} */ (el("input", { type: "checkbox", id: "trouble" }));
  const compare = /** @type {HTMLButtonElement} */ (el("button", { type: "button", disabled: true }, "Compare"));
  const body = el("tbody");
  const count = el("p.muted", { role: "status" });
  /** @type {string[]} */
  let marked = [];
  /** @type {Run[]} */
  let runs = [];

  function choices() {
    for (const [select, name, values] of /** @type {[HTMLSelectElement, string, string[]][]} */ ([
      [agent, "every agent", runs.map((run) => run.agent)],
      [outcome, "every outcome", runs.map((run) => run.outcome || "running")],
    ])) {
      const kept = select.value;
      fill(select, el("option", { value: "" }, name), ...[...new Set(values)].sort().map((one) => el("option", { value: one }, one)));
      select.value = kept;
    }
  }

  function draw() {
    const sought = words.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const shown = runs.filter(
      (run) =>
        (!agent.value || run.agent === agent.value) &&
        (!outcome.value || (run.outcome || "running") === outcome.value) &&
        (!trouble.checked || run.errors || run.decided || run.problem) &&
        sought.every((word) => `${run.agent} ${run.model} ${run.said} ${run.run} ${run.file} ${run.outcome}`.toLowerCase().includes(word)),
    );
    fill(body, ...shown.slice(0, MOST).map(line));
    count.textContent = `${thousands(shown.length)} of ${thousands(runs.length)} runs${shown.length > MOST ? `, the newest ${MOST} are shown` : ""}`;
    compare.disabled = marked.length !== 2;
    compare.textContent = marked.length ? `Compare ${marked.length} of 2` : "Compare";
    if (marked.length === 2) compare.textContent = "Compare these two";
  }

  /** @param {Run} run */
  function line(run) {
    const mark = /** @type {HTMLInputElement} */ (el("input", { type: "checkbox", "aria-label": `Mark ${run.run}` }));
    mark.checked = marked.includes(run.id);
    mark.addEventListener("change", () => {
      marked = mark.checked ? [...marked, run.id].slice(-2) : marked.filter((one) => one !== run.id);
      draw();
    });
    const link = el("a", { href: `#/run/${run.id}` }, run.agent || run.run || run.file);
    const state = run.problem ? "damaged" : run.outcome || "running";
    const kind = { completed: "good", running: "accent", failed: "error", damaged: "error" }[state] ?? "veto";
    return el(
      "tr",
      { click: (/** @type {MouseEvent} */ event) => event.target instanceof HTMLInputElement || event.target instanceof HTMLAnchorElement || link.click() },
      el("td", null, mark),
      el("td.who", null, link, el("span.muted", null, run.problem || run.said)),
      el("td", null, el(`span.chip.${kind}`, null, state), run.errors ? el("span.chip.error", null, `${run.errors} ✗`) : null, run.decided ? el("span.chip.veto", null, `${run.decided} ⊘`) : null),
      el("td.when", null, clock(run.started)),
      el("td.number", null, duration(run.seconds)),
      el("td.number.wide", null, run.rounds),
      el("td.number.wide", null, run.tools),
      el("td.number", null, thousands(run.tokens)),
      el("td.number", null, run.cost ? dollars(run.cost) : ""),
    );
  }

  for (const one of [words, agent, outcome, trouble]) one.addEventListener("input", draw);
  compare.addEventListener("click", () => (location.hash = `#/compare/${marked[0]}/${marked[1]}`));
  const heads = [["", ""], ["Run", ""], ["Outcome", ""], ["Began", "when"], ["Time", "number"], ["Rounds", "number wide"], ["Tools", "number wide"], ["Tokens", "number"], ["Cost", "number"]];
  fill(
    place,
    el("div.filters", null, words, agent, outcome, el("label", { for: "trouble" }, trouble, " with errors or decisions"), el("span.room"), compare),
    count,
    el("div.scroll", null, el("table.runs", null, el("thead", null, el("tr", null, ...heads.map(([name, kind]) => el("th", { class: kind || null }, name)))), body)),
  );
  let told = "";
  const renew = async () => {
    const found = await load();
    const text = JSON.stringify(found);
    if (text === told) return; // a row that is made anew loses the click on its way to it
    told = text;
    runs = found;
    choices();
    draw();
  };
  await renew();
  return { renew, search: () => words.focus() };
}
