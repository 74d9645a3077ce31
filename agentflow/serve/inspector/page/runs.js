// @ts-check
/** The list of runs, with filters; two marked runs can be compared. */

import { clock, dollars, duration, el, fill, thousands } from "./dom.js";

/**
 * @typedef {object} Run
 * @property {string} id
 * @property {string} run
 * @property {string} file
 * @property {string} agent
 * @property {string} model
 * @property {string} prompt
 * @property {string} outcome
 * @property {number} started
 * @property {number} seconds
 * @property {number} rounds
 * @property {number} tools
 * @property {number} tokens
 * @property {number} cost
 * @property {number} errors
 * @property {number} decided
 * @property {string[]} called
 * @property {string[]} hooks
 * @property {string} problem
 */

const MOST = 2000;
const PAUSE = 250; // milliseconds after the last key, before texts are searched
const AGES = /** @type {[string, number][]} */ ([["any time", 0], ["the last hour", 3600], ["the last day", 86400], ["the last week", 604800], ["the last month", 2592000]]);
const COSTS = [0, 0.001, 0.01, 0.1, 1, 10];
const LENGTHS = [0, 1, 10, 60, 600];

/**
 * @param {HTMLElement} place
 * @param {() => Promise<{runs: Run[], left: number}>} load
 * @param {(text: string) => Promise<string[]>} search finds the ids of the runs that contain a text
 */
