// @ts-check
/** The timeline: lanes on a canvas, of which only the visible part is drawn; it zooms, pans, and has tooltips. */

import { duration, el, short } from "./dom.js";
import { Scale, lanesOf } from "./lanes.js";
import { waited } from "./words.js";

/** @typedef {import("./log.js").Log} Log */
/** @typedef {import("./log.js").Row} Row */
/** @typedef {import("./log.js").Group} Group */
/** @typedef {import("./lanes.js").Lane} Lane */

const AXIS = 24;
const BAR = 16;
const GAP = 6;
const SHORTEST = 1e-5;

export class Timeline {
  /**
   * @param {HTMLElement} place
   * @param {(row: Row) => void} choose
   */
  constructor(place, choose) {
    this.place = place;
    this.choose = choose;
    this.canvas = /** @type {HTMLCanvasElement} */ (el("canvas", { tabindex: "0", role: "img" }));
    this.spacer = el("div.spacer");
    this.tip = el("div.tip", { hidden: true });
    place.replaceChildren(this.canvas, this.spacer, this.tip);
    /** @type {Log | null} */
    this.log = null;
    /** @type {Lane[]} */
    this.lanes = [];
    this.from = 0;
    this.to = 1;
    /** @type {Row | null} */
    this.chosen = null;
    this._frame = 0;
    this.left = 0;
    place.addEventListener("scroll", () => this.later(), { passive: true });
    this.canvas.addEventListener("wheel", (event) => this._wheel(event), { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => this._drag(event));
    this.canvas.addEventListener("pointermove", (event) => this._hover(event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("dblclick", (event) => this.zoom(0.3, this._at(event.offsetX)));
    new ResizeObserver(() => {
      this._measure();
      this.later();
    }).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.later());
  }

  /** @param {Log} log */
  show(log) {
    const all = !this.log || (this.from === 0 && this.to >= this.scale.length);
    this.log = log;
    this.scale = new Scale(log);
    this.lanes = lanesOf(log);
    if (all) this.fit();
    this._measure();
    this.later();
  }

  /** @type {Scale} */
  scale = /** @type {any} */ ({ length: 1, place: () => 0, begins: 0, cuts: [] });

  _measure() {
    const height = AXIS + this.lanes.reduce((sum, lane) => sum + lane.rows * BAR + GAP, 0) + 8;
    this.height = height;
    this.place.style.maxHeight = `${height}px`; // no room for lanes that are not there
    this.spacer.style.height = `${Math.max(0, height - this.place.clientHeight)}px`;
    this.canvas.setAttribute("aria-label", `Timeline of ${this.lanes.length} lanes over ${duration(this.scale.length)}`);
  }

  // ---- the visible part

  fit() {
    this.from = 0;
    this.to = this.scale.length * 1.02;
    this.later();
  }

  /** @param {number} factor @param {number} [around] */
  zoom(factor, around = (this.from + this.to) / 2) {
    const whole = this.scale.length * 1.02;
    const length = Math.min(whole, Math.max(SHORTEST, (this.to - this.from) * factor));
    const share = (around - this.from) / (this.to - this.from);
    this.from = Math.max(0, Math.min(around - share * length, whole - length));
    this.to = this.from + length;
    this.later();
  }

  /** @param {number} share of the visible part */
  pan(share) {
    const length = this.to - this.from;
    this.from = Math.max(0, Math.min(this.from + share * length, this.scale.length * 1.02 - length));
    this.to = this.from + length;
    this.later();
  }

  /** @param {Row | null} row */
  select(row) {
    this.chosen = row;
    if (row?.time) {
      const at = this.scale.place(row.time);
      if (at < this.from || at > this.to) this.pan((at - (this.from + this.to) / 2) / (this.to - this.from));
    }
    this.later();
  }

  get _labels() {
    return this.place.clientWidth < 600 ? 92 : 168;
  }

  /** @param {number} x */
  _at(x) {
    const width = this.place.clientWidth - this._labels;
    return this.from + ((x - this._labels) / width) * (this.to - this.from);
  }

  /** @param {WheelEvent} event */
  _wheel(event) {
    if (event.ctrlKey || event.metaKey || (event.altKey && event.deltaY)) {
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY * 0.005), this._at(event.offsetX));
    } else if (event.deltaX || event.shiftKey) {
      event.preventDefault();
      this.pan((event.deltaX || event.deltaY) / this.place.clientWidth);
    }
  }

