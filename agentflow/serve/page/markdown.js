// @ts-check
/**
 * Markdown as elements. Texts of models are never markup: every character ends in a text node, and only the elements below are made.
 *
 * Links lead to http, https and mailto only, and show their host. Images are links, because loading one would send data to its host.
 * HTML stays text. Patterns have bounds, so that no text is slow to read.
 */

const DEEPEST = 8;
const LONGEST = 20_000; // characters of a block with emphasis and links
/** @type {WeakMap<Node, string>} the source of each block that is shown */
const sources = new WeakMap();

/**
 * Show a text; blocks that did not change stay as they are, so a streamed text can be shown again and again.
 * @param {Element} place
 * @param {string} text
 */
export function showMarkdown(place, text) {
  let at = place.firstElementChild;
  for (const { raw, make } of blocksOf(text.split("\n"))) {
    if (at && sources.get(at) === raw) {
      at = at.nextElementSibling;
      continue;
    }
    const made = make();
    sources.set(made, raw);
    const next = at?.nextElementSibling ?? null;
    if (at) at.replaceWith(made);
    else place.append(made);
    at = next;
  }
  while (at) {
    const next = at.nextElementSibling;
    at.remove();
    at = next;
  }
}

/** @typedef {{ raw: string, make: () => HTMLElement }} Block */

