// @ts-check
/** One run: timeline, events, and what is to know of the one that is chosen. */

import { showConversation } from "./conversation.js";
import { showCost, totals } from "./cost.js";
import { showDetail } from "./detail.js";
import { dollars, duration, el, fill, since, thousands } from "./dom.js";
import { List } from "./list.js";
import { Timeline } from "./timeline.js";
import { line, phase, plural, searchable, summary, took } from "./words.js";

/** @typedef {import("./log.js").Log} Log */
/** @typedef {import("./log.js").Row} Row */

const TABS = ["Event", "Conversation", "Cost"];
const KINDS = /** @type {[string, (row: Row, log: Log) => boolean][]} */ ([
  ["Model", (row) => row.type.includes("Reasoning")],
  ["Tools", (row) => row.type.includes("Acting") || row.type.includes("ToolRound")],
  ["Pieces", (row) => row.type.endsWith("Chunk")],
  ["Changes", (row, log) => log.hooksOf(row).some((hook) => hook.changes?.length)],
  ["Decisions", (row) => row.level === "veto"],
  ["Errors", (row) => row.level === "error"],
]);
const SLICE = 8; // milliseconds that a search works at a time

export class RunView {
  /**
   * @param {HTMLElement} place
   * @param {Log} log
   * @param {string} name
   */
  constructor(place, log, name) {
    this.log = log;
    this.tab = 0;
    /** @type {Row | null} */
    this.chosen = null;
    /** @type {Row[]} */
    this.shown = [];
    /** @type {Set<string>} */
    this.kinds = new Set();
    this.sought = "";
    this._search = 0;
    this._cached = new WeakMap();
    this.name = name;
    this.head = el("header.runhead");
    this.lanes = el("div.lanes", { "aria-label": "Timeline" });
    this.listed = el("div.list", { tabindex: "0", role: "listbox", "aria-label": "Events" });
    this.panel = el("section.detail", { role: "tabpanel", "aria-live": "polite" });
    this.search = /** @type {HTMLInputElement} */ (el("input", { type: "search", id: "search", placeholder: "Search  /", "aria-label": "Search events" }));
    this.found = el("span.muted", { role: "status" });
    this.timeline = new Timeline(this.lanes, (row) => this.choose(row));
    this.list = new List(this.listed, {
      height: 28,
      choose: (index) => this.choose(this.shown[index]),
      draw: (made, index) => this._line(made, this.shown[index]),
    });
    this.tabs = TABS.map((title, n) =>
      el("button", { type: "button", role: "tab", "aria-selected": "false", click: () => this.open(n), title: `${n + 1}` }, title),
    );
    this.search.addEventListener("input", () => this._seek());
    fill(
      place,
      this.head,
      el(
        "div.frame",
        null,
        this.lanes,
        el(
          "div.zoom",
          null,
          ...[
            ["+", "Zoom in (+)", () => this.timeline.zoom(0.5)],
            ["−", "Zoom out (−)", () => this.timeline.zoom(2)],
            ["⤢", "The whole run (0)", () => this.timeline.fit()],
          ].map(([sign, title, act]) => el("button", { type: "button", title, "aria-label": title, click: act }, /** @type {string} */ (sign))),
        ),
      ),
      el("div.tools", null, this.search, el("span.kinds", { role: "group", "aria-label": "Show only" }, ...KINDS.map(([kind]) => this._chip(kind))), this.found),
      el("div.panes", null, this.listed, el("div.side", null, el("div.tabs", { role: "tablist" }, ...this.tabs), this.panel)),
    );
    this.renew();
    this.choose(this.shown[0] ?? null);
    this.open(0);
  }

  /** @param {string} kind */
  _chip(kind) {
    const chip = el("button.kind", { type: "button", "aria-pressed": "false" }, kind);
    chip.addEventListener("click", () => {
      if (!this.kinds.delete(kind)) this.kinds.add(kind);
      chip.setAttribute("aria-pressed", String(this.kinds.has(kind)));
      this._filter();
    });
    return chip;
  }

