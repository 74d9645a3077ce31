// @ts-check
/** A run on paper: usage, timeline, every request's conversation, effects of hooks. Built for printing. */

import { card, requests } from "./conversation.js";
import { el, fill } from "./dom.js";
import { line, summary } from "./words.js";

const MOST = 400;

/**
 * @param {HTMLElement} place
 * @param {import("./run.js").RunView | null} view
 */
export function printable(place, view) {
  if (!view) {
    place.replaceChildren();
    return;
  }
  const { log } = view;
  const last = requests(log).at(-1);
  const refs = last ? log.refs(last.lists.input_messages) : [];
  const reply = last && log.rows.slice(last.index).find((row) => row.type === "PostReasoning" && row.call === last.call);
  const marked = log.rows.filter((row) => row.level || log.hooksOf(row).some((hook) => hook.changes?.length));
  const picture = /** @type {HTMLImageElement} */ (el("img", { alt: "The timeline" }));
  picture.src = view.timeline.canvas.toDataURL("image/png");
  fill(
    place,
    view.head.cloneNode(true),
    picture,
    el("h2", null, "Decisions, changes and errors"),
    marked.length ? el("ol", null, ...marked.slice(0, MOST).map((row) => el("li", null, `${row.type}, round ${row.iteration}: ${line(summary(log, row))}`))) : el("p", null, "None."),
    el("h2", null, "The conversation"),
    el("ol.messages", null, ...refs.slice(-MOST).map((ref) => card(log, ref, "")), reply ? card(log, reply.entry.fields.reasoning_result, "reply") : null),
  );
}