export async function showRuns(place, load, search) {
  const words = /** @type {HTMLInputElement} */ (el("input", { type: "search", id: "search", placeholder: "Search all messages  /", "aria-label": "Search" }));
  const select = (/** @type {string} */ name, /** @type {HTMLElement[]} */ ...options) => /** @type {HTMLSelectElement} */ (el("select", { "aria-label": name }, ...options));
  const option = (/** @type {number} */ value, /** @type {string} */ text) => el("option", { value: value || "" }, text);
  const agent = select("Agent");
  const outcome = select("Outcome");
  const tool = select("Tool");
  const hook = select("Hook");
  const began = select("Began", ...AGES.map(([text, seconds]) => option(seconds, text)));
  const took = select("Took", ...LENGTHS.map((seconds) => option(seconds, seconds ? `over ${duration(seconds)}` : "any length")));
  const cost = select("Cost", ...COSTS.map((least) => option(least, least ? `over ${dollars(least)}` : "any cost")));
  const clear = el("button.clear", { type: "button", click: () => reset() }, "Clear");
  const trouble = /** @type {HTMLInputElement} */ (el("input", { type: "checkbox", id: "trouble" }));
  const compare = /** @type {HTMLButtonElement} */ (el("button.compare", { type: "button", disabled: true }, "Compare"));
  const body = el("tbody");
  const count = el("p.muted", { role: "status" });
  /** @type {string[]} */
  let marked = [];
  /** @type {Run[]} */
  let runs = [];
  /** @type {Set<string> | null} the runs that contain the text; null: no search */
  let found = null;
  let turn = 0;
  let left = 0;

  function choices() {
    for (const [select, name, values] of /** @type {[HTMLSelectElement, string, string[]][]} */ ([
      [agent, "every agent", runs.map((run) => run.agent)],
      [outcome, "every outcome", runs.map(stateOf)],
      [tool, "every tool", runs.flatMap((run) => run.called)],
      [hook, "every hook", runs.flatMap((run) => run.hooks)],
    ])) {
      const kept = select.value;
      const known = [...new Set(kept ? [...values, kept] : values)].filter(Boolean).sort();
      fill(select, el("option", { value: "" }, name), ...known.map((one) => el("option", { value: one }, one)));
      select.value = kept;
    }
  }

  function draw() {
    const sought = words.value.trim().toLowerCase();
    const now = Date.now() / 1000;
    const shown = runs.filter(
      (run) =>
        (!agent.value || run.agent === agent.value) &&
        (!outcome.value || stateOf(run) === outcome.value) &&
        (!tool.value || run.called.includes(tool.value)) &&
        (!hook.value || run.hooks.includes(hook.value)) &&
        (!began.value || run.started > now - Number(began.value)) &&
        run.seconds >= Number(took.value) &&
        run.cost >= Number(cost.value) &&
        (!trouble.checked || run.errors || run.decided || run.problem) &&
        (!sought || found?.has(run.id) || `${run.agent} ${run.model} ${run.run} ${run.file} ${stateOf(run)} ${run.problem}`.toLowerCase().includes(sought)),
    );
    clear.hidden = !(sought || trouble.checked || selects.some((one) => one.value));
    fill(body, ...shown.slice(0, MOST).map(line));
    count.textContent = `${thousands(shown.length)} of ${thousands(runs.length)} runs${shown.length > MOST ? `, the newest ${MOST} are shown` : ""}${left ? `, ${thousands(left)} logs are still being read` : ""}`;
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
    const state = stateOf(run);
    const kind = { completed: "good", running: "accent", failed: "error", damaged: "error" }[state] ?? "veto";
    return el(
      "tr",
      { click: (/** @type {MouseEvent} */ event) => event.target instanceof HTMLInputElement || event.target instanceof HTMLAnchorElement || link.click() },
      el("td", null, mark),
      el("td.who", null, link, el("span.muted", null, run.problem || run.prompt)),
      el("td.states", null, el(`span.chip.${kind}`, null, state), run.errors ? el("span.chip.error", null, `${run.errors} ✗`) : null, run.decided ? el("span.chip.veto", null, `${run.decided} ⊘`) : null),
      el("td.when", null, clock(run.started)),
      ...[["", duration(run.seconds)], [".wide", run.rounds], [".wide", run.tools], ["", thousands(run.tokens)]].map(([kind, value]) => el(`td.number${kind}`, null, run.problem ? "" : value)),
      el("td.number", null, run.cost ? dollars(run.cost) : ""),
    );
  }

  const selects = [agent, outcome, tool, hook, began, took, cost];

  function reset() {
    for (const one of selects) one.value = "";
    trouble.checked = false;
    words.value = "";
    look();
  }

  /** Let the server search the messages; the list's own texts are found at once. */
  async function look() {
    const mine = ++turn;
    const text = words.value.trim();
    found = null;
    draw();
    if (!text) return;
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
    if (mine !== turn) return;
    const ids = await search(text);
    if (mine !== turn) return;
    found = new Set(ids);
    draw();
  }

  for (const one of [...selects, trouble]) one.addEventListener("input", draw);
  words.addEventListener("input", look);
  compare.addEventListener("click", () => (location.hash = `#/compare/${marked[0]}/${marked[1]}`));
  const heads = [["", ""], ["Run", ""], ["Outcome", ""], ["Began", "when"], ["Time", "number"], ["Rounds", "number wide"], ["Tools", "number wide"], ["Tokens", "number"], ["Cost", "number"]];
  fill(
    place,
    el(
      "div.filters",
      null,
      words,
      el("details.narrow", { open: !matchMedia("(max-width: 760px)").matches }, el("summary", null, "Filters"), ...selects, el("label", { for: "trouble" }, trouble, " with errors or decisions")),
      clear,
      el("span.room"),
      compare,
    ),
    count,
    el("div.scroll", null, el("table.runs", null, el("thead", null, el("tr", null, ...heads.map(([name, kind]) => el("th", { class: kind || null }, name)))), body)),
  );
  let shown = "";
  const renew = async () => {
    const listed = await load();
    const text = JSON.stringify(listed);
    if (text !== shown) {
      shown = text; // a rebuilt row would lose a click in progress
      ({ runs, left } = listed);
      choices();
      draw();
    }
    if (left && place.contains(body)) setTimeout(renew);
  };
  await renew();
  return { renew, search: () => words.focus() };
}

/** @param {Run} run */
function stateOf(run) {
  return run.problem ? "damaged" : run.outcome || "running";
}
