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

/** @param {number} count */
export function thousands(count) {
  return Math.round(count).toLocaleString("en");
}

/** @param {number} cost in dollars */
export function dollars(cost) {
  return cost === 0 ? "$0" : `$${cost < 0.01 ? cost.toPrecision(2) : cost.toFixed(cost < 1 ? 3 : 2)}`;
}

/**
 * JSON as people read it.
 * @param {any} value
 */
export function pretty(value) {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
}