  /** The log has grown. */
  renew() {
    const { log } = this;
    const sum = totals(log);
    const top = log.top;
    const running = log.spans.some((span) => span.kind === "call" && Number.isNaN(span.end));
    const state = running ? "running" : sum.outcome || "–";
    const kind = { completed: "good", running: "accent", failed: "error" }[state] ?? "veto";
    fill(
      this.head,
      el("h1", null, top?.agent || this.name, el(`span.chip.${kind}`, null, state)),
      el("p.muted.id", null, [top?.run || this.name, top?.model].filter(Boolean).join(" · ")),
      el(
        "dl.stats",
        null,
        ...[
          ["time", duration(sum.seconds)],
          ["model calls", thousands(sum.rounds)],
          ["tool calls", thousands(sum.tools)],
          ["tokens", sum.input || sum.output ? `${thousands(sum.input)} in · ${thousands(sum.output)} out` : ""],
          ["cost", sum.cost ? dollars(sum.cost) : ""],
          ["changed", sum.changed ? `${thousands(sum.changed)} by hooks` : ""],
          ["decided", sum.decided ? thousands(sum.decided) : ""],
          ["errors", sum.errors ? thousands(sum.errors) : ""],
          ["events", thousands(log.events)],
        ]
          .filter(([, value]) => value)
          .map(([term, value]) => el(`div.${term === "errors" ? "error" : term === "decided" ? "veto" : "plain"}`, null, el("dt", null, term), el("dd", null, value))),
      ),
      log.torn ? el("p.banner.error", null, `${plural(log.torn, "line")} of the log cannot be read: cut off.`) : null,
      log.problem ? el("p.banner.error", { role: "alert" }, log.problem) : null,
    );
    this.timeline.show(log);
    this._filter(true);
  }

  /** @param {boolean} [grown] */
  _filter(grown = false) {
    const passes = [...this.kinds].map((kind) => KINDS.find(([name]) => name === kind)?.[1]);
    const fits = (/** @type {Row} */ row) => (!passes.length || passes.some((pass) => pass?.(row, this.log))) && (!this.sought || this._has(row));
    this.shown = passes.length || this.sought ? this.log.rows.filter(fits) : this.log.rows;
    this.found.textContent = this.shown.length === this.log.rows.length ? "" : `${thousands(this.shown.length)} of ${thousands(this.log.rows.length)}`;
    this.list.chosen = this.chosen ? this.shown.indexOf(this.chosen) : -1;
    if (!grown) this.list.version++;
    const follow = this.list.resize(this.shown.length);
    this.list.renew();
    if (follow) this.listed.scrollTop = this.listed.scrollHeight;
  }

  /** @param {Row} row @returns {boolean} */
  _has(row) {
    let text = this._cached.get(row);
    if (text === undefined) this._cached.set(row, (text = searchable(this.log, row)));
    return text.includes(this.sought);
  }

  /** Look through all rows, a little at a time: the page goes on meanwhile. */
  _seek() {
    const sought = this.search.value.trim().toLowerCase();
    const turn = ++this._search;
    let at = 0;
    this.sought = sought;
    const some = () => {
      if (turn !== this._search) return;
      const until = performance.now() + SLICE;
      while (at < this.log.rows.length && performance.now() < until) this._has(this.log.rows[at++]);
      if (at < this.log.rows.length && sought) {
        this.found.textContent = `${Math.round((100 * at) / this.log.rows.length)} %`;
        setTimeout(some);
        return;
      }
      this._filter();
      if (this.shown.length && sought && !this.shown.includes(/** @type {Row} */ (this.chosen))) this.choose(this.shown[0]);
    };
    some();
  }

