// @ts-check
/** Entries as text: one line for the list, more for searching and comparing. */

import { duration, pretty, short, thousands } from "./dom.js";

/** @typedef {import("./log.js").Log} Log */
/** @typedef {import("./log.js").Row} Row */

/**
 * The chunks of a reply as text, followed by each call, after an arrow, with its raw arguments.
 * @param {any[]} chunks
 */
export function chunksText(chunks) {
  let result = "";
  let calls = false;
  for (const chunk of chunks) {
    const text = typeof chunk === "string" ? chunk : (chunk.text ?? chunk.thinking ?? "");
    if (text) {
      result += calls ? ` ${text}` : text;
      calls = false;
    }
    for (const use of typeof chunk === "string" ? [] : (chunk.tool_uses ?? [])) {
      if (use.name) result += `${result ? " " : ""}→ ${use.name} `;
      result += use.arguments ?? "";
      calls = true;
    }
  }
  return result;
}

/**
 * The text of a message, with its calls and results.
 * @param {Log} log
 * @param {string} ref
 */
export function messageText(log, ref) {
  const message = log.messages.get(ref);
  return message ? blocks(log, message).map((block) => blockText(block)).join("\n") : `(message ${ref} is not in the log)`;
}

/**
 * The blocks of a message, calls and results filled in.
 * @param {Log} log
 * @param {any} message
 * @returns {any[]}
 */
export function blocks(log, message) {
  return (message.content ?? []).map((/** @type {any} */ block) => {
    if (!block.ref) return block;
    const table = block.type === "tool_use" ? log.uses : log.results;
    return { type: block.type, ...(table.get(block.ref) ?? { name: block.ref }) };
  });
}

/** @param {any} block */
export function blockText(block) {
  switch (block.type) {
    case "text":
      return block.text ?? "";
    case "thinking":
      return block.thinking ?? block.text ?? "";
    case "tool_use":
      return callText(block);
    case "tool_result":
      return resultText(block);
    default:
      return `[${block.media_type ?? block.type ?? "data"}]`;
  }
}

/** @param {any} use */
export function callText(use) {
  if (!use) return "";
  if (use.input === undefined) return `${use.name}(${use.raw ?? ""})`;
  const given = Object.entries(use.input).map(([name, value]) => `${name}=${typeof value === "string" ? JSON.stringify(value) : pretty(value)}`);
  return `${use.name}(${given.join(", ")})`;
}

/** @param {any} result */
export function resultText(result) {
  if (!result) return "";
  if (typeof result.content === "string") return result.content;
  return (result.content ?? []).map(blockText).join("\n");
}

/** @param {any} usage */
export function usageText(usage) {
  if (!usage) return "";
  return `${thousands(usage.input_tokens ?? 0)} in, ${thousands(usage.output_tokens ?? 0)} out`;
}

/** @param {any} verdict */
export function verdictText(verdict) {
  if (!verdict) return "";
  const { verdict: name, ...rest } = verdict;
  const first = Object.values(rest).find((value) => value !== null && value !== "");
  return first === undefined ? name : `${name}: ${typeof first === "string" ? first : pretty(first)}`;
}

/**
 * A row as text.
 * @param {Log} log
 * @param {Row} row
 * @returns {string}
 */
export function summary(log, row) {
  const { entry } = row;
  const fields = entry.fields ?? {};
  const decided = entry.decision ? `⊘ ${entry.decision.hook}: ${decisionText(entry.decision)}  ` : "";
  switch (row.type) {
    case "PreCall":
      return decided + messageText(log, row.lists.input_messages?.add.at(-1) ?? "");
    case "PreReasoning":
      return `${decided}${fields.model ?? ""} · ${plural(log.count(row.lists.input_messages), "message")}, ${plural(fields.tools?.length ?? 0, "tool")}${fields.purpose === "summary" ? " · summary" : ""}`;
    case "ReasoningChunk":
      return `${row.count > 1 ? `${plural(row.count, "chunk")} · ` : ""}${chunksText(entry.pieces.slice(0, 40))}`;
    case "PostReasoning":
      return `${decided}${messageText(log, fields.reasoning_result)} · ${usageText(fields.usage)}`;
    case "PreToolRound":
      return decided + (fields.tool_uses ?? []).map((/** @type {string} */ ref) => log.uses.get(ref)?.name ?? ref).join(", ");
    case "PreActing":
      return decided + callText(log.uses.get(fields.tool_use));
    case "ActingChunk":
      return `${log.uses.get(entry.tool_use)?.name ?? ""}: ${row.count > 1 ? `${plural(row.count, "chunk")} · ` : ""}${entry.pieces.slice(0, 10).map(pretty).join(" ")}`;
    case "PostActing": {
      const result = log.results.get(fields.tool_result);
      return `${decided}${result?.name ?? ""}${result && result.state !== "success" ? ` (${result.state})` : ""}: ${resultText(result)}`;
    }
    case "PostToolRound":
      return decided + (fields.tool_results ?? []).map((/** @type {string} */ ref) => log.results.get(ref)?.state ?? "").join(", ");
    case "PostCall":
      return decided + messageText(log, fields.final_message);
    case "Error":
      return `${decided}${fields.hook ? `hook ${fields.hook}: ` : ""}${errorText(fields.error)}`;
    case "CallEnded":
      return `${fields.outcome ?? "completed"}${fields.usage ? ` · ${usageText(fields.usage)}` : ""}${fields.error ? ` · ${errorText(fields.error)}` : ""}`;
    case "MessagesAdded":
      return `${fields.origin ?? ""}: ${(fields.messages ?? []).map((/** @type {string} */ ref) => messageText(log, ref)).join(" | ")}`;
    case "Interrupt":
      return `${entry.how ?? "interrupt"} ${entry.reason ?? ""}`;
    default:
      return decided + pretty(fields);
  }
}

