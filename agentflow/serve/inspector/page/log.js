// @ts-check
/** A run log: its entries and their references, rows for the list, spans for the timeline. */

/** @typedef {Record<string, any>} Entry */
/** @typedef {{before: MessageList | null, keep: number, add: string[]}} MessageList */
/**
 * @typedef {object} Row one line of the list: an event, or consecutive chunks
 * @property {number} index
 * @property {Entry} entry
 * @property {string} type
 * @property {string} call
 * @property {number} seq
 * @property {number} iteration
 * @property {number} time
 * @property {string} tool the id of the tool call that it is about
 * @property {string} level "", "veto", "error"
 * @property {number} count the number of its events
 * @property {Record<string, MessageList>} lists
 * @property {Group | null} group the group that it belongs to
 */
/**
 * @typedef {object} Group work that takes time: a call, a model's reply, a round of tools, a tool, a side call; its events and the work inside
 * @property {"call" | "model" | "round" | "tool" | "side"} kind
 * @property {string} name
 * @property {string} call
 * @property {string} source
 * @property {number} iteration
 * @property {Group | null} above
 * @property {(Row | Group)[]} items
 * @property {Row | null} first
 * @property {Row | null} last the event that ended it
 * @property {number} start
 * @property {number} end NaN while it runs
 * @property {number} work the start of the work itself, after the hooks
 * @property {number} done when it ends
 * @property {Entry[]} chunks
 * @property {string} state
 * @property {boolean} open whether its items are shown
 */

const LISTS = ["input_messages", "history"];

export class Log {
  constructor() {
    /** @type {Row[]} */
    this.rows = [];
    /** @type {Group[]} all groups but the rounds */
    this.spans = [];
    /** @type {Entry[]} */
    this.hooks = [];
    /** @type {Map<string, Entry>} */
    this.calls = new Map();
    /** @type {Map<string, any>} */
    this.messages = new Map();
    /** @type {Map<string, any>} */
    this.uses = new Map();
    /** @type {Map<string, any>} */
    this.results = new Map();
    /** @type {Map<string, any>} */
    this.tools = new Map();
    /** @type {Entry} */
    this.header = {};
    this.events = 0;
    this.begins = Infinity;
    this.ends = -Infinity;
    /** @type {Map<string, Entry[]>} */
    this._hooksAt = new Map();
    /** @type {Map<string, MessageList>} */
    this._last = new Map();
    /** @type {(Row | Group)[]} the top of the tree */
    this.tree = [];
    /** @type {Map<string, Group>} */
    this._groups = new Map();
    /** @type {Map<string, Group>} tools whose work has started */
    this._working = new Map();
    /** how many lines a killed process has left half written; they were left out */
    this.torn = 0;
    /** why the log cannot be read any further */
    this.problem = "";
  }

  /**
   * Take in lines of JSON; the server has checked them.
   * @param {string} text whole lines
   */
  feed(text) {
    for (const line of text.split("\n")) if (line) this.add(JSON.parse(line));
  }

  /** @param {Entry} entry */
  add(entry) {
    switch (entry.kind) {
      case "log":
        this.header = this.header.kind ? this.header : entry;
        break;
      case "message":
        this.messages.set(entry.ref, entry.message ?? { role: "?", content: [], digest: entry.digest });
        break;
      case "tool_use":
        this.uses.set(entry.ref, entry.value);
        break;
      case "tool_result":
        this.results.set(entry.ref, entry.value);
        break;
      case "tool":
        this.tools.set(entry.ref, entry.value);
        break;
      case "call":
        this.calls.set(entry.call, entry);
        this._seen(entry.time);
        this._openGroup(`call ${entry.call}`, "call", entry.agent || "call", entry, entry.parent ? this._groups.get(`tool ${entry.parent.call} ${entry.parent.tool_use}`) : undefined);
        break;
      case "hook":
        this._hook(entry);
        break;
      case "event":
        this._event(entry);
        break;
      case "chunks":
      case "pieces":
        this._pieces(entry);
        break;
      case "request":
        this._request(entry);
        break;
      case "answered":
        this._closeGroup(`side ${entry.call} ${entry.n}`, entry.time, entry.end === "done" ? "success" : entry.end, null);
        break;
      case "started":
        this._work(entry);
        break;
      case "finished":
        this._done(entry);
        break;
      case "interrupt":
        this._interrupted(this._row(entry, "Interrupt", 1));
        break;
    }
  }

  /** @param {Row} row */
  _interrupted(row) {
    row.level = "error";
    this._into(row, this._groups.get(`call ${row.call}`));
  }

