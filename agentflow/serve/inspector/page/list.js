// @ts-check
/** A list of any length: only the lines that can be seen are elements. */

import { el } from "./dom.js";

const LIMIT = 12_000_000; // browsers measure no higher elements than some ten million pixels

export class List {
  /**
   * @param {HTMLElement} place it scrolls
   * @param {object} how
   * @param {number} how.height of a line
   * @param {(line: HTMLElement, index: number) => void} how.draw
   * @param {(index: number) => void} how.choose
   * @param {(index: number) => void} [how.fold] called on a click on its sign
   * @param {string} [how.role] of a line
   */
  constructor(place, how) {
    this.place = place;
    this.how = how;
    this.length = 0;
    this.chosen = -1;
    this.body = el("div.lines", { role: "presentation" });
    /** @type {HTMLElement[]} */
    this.lines = [];
    this._frame = 0;
    place.replaceChildren(this.body);
    place.addEventListener("scroll", () => this.later(), { passive: true });
    place.addEventListener("click", (event) => {
      const line = event.target instanceof Element ? event.target.closest(".line") : null;
      if (!(line instanceof HTMLElement)) return;
      const fold = how.fold && event.target instanceof Element && event.target.closest(".fold");
      (fold ? how.fold : how.choose)?.(Number(line.dataset.index));
    });
    new ResizeObserver(() => this.later()).observe(place);
  }

  /** Pixels of the list per pixel of the scroll bar. */
  get _ratio() {
    const whole = this.length * this.how.height;
    const room = this.place.clientHeight;
    return whole <= LIMIT ? 1 : (whole - room) / (LIMIT - room);
  }

  /** @param {number} length */
  resize(length) {
    const atEnd = this.place.scrollTop + this.place.clientHeight >= this.place.scrollHeight - 2 * this.how.height;
    const grew = length > this.length && this.length > 0;
    this.length = length;
    this.body.style.height = `${Math.min(LIMIT, length * this.how.height)}px`;
    this.draw();
    return grew && atEnd;
  }

  later() {
    if (!this._frame)
      this._frame = requestAnimationFrame(() => {
        this._frame = 0;
        this.draw();
      });
  }

  draw() {
    const { height } = this.how;
    const room = this.place.clientHeight || 600;
    const count = Math.min(this.length, Math.ceil(room / height) + 2);
    while (this.lines.length < count) {
      const line = el("div.line", { role: this.how.role ?? "option" });
      this.lines.push(line);
      this.body.append(line);
    }
    while (this.lines.length > count) this.lines.pop()?.remove();
    const top = this.place.scrollTop * this._ratio;
    const first = Math.max(0, Math.min(Math.floor(top / height), this.length - count));
    const shift = this.place.scrollTop - top;
    for (let n = 0; n < count; n++) {
      const index = first + n;
      const line = this.lines[index % count];
      line.style.transform = `translateY(${index * height + shift}px)`;
      const chosen = index === this.chosen;
      if (line.dataset.index === String(index) && line.dataset.version === String(this.version)) {
        line.classList.toggle("chosen", chosen);
        line.setAttribute("aria-selected", String(chosen));
        continue;
      }
      line.dataset.index = String(index);
      line.dataset.version = String(this.version);
      line.id = `line-${index}`;
      line.className = chosen ? "line chosen" : "line";
      line.setAttribute("aria-selected", String(chosen));
      this.how.draw(line, index);
    }
    if (this.chosen >= 0) this.place.setAttribute("aria-activedescendant", `line-${this.chosen}`);
  }

  version = 0;

  /** Draw every line again. */
  renew() {
    this.version++;
    this.draw();
  }

  /**
   * @param {number} index
   * @param {boolean} [show] scroll to it
   */
  select(index, show = true) {
    this.chosen = index;
    if (show) this.show(index);
    this.draw();
  }

  /** @param {number} index */
  show(index) {
    const { height } = this.how;
    const room = this.place.clientHeight;
    const at = index * height;
    const top = this.place.scrollTop * this._ratio;
    if (at < top + height) this.place.scrollTop = Math.max(0, at - height) / this._ratio;
    else if (at > top + room - 2 * height) this.place.scrollTop = (at - room + 2 * height) / this._ratio;
  }
}
