// @ts-check
/** A client of the server's routes, as the docs list them in serve-events.md. It has no part of the page: copy it for a page of your own. */

/** A refused request; `code` is for programs, the message for people. */
export class Refused extends Error {
  /** @param {number} status @param {string} code @param {string} message */
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export class Api {
  /** @param {() => string | null} token returns the bearer token of the user, if the server needs one */
  constructor(token) {
    this.token = token;
  }

  /** @param {Record<string, string>} more @returns {Record<string, string>} */
  headers(more) {
    const token = this.token();
    return token ? { ...more, Authorization: `Bearer ${token}` } : more;
  }

  /**
   * Make a request and return its JSON.
   * @param {string} method
   * @param {string} path
   * @param {object} [body]
   * @returns {Promise<any>}
   */
  async ask(method, path, body) {
    const headers = this.headers(body ? { "Content-Type": "application/json" } : {});
    const response = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
    const text = await response.text();
    if (response.ok) return text ? JSON.parse(text) : null;
    let said = { code: "failed", message: `The server answered with status ${response.status}.` };
    try {
      said = JSON.parse(text).error ?? said;
    } catch {
      // not ours, such as a proxy's page
    }
    throw new Refused(response.status, said.code, said.message);
  }

  /**
   * Yield the events of a run until its last end (a decision continues it), each with its `position`. After a lost connection it goes
   * on where it was: no event is lost or repeated.
   * @param {string} run
   * @param {string} last the position of the last event that is known; empty for all events
   * @param {AbortSignal} signal ends it
   * @param {(connected: boolean) => void} report is called when the connection is lost, and when it is back
   * @returns {AsyncGenerator<any>}
   */
  async *events(run, last, signal, report) {
    for (let wait = 250; !signal.aborted; wait = Math.min(wait * 2, 5000)) {
      try {
        const headers = this.headers(last ? { "Last-Event-ID": last } : {});
        const response = await fetch(`runs/${encodeURIComponent(run)}/events`, { headers, signal });
        if (response.status === 204 || response.status === 404 || response.status === 401) return;
        if (!response.ok) throw new Error(String(response.status));
        report(true);
        let end = null;
        for await (const { id, data } of messages(/** @type {any} */ (response.body))) {
          const event = JSON.parse(data);
          last = id || last;
          wait = 250;
          end = event.type === "end" ? { ...event, position: last } : null;
          if (!end) yield { ...event, position: last };
        }
        if (end) {
          yield end;
          return;
        }
      } catch {
        if (signal.aborted) return;
        report(false);
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }
}

/**
 * Yield the messages of a stream of server-sent events; comments are skipped.
 * @param {ReadableStream<BufferSource>} body
 */
async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (left + value).split("\n\n");
      left = parts.pop() ?? "";
      for (const part of parts) {
        const fields = Object.fromEntries(part.split("\n").map((line) => [line.split(": ", 1)[0], line.slice(line.indexOf(": ") + 2)]));
        if (fields.data) yield { id: fields.id, data: fields.data };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