  /** @param {number} time */
  _seen(time) {
    if (!time) return;
    if (time < this.begins) this.begins = time;
    if (time > this.ends) this.ends = time;
  }

  /**
   * @param {Entry} entry
   * @param {string} type
   * @param {number} count
   * @returns {Row}
   */
  _row(entry, type, count) {
    const row = {
      index: this.rows.length,
      entry,
      type,
      call: entry.call,
      seq: entry.seq ?? -1,
      iteration: entry.iteration ?? 0,
      time: entry.time ?? 0,
      tool: "",
      level: "",
      count,
      lists: {},
      group: null,
    };
    this.rows.push(row);
    this.events += count;
    this._seen(row.time);
    return row;
  }

  /** @param {Entry} entry */
  _event(entry) {
    const row = this._row(entry, entry.type, 1);
    const fields = entry.fields ?? {};
    for (const name of LISTS) if (fields[name]) row.lists[name] = this._list(entry.call, fields[name]);
    const use = fields.tool_use && this.uses.get(fields.tool_use);
    if (use) row.tool = use.id;
    if (entry.type === "Error" || entry.decision?.error) row.level = "error";
    else if (entry.decision?.verdict) row.level = "veto";
    const state = fields.tool_result && this.results.get(fields.tool_result)?.state;
    if (state && state !== "success") row.level = state === "denied" || state === "suspended" ? "veto" : "error";
    this._place(row, fields, use, state);
  }

  /**
   * Put an event into the tree: into the group that it begins, ends or belongs to.
   * @param {Row} row
   * @param {Record<string, any>} fields
   * @param {any} use
   * @param {string} state
   */
  _place(row, fields, use, state) {
    const { entry, type, call } = row;
    const above = this._groups.get(`call ${call}`);
    const model = `model ${call}`;
    const round = `round ${call}`;
    const tool = use ? `tool ${call} ${use.id}` : "";
    if (type === "PreReasoning") this._openGroup(model, "model", fields.model || "model", entry, above);
    else if (type === "PreToolRound") this._openGroup(round, "round", "tools", entry, above);
    else if (type === "PreActing") this._openGroup(tool, "tool", use?.name ?? "tool", entry, this._groups.get(round) ?? above);
    const key = type === "PreReasoning" || type === "PostReasoning" || (type === "Error" && fields.phase === "reasoning") ? model : type === "PreToolRound" || type === "PostToolRound" ? round : tool;
    this._into(row, this._groups.get(key) ?? this._groups.get(round) ?? above);
    if (type === "PostReasoning") this._closeGroup(model, row.time, entry.decision ? "veto" : "success", row);
    else if (type === "PostToolRound") this._closeGroup(round, row.time, "success", row);
    else if (type === "PostActing") this._closeGroup(tool, row.time, state ?? "success", row);
    else if (type === "Error" && fields.phase === "reasoning" && fields.fatal) this._closeGroup(model, row.time, "error", row);
    else if (type === "CallEnded") {
      for (const [name, group] of this._groups) if (group.call === call && group.kind !== "call") this._closeGroup(name, row.time, "interrupted", row);
      this._closeGroup(`call ${call}`, row.time, fields.outcome ?? "completed", row);
    }
  }

  /**
   * @param {string} key
   * @param {Group["kind"]} kind
   * @param {string} name
   * @param {Entry} entry
   * @param {Group | undefined} above
   */
  _openGroup(key, kind, name, entry, above) {
    const source = this.calls.get(entry.call)?.source ?? "";
    const group = { kind, name, call: entry.call, source, iteration: entry.iteration ?? 0, above: above ?? null, items: [], first: null, last: null, start: entry.time, end: NaN, work: NaN, done: NaN, chunks: [], state: "running", open: kind === "call" || kind === "round" };
    this._groups.set(key, group);
    if (kind !== "round") this.spans.push(group);
    if (kind !== "side") (above ? above.items : this.tree).push(group);
  }

  /** @param {string} key @param {number} time @param {string} state @param {Row | null} row */
  _closeGroup(key, time, state, row) {
    const group = this._groups.get(key);
    if (!group) return;
    this._groups.delete(key);
    group.last = row;
    group.end = time;
    group.state = state;
    this._seen(time);
  }

  /** @param {Row} row @param {Group | undefined} group */
  _into(row, group) {
    row.group = group ?? null;
    if (group) group.first ??= row;
    (group ? group.items : this.tree).push(row);
  }