const FENCE = /^ {0,3}(`{3,}|~{3,}) *([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const RULE = /^ {0,3}(?:\*[ \t]*){3,}$|^ {0,3}(?:-[ \t]*){3,}$|^ {0,3}(?:_[ \t]*){3,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,12})([-*+]|\d{1,9}[.)])( +|$)/;
const BORDER = /^ {0,3}\|?(?: *:?-{1,99}:? *\|)+(?: *:?-{1,99}:? *)?$/;

/** @param {string[]} lines @param {number} [depth] @returns {Block[]} */
function blocksOf(lines, depth = 0) {
  /** @type {Block[]} */
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const from = at;
    const line = lines[at];
    const make = line.trim() ? read() : null;
    if (make) blocks.push({ raw: lines.slice(from, at).join("\n"), make });
    else at++;

    /** Read a block, and return its maker. @returns {() => HTMLElement} */
    function read() {
      let found;
      if ((found = FENCE.exec(line))) return fence(found[1], found[2]);
      if ((found = HEADING.exec(line))) {
        const [, marks, title] = found;
        at++;
        return () => inline(document.createElement(`h${Math.min(marks.length + 2, 6)}`), title.replace(/[ \t]#+[ \t]*$/, "").trim());
      }
      if (RULE.test(line)) return at++, () => document.createElement("hr");
      if (depth < DEEPEST && QUOTE.test(line)) {
        const inner = taken((next) => QUOTE.test(next)).map((one) => one.replace(QUOTE, ""));
        return () => fill(document.createElement("blockquote"), inner);
      }
      if (depth < DEEPEST && ITEM.test(line)) return list();
      if (line.includes("|") && BORDER.test(lines[at + 1] ?? "")) {
        const rows = taken((next) => next.includes("|"));
        return () => table(rows);
      }
      const text = taken((next) => next.trim() !== "" && (at === from || !begins(next)));
      return () => inline(document.createElement("p"), text.map((one) => one.trim()).join("\n"));
    }

    /** @param {(line: string) => boolean} fits */
    function taken(fits) {
      const first = at;
      while (at < lines.length && fits(lines[at])) at++;
      return lines.slice(first, at);
    }

    /** @param {string} mark @param {string} language */
    function fence(mark, language) {
      at++;
      const code = taken((next) => !(next.trim().startsWith(mark) && !next.trim().replaceAll(mark[0], "")));
      at++;
      return () => codeBlock(code.join("\n"), language);
    }

    function list() {
      const [, indent, mark] = /** @type {RegExpExecArray} */ (ITEM.exec(line));
      const ordered = /\d/.test(mark);
      /** @type {string[][]} */
      const items = [];
      let width = 0;
      while (at < lines.length) {
        const next = lines[at];
        const found = ITEM.exec(next);
        if (found && found[1].length < indent.length + 2 && found[1].length <= indent.length + 1) {
          if (/\d/.test(found[2]) !== ordered) break;
          width = found[1].length + found[2].length + Math.min(found[3].length || 1, 4);
          items.push([next.slice(width)]);
        } else if (!next.trim()) {
          const after = lines[at + 1] ?? "";
          if (!/^ {2,}\S/.test(after) && ITEM.exec(after)?.[1].length !== indent.length) break;
          items.at(-1)?.push("");
        } else {
          if (!/^ {2,}/.test(next) && (lines[at - 1].trim() === "" || begins(next))) break;
          items.at(-1)?.push(next.slice(Math.min(width, next.length - next.trimStart().length)));
        }
        at++;
      }
      return () => {
        const made = document.createElement(ordered ? "ol" : "ul");
        if (made instanceof HTMLOListElement) made.start = parseInt(mark);
        for (const item of items) fill(made.appendChild(document.createElement("li")), item);
        return made;
      };
    }
  }
  return blocks;

  /** @template {HTMLElement} E @param {E} place @param {string[]} inner @returns {E} */
  function fill(place, inner) {
    const made = blocksOf(inner, depth + 1).map((block) => block.make());
    place.append(.../** @type {Node[]} */ (made.length === 1 && made[0].tagName === "P" ? [...made[0].childNodes] : made));
    return place;
  }
}

/** @param {string} line whether it ends a paragraph before it */
const begins = (line) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));

/** @param {string} code @param {string} language */
function codeBlock(code, language) {
  const made = document.createElement("figure");
  const head = made.appendChild(document.createElement("figcaption"));
  head.append(language);
  const copy = head.appendChild(document.createElement("button"));
  copy.type = "button";
  copy.textContent = "Copy";
  copy.onclick = async () => {
    await navigator.clipboard.writeText(code);
    copy.textContent = "Copied";
  };
  const body = made.appendChild(document.createElement("pre"));
  body.tabIndex = 0; // it scrolls
  body.appendChild(document.createElement("code")).append(code);
  return made;
}

/** @param {string[]} rows */
function table(rows) {
  const cells = rows.map((row) => row.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|")));
  const made = document.createElement("div");
  made.className = "table";
  made.tabIndex = 0;
  const inner = made.appendChild(document.createElement("table"));
  const [head, body] = ["thead", "tbody"].map((tag) => inner.appendChild(document.createElement(tag)));
  const width = cells[0].length;
  cells.forEach((row, at) => {
    if (at === 1) return;
    const line = (at ? body : head).appendChild(document.createElement("tr"));
    for (let n = 0; n < width; n++) {
      const cell = line.appendChild(document.createElement(at ? "td" : "th"));
      const border = cells[1][n] ?? "";
      if (border.endsWith(":")) cell.className = border.startsWith(":") ? "middle" : "end";
      inline(cell, row[n] ?? "");
    }
  });
  return made;
}

const INLINE = new RegExp(
  [
    /\\(?<escaped>[!-/:-@[-`{-~])/,
    /(?<ticks>`{1,3})(?!`)(?<code>[^]{1,500}?)(?<!`)\k<ticks>(?!`)/,
    /(?<image>!?)\[(?<label>[^[\]]{0,300})\]\((?<target>(?:https?:\/\/|mailto:)[^\s()<>]{1,1000}(?:\([^\s()<>]{0,200}\)[^\s()<>]{0,200})?)(?: +"[^"\n]{0,200}")?\)/,
    /(?<bare>https?:\/\/[^\s<>"'`*|\\^{}()[\]]{1,1000}(?:\([^\s()<>"'`]{0,200}\))?)/,
    /\*\*(?=\S)(?<strong>[^]{0,400}?[^\s])\*\*(?!\*)/,
    /(?<!\w)__(?=\S)(?<strong2>[^]{0,400}?[^\s])__(?!\w)/,
    /~~(?=\S)(?<struck>[^~]{1,400}?)(?<=\S)~~/,
    /\*(?=[^\s*])(?<em>[^]{0,400}?[^\s*])\*(?!\*)/,
    /(?<!\w)_(?=[^\s_])(?<em2>[^_]{0,400}?[^\s_])_(?!\w)/,
  ].map((pattern) => pattern.source).join("|"),
  "g",
);

/**
 * Append a text with its emphasis, code and links.
 * @template {HTMLElement} E
 * @param {E} place
 * @param {string} text
 * @returns {E}
 */
function inline(place, text, depth = 0) {
  let at = 0;
  for (const found of depth < DEEPEST && text.length < LONGEST ? text.matchAll(INLINE) : []) {
    if (found.index > at) place.append(text.slice(at, found.index));
    at = found.index + found[0].length;
    const { escaped, code, image, label, target, bare, strong, strong2, struck, em, em2 } = /** @type {Record<string, string>} */ (found.groups);
    if (escaped) place.append(escaped);
    else if (code) place.appendChild(document.createElement("code")).append(code.length > 2 && /^ .* $/.test(code) ? code.slice(1, -1) : code);
    else if (target) place.append(...link(target, image ? `Image: ${label || target}` : label, depth));
    else if (bare) {
      const clean = bare.replace(/[.,;:!?]+$/, "");
      place.append(...link(clean, clean), bare.slice(clean.length));
    } else {
      const tag = strong || strong2 ? "strong" : struck ? "s" : "em";
      inline(place.appendChild(document.createElement(tag)), strong || strong2 || struck || em || em2, depth + 1);
    }
  }
  place.append(text.slice(at));
  return place;
}

/**
 * A link, followed by its host, because a label can pretend to lead elsewhere.
 * @param {string} target
 * @param {string} label
 * @param {number} depth
 * @returns {Node[]}
 */
export function link(target, label, depth = DEEPEST) {
  let host;
  try {
    const url = new URL(target);
    if (!["https:", "http:", "mailto:"].includes(url.protocol)) throw new Error("another protocol");
    host = url.host || url.pathname;
  } catch {
    return [document.createTextNode(label)];
  }
  const made = document.createElement("a");
  [made.href, made.target, made.rel, made.title] = [target, "_blank", "noopener noreferrer nofollow", target];
  inline(made, label || host, depth + 1);
  if (!label || label === target || label === host) return [made];
  const small = document.createElement("small");
  small.textContent = ` (${host})`;
  return [made, small];
}