/**
 * The result of a group, on one line.
 * @param {Log} log
 * @param {import("./log.js").Group} group
 */
export function groupText(log, group) {
  const { first, last } = group;
  if (group.kind === "round") return (first?.entry.fields?.tool_uses ?? []).map((/** @type {string} */ ref) => log.uses.get(ref)?.name ?? ref).join(", ");
  if (group.kind === "model") return last ? summary(log, last) : first ? summary(log, first) : "";
  if (group.kind === "tool") {
    const use = callText(log.uses.get(first?.entry.fields?.tool_use));
    return last && last.type === "PostActing" ? `${use}  ⇒  ${summary(log, last)}` : use;
  }
  return first?.type === "PreCall" ? summary(log, first) : "";
}

/** @param {any} decision */
export function decisionText(decision) {
  return decision.verdict ? verdictText(decision.verdict) : `failed: ${errorText(decision.error)}`;
}

/** @param {any} error */
export function errorText(error) {
  if (!error) return "";
  return typeof error === "string" ? error : `${error.type ?? "Error"}: ${error.message ?? ""}`;
}

/**
 * The duration of a row's work as text.
 * @param {Row} row
 */
export function took(row) {
  const ms = row.entry.fields?.duration_ms;
  return ms === undefined ? "" : duration(ms / 1000);
}

/**
 * The text that a search looks through.
 * @param {Log} log
 * @param {Row} row
 */
export function searchable(log, row) {
  const { entry } = row;
  let found = `${row.type} ${log.agent(row.call)} ${log.source(row)} ${summary(log, row)}`;
  if (entry.pieces) found += ` ${entry.kind === "chunks" ? chunksText(entry.pieces) : entry.pieces.map(pretty).join("")}`;
  for (const hook of log.hooksOf(row)) found += ` ${hook.hook} ${verdictText(hook.verdict)}`;
  return found.toLowerCase();
}

/**
 * A field's value as text, for reading and for comparing.
 * @param {Log} log
 * @param {string} name
 * @param {any} value
 * @param {any} [list] if it is a list of messages
 * @returns {string}
 */
export function fieldText(log, name, value, list) {
  if (list) return log.refs(list).map((ref) => saidBy(log, ref)).join("\n\n");
  if (typeof value === "string") {
    if (log.messages.has(value) && /message|result/.test(name) && !name.startsWith("tool_")) return saidBy(log, value);
    if (name.endsWith("tool_use") && log.uses.has(value)) return toolUseText(log.uses.get(value));
    if (name.endsWith("tool_result") && log.results.has(value)) return toolResultText(log.results.get(value));
    return value;
  }
  if (Array.isArray(value) && value.every((one) => typeof one === "string")) {
    if (name === "tools") return value.map((ref) => pretty(log.tools.get(ref) ?? ref)).join("\n");
    if (name === "tool_uses") return value.map((ref) => toolUseText(log.uses.get(ref) ?? { name: ref })).join("\n\n");
    if (name === "tool_results") return value.map((ref) => toolResultText(log.results.get(ref) ?? { name: ref })).join("\n\n");
    if (name === "messages") return value.map((ref) => saidBy(log, ref)).join("\n\n");
  }
  return pretty(value);
}

/**
 * @param {Log} log
 * @param {string} ref
 */
function saidBy(log, ref) {
  return `${log.messages.get(ref)?.role ?? "?"}: ${messageText(log, ref)}`;
}

/** @param {any} use */
function toolUseText(use) {
  return `${use.name}\n${use.input === undefined ? (use.raw ?? "") : pretty(use.input)}`;
}

/** @param {any} result */
function toolResultText(result) {
  return `${result.name} (${result.state})\n${resultText(result)}`;
}

/**
 * The part of a run that an event belongs to.
 * @param {string} type
 */
export function phase(type) {
  if (type.includes("Reasoning")) return "model";
  if (type.includes("Acting") || type.includes("ToolRound")) return "tool";
  return type === "Error" || type === "Interrupt" ? "bad" : "call";
}

/** @param {number} count @param {string} thing */
export function plural(count, thing) {
  return `${thousands(count)} ${thing}${count === 1 ? "" : "s"}`;
}

/** @param {string} text */
export function line(text) {
  return short(text, 240);
}

const SHOWN_WAIT_MS = 500;

/**
 * The time that a tool call waited (for an approval, a lock, a reader) as text; "" if it is very short.
 * @param {Row | null} row
 */
export function waited(row) {
  const ms = row?.entry.fields?.waited_ms ?? 0;
  return ms >= SHOWN_WAIT_MS ? duration(ms / 1000) : "";
}

/**
 * The duration of a group as text, of a tool without its waits.
 * @param {import("./log.js").Group} group
 */
export function groupTook(group) {
  if (Number.isNaN(group.end)) return "…";
  return group.last && waited(group.last) ? took(group.last) : duration(group.end - group.start);
}
