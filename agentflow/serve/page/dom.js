// @ts-check
/** Elements and texts. Data of models, tools and hooks is inserted as text, never as markup; invisible characters are escaped. */

const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

/**
 * A text with everything that steers, hides or turns text round as an escape. Line feeds and tabs stay.
 * @param {string} text
 */
export function visible(text) {
  return text.replace(UNSEEN, (found) => `\\u{${/** @type {number} */ (found.codePointAt(0)).toString(16)}}`);
}

/**
 * The same on one line, of at most so many characters.
 * @param {string} text
 * @param {number} room
 */
export function short(text, room) {
  const flat = visible(text.slice(0, room * 4).replace(/\s+/g, " ").trim());
  return flat.length > room ? `${flat.slice(0, room - 1)}…` : flat;
}

/**
 * An element. Strings among the children become text.
 * @param {string} tag with classes: "div.card.new"
 * @param {Record<string, any> | null} [props] attributes; functions become listeners
 * @param {...(Node | string | number | null | undefined | false)} children
 * @returns {HTMLElement}
 */
export function el(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const made = document.createElement(name);
  if (classes.length) made.className = classes.join(" ");
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(key, value);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    made.append(child instanceof Node ? child : visible(String(child)));
  }
  return made;
}

/**
 * @param {Element} place
 * @param {...(Node | null | false | undefined)} children
 */
export function fill(place, ...children) {
  place.replaceChildren(.../** @type {Node[]} */ (children.filter(Boolean)));
}

const FIRST = 6000;
const MORE = 200000;

/**
 * A long text: its beginning, and the rest on demand, in chunks.
 * @param {string} text
 * @param {string} [kind] class
 */
export function long(text, kind = "text") {
  const body = el(`pre.${kind}`, { dir: "ltr" });
  let at = 0;
  const button = el("button.more", { type: "button", click: () => more(MORE) });
  /** @param {number} count */
  function more(count) {
    body.append(visible(text.slice(at, at + count)));
    at += count;
    if (at >= text.length) button.remove();
    else button.textContent = `${size(text.length - at)} more`;
  }
  more(FIRST);
  return text.length > FIRST ? el("div", null, body, button) : body;
}

/** @param {number} count of characters */
function size(count) {
  return count < 10000 ? `${count} characters` : `${(count / 1000).toFixed(0)}k characters`;
}

/** @param {number} seconds */
export function duration(seconds) {
  if (!(seconds >= 0)) return "";
  if (seconds < 0.0005) return "<1 ms";
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** @param {number} seconds since something began */
export function since(seconds) {
  return Math.abs(seconds) < 0.0005 ? "0" : duration(seconds);
}

/** @param {number} count */
export function thousands(count) {
  return Math.round(count).toLocaleString("en");
}

/** @param {number} cost in dollars */
export function dollars(cost) {
  return cost === 0 ? "$0" : `$${cost < 0.01 ? cost.toPrecision(2) : cost.toFixed(cost < 1 ? 3 : 2)}`;
}

/** @param {number} time seconds since the epoch */
export function clock(time) {
  const date = new Date(time * 1000);
  return Number.isNaN(date.getTime()) ? "?" : `${date.toLocaleDateString("en-CA")} ${date.toLocaleTimeString("en-GB")}`;
}

/**
 * JSON as people read it.
 * @param {any} value
 */
export function pretty(value) {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
}