  /** @param {PointerEvent} event */
  _drag(event) {
    const began = event.clientX;
    let last = began;
    this.canvas.setPointerCapture(event.pointerId);
    /** @param {PointerEvent} moved */
    const move = (moved) => {
      this.pan((last - moved.clientX) / (this.place.clientWidth - this._labels));
      last = moved.clientX;
    };
    const up = (/** @type {PointerEvent} */ ended) => {
      this.canvas.removeEventListener("pointermove", move);
      if (Math.abs(ended.clientX - began) < 4) {
        const row = this._under(ended)?.row;
        if (row) this.choose(row);
      }
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", up, { once: true });
  }

  /**
   * The item under the pointer.
   * @param {PointerEvent} event
   * @returns {{text: string, row: Row | null} | null}
   */
  _under(event) {
    if (!this.log) return null;
    let y = AXIS - this.place.scrollTop;
    const near = ((this.to - this.from) / this.place.clientWidth) * 4;
    const at = this._at(event.offsetX);
    for (const lane of this.lanes) {
      const height = lane.rows * BAR + GAP;
      if (event.offsetY >= y && event.offsetY < y + height) {
        const row = Math.floor((event.offsetY - y) / BAR);
        return lane.kind === "hooks" ? this._mark(lane, at, near) : this._span(lane, row, at, near);
      }
      y += height;
    }
    return null;
  }

  /** @param {Lane} lane @param {number} row @param {number} at @param {number} near */
  _span(lane, row, at, near) {
    for (let n = lane.spans.length - 1; n >= 0; n--) {
      const span = lane.spans[n];
      const [start, end] = this._ends(span);
      if (lane.places[n] === row && at >= start - near && at <= end + near)
        return { text: `${span.name} · ${Number.isNaN(span.end) ? "running" : duration(span.end - span.start)}${waited(span.last) && ` (waited ${waited(span.last)})`} · ${span.state}`, row: span.kind === "call" ? (span.last ?? span.first) : span.first };
    }
    return null;
  }

  /** @param {Lane} lane @param {number} at @param {number} near */
  _mark(lane, at, near) {
    for (const mark of lane.marks) {
      if (Math.abs(this.scale.place(mark.time) - at) > 2 * near) continue;
      const row = this.log?.rows.find((one) => one.call === mark.call && one.seq === mark.seq) ?? null;
      const what = mark.error ? "failed" : mark.verdict ? mark.verdict.verdict : `changed ${mark.changes.map((/** @type {any} */ c) => c.field).join(", ")}`;
      return { text: `${mark.hook} on ${mark.event}: ${what}`, row };
    }
    return null;
  }

  /** @param {PointerEvent} event */
  _hover(event) {
    const found = event.buttons ? null : this._under(event);
    this.tip.hidden = !found;
    this.canvas.style.cursor = found?.row ? "pointer" : "default";
    if (!found) return;
    this.tip.textContent = short(found.text, 120);
    this.tip.style.transform = `translate(${Math.min(event.offsetX + 12, this.place.clientWidth - this.tip.offsetWidth - 8)}px, ${event.offsetY + 14 + this.place.scrollTop}px)`;
  }

  // ---- drawing

  later() {
    if (!this._frame)
      this._frame = requestAnimationFrame(() => {
        this._frame = 0;
        this.draw();
      });
  }

  /** @param {Group} span @returns {[number, number]} */
  _ends(span) {
    const end = Number.isNaN(span.end) ? (this.log?.ends ?? span.start) : span.end;
    return [this.scale.place(span.start), this.scale.place(end)];
  }

  draw() {
    const width = this.place.clientWidth;
    const height = this.place.clientHeight;
    const left = (this.left = this._labels); // asked for once: reading a size has the page laid out
    const share = (width - left) / (this.to - this.from);
    const ratio = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const pen = this.canvas.getContext("2d");
    if (!pen || !this.log) return;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(this.place);
    /** @type {Map<string, string>} */
    const known = new Map();
    const colour = (/** @type {string} */ name) => {
      let value = known.get(name);
      if (value === undefined) known.set(name, (value = style.getPropertyValue(`--${name}`).trim()));
      return value;
    };
    pen.clearRect(0, 0, width, height);
    pen.font = `12px ${style.fontFamily}`;
    const x = (/** @type {number} */ at) => left + (at - this.from) * share;
    this._axis(pen, x, width, height, colour);
    let y = AXIS - this.place.scrollTop;
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS, width, height - AXIS);
    pen.clip();
    for (const lane of this.lanes) {
      const tall = lane.rows * BAR + GAP;
      if (y + tall > AXIS && y < height) this._lane(pen, lane, x, y, width, colour);
      y += tall;
    }
    pen.restore();
    if (this.chosen?.time) {
      const at = x(this.scale.place(this.chosen.time));
      if (at >= this.left) {
        pen.fillStyle = colour("accent");
        pen.fillRect(at - 0.5, AXIS - 6, 1.5, height);
      }
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {(at: number) => number} x @param {number} width @param {number} height @param {(name: string) => string} colour */
  _axis(pen, x, width, height, colour) {
    const step = stepFor((this.to - this.from) / Math.max(2, (width - this.left) / 110));
    pen.fillStyle = colour("muted");
    pen.textBaseline = "middle";
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      const place = Math.round(x(at)) + 0.5;
      pen.fillStyle = colour("rule");
      pen.fillRect(place, AXIS - 4, 1, height);
      pen.fillStyle = colour("muted");
      if (place < width - 30) pen.fillText(tick(at, step), place + 4, AXIS / 2);
    }
    for (const cut of this.scale.cuts) {
      const place = x(this.scale.place(cut.at));
      if (place < this.left) continue;
      pen.fillStyle = colour("warn");
      pen.fillRect(place, 0, 1, height);
      pen.fillText("⋯ a pause", place + 4, height - 10);
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {Lane} lane @param {(at: number) => number} x @param {number} y @param {number} width @param {(name: string) => string} colour */
  _lane(pen, lane, x, y, width, colour) {
    const left = this.left;
    pen.fillStyle = colour("rule");
    pen.fillRect(0, Math.round(y + lane.rows * BAR + GAP / 2), width, 1);
    pen.save();
    pen.beginPath();
    pen.rect(left, y, width - left, lane.rows * BAR + GAP);
    pen.clip();
    if (lane.kind === "hooks") this._marks(pen, lane, x, y, colour);
    else this._bars(pen, lane, x, y, width, colour);
    pen.restore();
    pen.fillStyle = lane.kind === "call" ? colour("text") : colour("muted");
    const plain = pen.font;
    if (lane.kind === "call") pen.font = `600 ${plain}`;
    pen.fillText(fitted(pen, lane.label, left - 34 - lane.depth * 12), (this.left < 100 ? 12 : 20) + lane.depth * 12 + (lane.kind === "call" ? 0 : 8), y + BAR / 2 + 1);
    pen.font = plain;
  }

  /** @param {CanvasRenderingContext2D} pen @param {Lane} lane @param {(at: number) => number} x @param {number} y @param {number} width @param {(name: string) => string} colour */
  _bars(pen, lane, x, y, width, colour) {
    /** @type {number[]} */
    const drawn = [];
    /** @type {number[]} */
    const wrong = []; // errors are drawn last, so that nothing hides them
    for (let n = 0; n < lane.spans.length; n++) {
      const span = lane.spans[n];
      const start = this.scale.place(span.start);
      if (start > this.to) break; // they are in the order in which they began
      const end = this._ends(span)[1];
      if (end < this.from) continue;
      const row = lane.places[n];
      const from = Math.max(this.left - 2, x(start));
      const to = Math.min(width + 2, Math.max(x(end), from + 2));
      const bad = span.state === "error" || span.state === "failed" || span.state === "timeout" || span.state === "not_found";
      const odd = span.state === "denied" || span.state === "suspended" || span.state === "interrupted" || span.state === "veto";
      if (to < (drawn[row] ?? -9) + 1 && !(bad && to > (wrong[row] ?? -9) + 1)) continue; // within a pixel that is drawn
      drawn[row] = to;
      if (bad) wrong[row] = to;
      const top = y + row * BAR + 2;
      const kind = lane.kind === "side" ? "model" : lane.kind;
      pen.fillStyle = bad ? colour("bad") : odd ? colour("warn") : colour(kind);
      if (to - from < 4) {
        pen.fillRect(from, top, to - from, BAR - 4); // there is no room for more
        continue;
      }
      pen.globalAlpha = span.kind === "call" ? 1 : 0.45;
      bar(pen, from, top, to - from, BAR - 4);
      pen.globalAlpha = 1;
      if (span.kind === "tool" || span.kind === "model") {
        const work = Number.isNaN(span.work) ? start : this.scale.place(span.work);
        const done = Number.isNaN(span.done) ? end : this.scale.place(span.done);
        const inner = Math.max(from, x(work));
        if (!Number.isNaN(span.work) || span.kind === "model") bar(pen, inner, top, Math.max(1.5, Math.min(to, x(done)) - inner), BAR - 4);
      }
      if (span.chunks.length) this._density(pen, span, x, top, from, to, colour);
      if (to - from > 46) {
        pen.fillStyle = colour(span.kind === "call" ? "text" : "on");
        pen.fillText(span.kind === "model" ? fitted(pen, span.name, to - from - 10) : whole(pen, duration(end - start), to - from - 10), Math.max(from, this.left) + 5, top + BAR / 2 - 1.5);
      }
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {Group} span @param {(at: number) => number} x @param {number} top @param {number} from @param {number} to @param {(name: string) => string} colour */
  _density(pen, span, x, top, from, to, colour) {
    const buckets = new Uint16Array(Math.max(1, Math.ceil(to - from)));
    for (const entry of span.chunks)
      for (const at of entry.at ?? []) {
        const place = Math.floor(x(this.scale.place(entry.time + at / 1000)) - from);
        if (place >= 0 && place < buckets.length) buckets[place]++;
      }
    pen.fillStyle = colour("density");
    for (let n = 0; n < buckets.length; n++) {
      if (!buckets[n]) continue;
      const tall = Math.min(BAR - 4, 3 + Math.log2(buckets[n] + 1) * 2);
      pen.fillRect(from + n, top + BAR - 4 - tall, 1, tall);
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {Lane} lane @param {(at: number) => number} x @param {number} y @param {(name: string) => string} colour */
  _marks(pen, lane, x, y, colour) {
    let last = -10;
    for (const mark of lane.marks) {
      const at = this.scale.place(mark.time);
      if (at < this.from || at > this.to) continue;
      const place = x(at);
      const strong = mark.error || mark.verdict;
      if (place - last < 2 && !strong) continue;
      last = place;
      pen.fillStyle = mark.error ? colour("bad") : mark.via === "shadow" ? colour("muted") : mark.verdict ? colour("warn") : colour("accent");
      pen.beginPath();
      pen.moveTo(place, y + 2);
      pen.lineTo(place + 5, y + BAR / 2);
      pen.lineTo(place, y + BAR - 2);
      pen.lineTo(place - 5, y + BAR / 2);
      pen.fill();
    }
  }
}

/** @param {CanvasRenderingContext2D} pen @param {number} x @param {number} y @param {number} width @param {number} height */
function bar(pen, x, y, width, height) {
  pen.beginPath();
  pen.roundRect(x, y, width, height, Math.min(3, width / 2));
  pen.fill();
}

/** @param {CanvasRenderingContext2D} pen @param {string} text @param {number} room */
function fitted(pen, text, room) {
  let shown = short(text, 60);
  if (pen.measureText(shown).width <= room) return shown;
  while (shown.length > 1 && pen.measureText(`${shown}…`).width > room) shown = shown.slice(0, -1);
  return room < 14 ? "" : `${shown}…`;
}

/** @param {CanvasRenderingContext2D} pen @param {string} text @param {number} room */
function whole(pen, text, room) {
  return pen.measureText(text).width <= room ? text : "";
}

/** @param {number} least seconds between two ticks */
function stepFor(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1e-9, least)));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= least) ?? power * 10;
}

/** @param {number} at @param {number} step */
function tick(at, step) {
  if (at === 0) return "0";
  if (step < 1e-3) return `${(at * 1000).toFixed(step < 1e-4 ? 2 : 1)} ms`;
  if (step < 1) return at < 1 ? `${Math.round(at * 1000)} ms` : `${at.toFixed(step < 0.1 ? 2 : 1)} s`;
  if (at < 120) return `${Math.round(at)} s`;
  return `${Math.floor(at / 60)}:${String(Math.round(at % 60)).padStart(2, "0")}`;
}