  /**
   * The visible part of the tree, from top to bottom, with depths.
   * @returns {{item: Row | Group, depth: number}[]}
   */
  visible() {
    /** @type {{item: Row | Group, depth: number}[]} */
    const shown = [];
    /** @type {[(Row | Group)[], number, number][]} items, the next one, how deep */
    const stack = [[this.tree, 0, 0]];
    while (stack.length) {
      const top = stack[stack.length - 1];
      if (top[1] === top[0].length) {
        stack.pop();
        continue;
      }
      const item = top[0][top[1]++];
      shown.push({ item, depth: top[2] });
      if ("items" in item && item.open) stack.push([item.items, 0, top[2] + 1]);
    }
    return shown;
  }

  /** @param {Entry} entry */
  _hook(entry) {
    this.hooks.push(entry);
    const key = `${entry.call} ${entry.seq}`;
    const others = this._hooksAt.get(key);
    if (others) others.push(entry);
    else this._hooksAt.set(key, [entry]);
    for (const change of entry.changes ?? []) {
      if (!LISTS.includes(change.field)) continue;
      change.lists = { before: this._list(entry.call, change.before), after: this._list(entry.call, change.after) };
    }
    this._seen(entry.time);
  }

  /** @param {Entry} entry */
  _pieces(entry) {
    const model = entry.kind === "chunks";
    const row = this._row(entry, model ? "ReasoningChunk" : "ActingChunk", entry.pieces?.length ?? 0);
    const id = model ? "" : (this.uses.get(entry.tool_use)?.id ?? entry.tool_use);
    row.tool = id;
    const group = this._groups.get(model ? `model ${entry.call}` : `tool ${entry.call} ${id}`);
    this._into(row, group ?? this._groups.get(`call ${entry.call}`));
    group?.chunks.push(entry);
    const last = entry.at?.[entry.at.length - 1];
    if (last !== undefined) this._seen(entry.time + last / 1000);
  }

  /** @param {Entry} entry */
  _request(entry) {
    if (entry.messages) entry.list = this._list(entry.call, entry.messages);
    if (entry.side) {
      this._openGroup(`side ${entry.call} ${entry.n}`, "side", entry.side, entry, undefined);
      return;
    }
    const group = this._groups.get(`model ${entry.call}`);
    if (group && Number.isNaN(group.work)) group.work = entry.time;
    if (group?.first) (group.first.entry.requests ??= []).push(entry);
  }

  /** @param {Entry} entry */
  _work(entry) {
    const group = this._groups.get(`tool ${entry.call} ${this.uses.get(entry.tool_use)?.id ?? entry.tool_use}`);
    if (!group) return;
    group.work = entry.time;
    this._working.set(`${entry.call} ${entry.n}`, group);
  }

  /** @param {Entry} entry */
  _done(entry) {
    const key = `${entry.call} ${entry.n}`;
    const group = this._working.get(key);
    this._working.delete(key);
    if (group) group.done = entry.time;
  }

  // ---- references of entries

  /**
   * @param {string} call
   * @param {any} data
   * @returns {MessageList}
   */
  _list(call, data) {
    const keep = data?.keep ?? 0;
    const list = { before: keep ? (this._last.get(call) ?? null) : null, keep, add: data?.add ?? [] };
    this._last.set(call, list);
    return list;
  }

  /**
   * The refs of a list of messages: the kept ones of the previous list, then its own.
   * @param {MessageList} list
   * @returns {string[]}
   */
  refs(list) {
    const parts = [];
    let most = Infinity;
    for (let at = /** @type {MessageList | null} */ (list); at && most > 0; at = at.before) {
      if (most > at.keep) parts.push(most - at.keep < at.add.length ? at.add.slice(0, most - at.keep) : at.add);
      most = Math.min(most, at.keep);
    }
    return parts.reverse().flat();
  }

  /**
   * How many messages a list has.
   * @param {MessageList | undefined} list
   */
  count(list) {
    return list ? list.keep + list.add.length : 0;
  }

  /**
   * The effects of hooks on an event.
   * @param {Row} row
   */
  hooksOf(row) {
    return (row.seq >= 0 && this._hooksAt.get(`${row.call} ${row.seq}`)) || [];
  }

  /** @param {Row} row */
  source(row) {
    return this.calls.get(row.call)?.source ?? "";
  }

  /** @param {string} call */
  agent(call) {
    return this.calls.get(call)?.agent ?? "";
  }

  /** The call at the top that came last. */
  get top() {
    let found;
    for (const call of this.calls.values()) if (!call.parent && (found === undefined || call.time >= found.time)) found = call;
    return found;
  }
}