  /** @param {HTMLElement} made @param {Row} row */
  _line(made, row) {
    if (!row) {
      made.replaceChildren();
      return;
    }
    const source = this.log.source(row);
    const changed = this.log.hooksOf(row).filter((hook) => hook.changes?.length).length;
    if (row.level) made.classList.add(row.level);
    if (source) made.classList.add("inner");
    made.replaceChildren(
      el("span.at", null, row.time ? since(row.time - this.log.begins) : ""),
      el("span.round", null, row.iteration || ""),
      el(`span.dot.${phase(row.type)}`),
      el("span.type", null, row.type),
      changed ? el("span.changed", { title: `changed by ${changed} hook${changed > 1 ? "s" : ""}` }, "◆") : el("span.changed", null, ""),
      el("span.what", null, source ? el("span.muted", null, `${source}  `) : null, line(summary(this.log, row))),
      el("span.took", null, took(row)),
    );
  }

  // ---- what is chosen

  /** @param {Row | null | undefined} row */
  choose(row) {
    if (!row) return;
    this.chosen = row;
    let index = this.shown === this.log.rows ? row.index : this.shown.indexOf(row);
    if (index < 0 && this.log.rows.includes(row)) {
      this.kinds.clear();
      this.search.value = this.sought = "";
      for (const chip of document.querySelectorAll(".kind")) chip.setAttribute("aria-pressed", "false");
      this._filter();
      index = this.shown.indexOf(row);
    }
    this.list.select(index);
    this.timeline.select(row);
    this._show();
  }

  /** @param {number} tab */
  open(tab) {
    this.tab = tab;
    this.tabs.forEach((one, n) => one.setAttribute("aria-selected", String(n === tab)));
    this._show();
  }

  _show() {
    this.panel.scrollTop = 0;
    if (this.tab === 1) showConversation(this.panel, this.log, this.chosen, (row) => this.choose(row));
    else if (this.tab === 2) showCost(this.panel, this.log, (row) => this.choose(row));
    else if (this.chosen) showDetail(this.panel, this.log, this.chosen);
    else fill(this.panel, el("p.empty", null, "Nothing has happened yet."));
  }

  /** @param {number} step */
  move(step) {
    this.choose(this.shown[Math.max(0, Math.min(this.shown.length - 1, this.list.chosen + step))]);
  }

  /**
   * Go to the next row of a kind.
   * @param {(row: Row) => boolean} fits
   * @param {number} [step]
   */
  jump(fits, step = 1) {
    for (let n = this.list.chosen + step; n >= 0 && n < this.shown.length; n += step)
      if (fits(this.shown[n])) return this.choose(this.shown[n]);
  }

  /** @param {string} key @returns {boolean} whether it was one of ours */
  key(key) {
    /** @type {Record<string, () => void>} */
    const keys = {
      j: () => this.move(1),
      k: () => this.move(-1),
      ArrowDown: () => this.move(1),
      ArrowUp: () => this.move(-1),
      PageDown: () => this.move(20),
      PageUp: () => this.move(-20),
      Home: () => this.move(-Infinity),
      End: () => this.move(Infinity),
      "+": () => this.timeline.zoom(0.5, this._focus()),
      "=": () => this.timeline.zoom(0.5, this._focus()),
      "-": () => this.timeline.zoom(2, this._focus()),
      0: () => this.timeline.fit(),
      ArrowLeft: () => this.timeline.pan(-0.15),
      ArrowRight: () => this.timeline.pan(0.15),
      e: () => this.jump((row) => row.level !== ""),
      E: () => this.jump((row) => row.level !== "", -1),
      "]": () => this.jump((row) => row.type === "PreReasoning"),
      "[": () => this.jump((row) => row.type === "PreReasoning", -1),
      n: () => this.move(1),
      1: () => this.open(0),
      2: () => this.open(1),
      3: () => this.open(2),
      "/": () => this.search.focus(),
    };
    keys[key]?.();
    return key in keys;
  }

  _focus() {
    return this.chosen?.time ? this.timeline.scale.place(this.chosen.time) : undefined;
  }
}
