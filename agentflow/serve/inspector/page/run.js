// @ts-check
/** One run: timeline, events, and the details of the selected one. */

import { showConversation } from "./conversation.js";
import { showCost, totals } from "./cost.js";
import { showDetail, showGroup, stateKind } from "./detail.js";
import { dollars, duration, el, fill, since, thousands } from "./dom.js";
import { List } from "./list.js";
import { Timeline } from "./timeline.js";
import { groupText, groupTook, line, phase, plural, searchable, summary, took, waited } from "./words.js";

/** @typedef {import("./log.js").Log} Log */
/** @typedef {import("./log.js").Row} Row */
/** @typedef {import("./log.js").Group} Group */
/** @typedef {Row | Group} Item */

const TABS = ["Event", "Conversation", "Cost"];
const KINDS = /** @type {[string, (row: Row, log: Log) => boolean][]} */ ([
  ["Model", (row) => row.type.includes("Reasoning")],
  ["Tools", (row) => row.type.includes("Acting") || row.type.includes("ToolRound")],
  ["Chunks", (row) => row.type.endsWith("Chunk")],
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
    /** @type {Item | null} */
    this.chosen = null;
    /** @type {{item: Item, depth: number}[]} the items of the list: the tree, or the events found by a search */
    this.shown = [];
    this.flat = false;
    /** @type {Set<string>} */
    this.kinds = new Set();
    this.sought = "";
    this._search = 0;
    this._cached = new WeakMap();
    this.name = name;
    this.head = el("header.runhead");
    this.lanes = el("div.lanes", { "aria-label": "Timeline" });
    this.listed = el("div.list", { tabindex: "0", role: "tree", "aria-label": "Events" });
    this.narrow = matchMedia("(max-width: 760px)");
    this.panel = el("section.detail", { role: "tabpanel", "aria-live": "polite" });
    this.search = /** @type {HTMLInputElement} */ (el("input", { type: "search", id: "search", placeholder: "Search  /", "aria-label": "Search events" }));
    this.found = el("span.muted", { role: "status" });
    this.timeline = new Timeline(this.lanes, (row) => this.choose(row));
    this.list = new List(this.listed, {
      height: 28,
      role: "treeitem",
      choose: (index) => this.choose(this.shown[index]?.item),
      fold: (index) => this.fold(this.shown[index]?.item),
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
        "details.frame",
        { open: !this.narrow.matches },
        el("summary", null, "Timeline"),
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
      el("div.panes", null, el("div.listing", null, this._heads(), this.listed), el("div.side", null, el("div.tabs", { role: "tablist" }, ...this.tabs), this.panel)),
    );
    this.renew();
    this.choose(this.log.rows[0] ?? null);
    this.open(0);
  }

  _heads() {
    const head = (/** @type {string} */ kind, /** @type {string} */ text) => el(`span.${kind}`, null, text);
    const all = el("button.foldall", { type: "button", title: "Fold or unfold everything (O)", "aria-label": "Fold or unfold everything", click: () => this.foldAll() }, "±");
    return el("div.heads", null, head("at", "Start"), head("round", "Round"), all, head("type", "Event"), head("what", ""), head("bar", "When"), head("took", "Took"));
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
      log.torn ? el("p.banner.error", null, `${plural(log.torn, "line")} of the log cannot be read: the log is truncated.`) : null,
      log.problem ? el("p.banner.error", { role: "alert" }, log.problem) : null,
    );
    this.timeline.show(log);
    this._filter(true);
  }

  /** @param {boolean} [grown] */
  _filter(grown = false) {
    const passes = [...this.kinds].map((kind) => KINDS.find(([name]) => name === kind)?.[1]);
    const fits = (/** @type {Row} */ row) => (!passes.length || passes.some((pass) => pass?.(row, this.log))) && (!this.sought || this._has(row));
    this.flat = passes.length > 0 || this.sought !== "";
    this.shown = this.flat ? this.log.rows.filter(fits).map((item) => ({ item, depth: 0 })) : this.log.visible();
    this.found.textContent = this.flat ? `${thousands(this.shown.length)} of ${thousands(this.log.rows.length)}` : "";
    this.list.chosen = this._indexOf(this.chosen);
    if (!grown) this.list.version++;
    const follow = this.list.resize(this.shown.length);
    this.list.renew();
    if (follow) this.listed.scrollTop = this.listed.scrollHeight;
  }

  /** @param {Item | null} item */
  _indexOf(item) {
    return item ? this.shown.findIndex((one) => one.item === item) : -1;
  }

  /** @param {Row} row @returns {boolean} */
  _has(row) {
    let text = this._cached.get(row);
    if (text === undefined) this._cached.set(row, (text = searchable(this.log, row)));
    return text.includes(this.sought);
  }

  /** Search all rows in small steps, so that the page stays responsive. */
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
      if (this.shown.length && sought && this._indexOf(this.chosen) < 0) this.choose(this.shown[0].item);
    };
    some();
  }

  /** @param {HTMLElement} made @param {{item: Item, depth: number} | undefined} shown */
  _line(made, shown) {
    if (!shown) {
      made.replaceChildren();
      return;
    }
    const { item, depth } = shown;
    made.setAttribute("aria-level", String(depth + 1));
    if ("items" in item) this._groupLine(made, item, depth);
    else this._rowLine(made, item, depth);
  }

  /** @param {HTMLElement} made @param {Group} group @param {number} depth */
  _groupLine(made, group, depth) {
    made.classList.add("group");
    const kind = stateKind(group.state);
    if (kind === "error" || kind === "veto") made.classList.add(kind);
    made.setAttribute("aria-expanded", String(group.open));
    const changed = group.items.some((item) => !("items" in item) && this.log.hooksOf(item).some((hook) => hook.changes?.length));
    made.replaceChildren(
      el("span.at", null, group.start ? since(group.start - this.log.begins) : ""),
      el("span.round", null, group.iteration || ""),
      indented(depth, el("span.fold", { title: "Fold, unfold (o)" }, group.open ? "▾" : "▸")),
      el("span.type", null, group.name),
      changed ? el("span.changed", { title: "changed by hooks" }, "◆") : "",
      el("span.what", null, ["completed", "success", "running"].includes(group.state) ? null : el(`span.chip.${kind}`, null, group.state), waitedChip(group.last), " ", line(groupText(this.log, group))),
      this._bar(group.start, group.end, group.kind, kind),
      el("span.took", null, groupTook(group)),
    );
  }

  /** @param {HTMLElement} made @param {Row} row @param {number} depth */
  _rowLine(made, row, depth) {
    const source = this.flat ? this.log.source(row) : "";
    const changed = this.log.hooksOf(row).filter((hook) => hook.changes?.length).length;
    if (row.level) made.classList.add(row.level);
    made.removeAttribute("aria-expanded");
    made.replaceChildren(
      el("span.at", null, row.time ? since(row.time - this.log.begins) : ""),
      el("span.round", null, row.iteration || ""),
      indented(depth, el(`span.dot.${phase(row.type)}`)),
      el("span.type", null, row.type),
      changed ? el("span.changed", { title: `changed by ${changed} hook${changed > 1 ? "s" : ""}` }, "◆") : "",
      el("span.what", null, source ? el("span.muted", null, `${source}  `) : null, line(summary(this.log, row))),
      this._bar(row.time, row.time, phase(row.type), row.level),
      el("span.took", null, took(row)),
    );
  }

  /**
   * When something was, within the whole run.
   * @param {number} start
   * @param {number} end
   * @param {string} kind
   * @param {string} state
   */
  _bar(start, end, kind, state) {
    const { scale } = this.timeline;
    const bar = el("span.bar");
    if (!start) return bar;
    const from = Math.max(0, Math.min(1, scale.place(start) / scale.length));
    const to = Math.max(from, Math.min(1, scale.place(Number.isNaN(end) ? this.log.ends : end) / scale.length));
    const inner = el(`span.of-${kind}${state === "error" || state === "veto" ? `.${state}` : ""}${start === end ? ".moment" : ""}`);
    inner.style.left = `${from * 100}%`;
    inner.style.width = `${(to - from) * 100}%`;
    bar.append(inner);
    return bar;
  }

  // ---- the selection

  /** @param {Item | null | undefined} item */
  choose(item) {
    if (!item) return;
    this.chosen = item;
    if (this._indexOf(item) < 0) {
      let group = isGroup(item) ? item.above : item.group;
      for (; group; group = group.above) group.open = true;
      if (this.flat) {
        this.kinds.clear();
        this.search.value = this.sought = "";
        for (const chip of document.querySelectorAll(".kind")) chip.setAttribute("aria-pressed", "false");
      }
      this._filter();
    }
    this.list.select(this._indexOf(item));
    this.timeline.select(this.row);
    this._show();
  }

  /** The selected event; of a group its first one. @returns {Row | null} */
  get row() {
    return this.chosen && "items" in this.chosen ? this.chosen.first : this.chosen;
  }

  /** @param {Item | null | undefined} item of an event, its group */
  fold(item) {
    const group = item && ("items" in item ? item : item.group);
    if (!group || this.flat) return;
    group.open = !group.open;
    if (!group.open) this.chosen = group;
    this._filter();
    this.choose(this.chosen);
  }

  /** Open everything, or, if all is open, fold the work of models and tools. */
  foldAll() {
    const all = groupsOf(this.log.tree);
    const open = all.some((group) => !group.open);
    for (const group of all) group.open = open || group.kind === "call" || group.kind === "round";
    this._filter();
    if (this._indexOf(this.chosen) < 0 && this.chosen && !("items" in this.chosen)) this.chosen = this.chosen.group;
    this.choose(this.chosen);
  }

  /** @param {number} tab */
  open(tab) {
    this.tab = tab;
    this.tabs.forEach((one, n) => one.setAttribute("aria-selected", String(n === tab)));
    this._show();
  }

  _show() {
    this.panel.scrollTop = 0;
    if (this.tab === 1) showConversation(this.panel, this.log, this.row, (row) => this.choose(row));
    else if (this.tab === 2) showCost(this.panel, this.log, (row) => this.choose(row));
    else if (this.chosen && "items" in this.chosen) showGroup(this.panel, this.log, this.chosen, (row) => this.choose(row));
    else if (this.chosen) showDetail(this.panel, this.log, this.chosen);
    else fill(this.panel, el("p.empty", null, "No events yet."));
  }

  /** @param {number} step */
  move(step) {
    this.choose(this.shown[Math.max(0, Math.min(this.shown.length - 1, this.list.chosen + step))]?.item);
  }

  /**
   * Go to the next event of a kind, folded or not.
   * @param {(row: Row) => boolean} fits
   * @param {number} [step]
   */
  jump(fits, step = 1) {
    const rows = this.flat ? this.shown.map((one) => /** @type {Row} */ (one.item)) : this.log.rows;
    const from = this.row ? rows.indexOf(this.row) : -1;
    for (let n = from + step; n >= 0 && n < rows.length; n += step) if (fits(rows[n])) return this.choose(rows[n]);
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
      o: () => this.fold(this.chosen),
      O: () => this.foldAll(),
      1: () => this.open(0),
      2: () => this.open(1),
      3: () => this.open(2),
      "/": () => this.search.focus(),
    };
    keys[key]?.();
    return key in keys;
  }

  _focus() {
    return this.row?.time ? this.timeline.scale.place(this.row.time) : undefined;
  }
}

/** @param {Item} item @returns {item is Group} */
function isGroup(item) {
  return "items" in item;
}

/** @param {number} depth @param {HTMLElement} sign */
function indented(depth, sign) {
  const place = el("span.sign", null, sign);
  place.style.paddingLeft = `${Math.min(depth, 12) * 12}px`;
  return place;
}

/** @param {Row | null} row */
function waitedChip(row) {
  const long = waited(row);
  return long && el("span.chip", { title: "for a person, a lock or a reader; not included in the time" }, `waited ${long}`);
}

/** @param {Item[]} items @returns {Group[]} */
function groupsOf(items) {
  return items.flatMap((item) => ("items" in item ? [item, ...groupsOf(item.items)] : []));
}
