// @ts-check
/** The page: views, keys, and the source of the data. */

import { showComparison } from "./compare.js";
import { el, fill } from "./dom.js";
import { showEvaluation, showEvaluations } from "./evaluations.js";
import { follow, get, listed, post, text, textAndEnd } from "./http.js";
import { Log } from "./log.js";
import { showPauses } from "./pauses.js";
import { printable } from "./print.js";
import { RunView } from "./run.js";
import { showRuns } from "./runs.js";

const main = /** @type {HTMLElement} */ (document.querySelector("main"));
const actions = /** @type {HTMLElement} */ (document.querySelector("#actions"));
const help = /** @type {HTMLDialogElement} */ (document.querySelector("#help"));
const paper = /** @type {HTMLElement} */ (document.querySelector("#paper"));
const pauses = /** @type {HTMLElement} */ (document.querySelector("#pauses"));
const given = document.querySelector("#data");

/** @type {RunView | null} */
let run = null;
/** @type {{move: (step: number) => void, next: () => void} | null} */
let comparison = null;
/** @type {{renew: () => Promise<void>, search: () => void} | null} */
let runs = null;
/** @type {(() => void) | null} */
let stop = null;

/** The data of an exported page. @type {{runs: {name: string, lines: string, torn: number}[], diff: import("./compare.js").Diff}} */
const brought = JSON.parse(given?.textContent ?? '{"runs": []}');

async function show() {
  stop?.();
  run = comparison = runs = stop = null;
  actions.replaceChildren();
  main.removeAttribute("data-ready");
  const [, view, ...ids] = location.hash.split("/");
  try {
    const there = brought.runs[Number(ids[0]) || 0];
    if (brought.runs.length > 1 && view !== "run") compareLogs(brought.runs.map(({ name, lines, torn }) => ({ log: logOf(lines, torn), name })), brought.diff);
    else if (there) run = new RunView(main, logOf(there.lines, there.torn), there.name);
    else if (view === "run") await showRun(ids[0]);
    else if (view === "compare") await compareRuns(ids);
    else if (view === "evaluations") showEvaluations(main, await get("api/evaluations"));
    else if (view === "evaluation") showEvaluation(main, await get(`api/evaluations/${ids[0]}?baseline=${encodeURIComponent(ids[1] ?? "")}`), await get("api/evaluations"));
    else runs = await showRuns(main, listed, (text) => get(`api/runs?text=${encodeURIComponent(text)}`));
  } catch (error) {
    fill(main, el("p.banner.error", { role: "alert" }, String(error instanceof Error ? error.message : error)));
  }
  if (runs) fill(actions, el("a.button", { href: "#/evaluations" }, "Evaluations"));
  if (!given && !stop) listen("", null);
  document.title = run?.log.top?.agent ? `${run.log.top.agent} · agentflow` : "agentflow inspector";
  main.dataset.ready = view || "runs";
}

/** @param {string} lines @param {number} [torn] */
function logOf(lines, torn = 0) {
  const log = new Log();
  log.torn = torn;
  log.feed(lines);
  return log;
}

/** @param {string[]} ids */
async function compareRuns(ids) {
  const [diff, ...logs] = await Promise.all([get(`api/diff/${ids[0]}/${ids[1]}`), ...ids.map(async (id) => ({ log: logOf(await text(`api/runs/${id}`)), name: id }))]);
  compareLogs(logs, diff);
}

/** @param {{log: Log, name: string}[]} logs @param {import("./compare.js").Diff} diff */
function compareLogs(logs, diff) {
  const [a, b] = logs.map(({ log, name }) => ({ log, name: log.top?.run || name }));
  comparison = showComparison(main, a, b, diff);
}

/** @param {string} id */
async function showRun(id) {
  const { body, end, torn } = await textAndEnd(`api/runs/${id}`);
  const log = logOf(body, torn);
  const view = (run = new RunView(main, log, id));
  fill(actions, el("a.button", { href: `api/runs/${id}/export`, download: "" }, "Export"), el("button", { type: "button", click: () => print() }, "Print"));
  let waits = 0;
  const grown = (/** @type {string} */ lines, /** @type {string} */ problem) => {
    log.feed(lines);
    log.problem = problem || log.problem;
    waits ||= requestAnimationFrame(() => {
      waits = 0;
      if (run === view) view.renew();
    });
  };
  listen(`?run=${id}&from=${end}`, grown);
}

/**
 * Receive news over one connection.
 * @param {string} about
 * @param {((lines: string, problem: string) => void) | null} grown
 */
function listen(about, grown) {
  stop = follow(`api/news${about}`, (news) => {
    if (news.lines || news.problem) grown?.(news.lines ?? "", news.problem ?? "");
    if (news.runs) runs?.renew();
    if (news.pauses) showPauses(pauses, news.pauses, post);
  });
}

addEventListener("hashchange", show);
addEventListener("beforeprint", () => printable(paper, run));
document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement || event.target instanceof HTMLSelectElement;
  if (event.key === "Escape" && typing) /** @type {HTMLElement} */ (event.target).blur();
  if (typing && event.key === "Enter" && run && event.target === run.search) {
    run.listed.focus();
    event.preventDefault();
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (event.target instanceof HTMLElement && event.target.closest(".detail, .paused") && event.key.length > 1) return; // it scrolls
  const ours = run?.key(event.key) || keyed(event.key);
  if (ours) event.preventDefault();
});

/** @param {string} key */
function keyed(key) {
  if (key === "?") help.showModal();
  else if (key === "/" && runs) runs.search();
  else if ((key === "j" || key === "ArrowDown") && comparison) comparison.move(1);
  else if ((key === "k" || key === "ArrowUp") && comparison) comparison.move(-1);
  else if (key === "e" && comparison) comparison.next();
  else if (key === "u" && location.hash) location.hash = "";
  else return false;
  return true;
}

document.querySelector("#keys")?.addEventListener("click", () => help.showModal());
if (location.search) history.replaceState(null, "", location.pathname + location.hash); // the token is a cookie now
show();
