// @ts-check
/** Requests to the server that the page came from. */

/** @param {Response} response */
async function checked(response) {
  if (!response.ok) throw new Error(`${response.status}: ${(await response.text()).slice(0, 300)}`);
  return response;
}

/** @param {string} path @returns {Promise<any>} */
export async function get(path) {
  return (await checked(await fetch(path))).json();
}

/** The runs, and how many logs the server has not read yet. */
export async function listed() {
  const response = await checked(await fetch("api/runs"));
  return { runs: await response.json(), left: Number(response.headers.get("x-left")) };
}

/** @param {string} path */
export async function text(path) {
  return (await checked(await fetch(path))).text();
}

/**
 * A growing text, and its current end.
 * @param {string} path
 */
export async function textAndEnd(path) {
  const response = await checked(await fetch(path));
  const { headers } = response;
  return { body: await response.text(), end: headers.get("x-end") ?? "0", torn: Number(headers.get("x-torn")) };
}

/** @param {string} path @param {any} body @returns {Promise<any>} */
export async function post(path, body) {
  const response = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  return (await checked(response)).json();
}

/**
 * Receive news while the page is open; the browser restores a broken connection.
 * @param {string} path
 * @param {(news: {lines?: string, problem?: string, runs?: boolean, pauses?: any[]}) => void} receive
 * @returns {() => void} ends it
 */
export function follow(path, receive) {
  const source = new EventSource(path);
  source.addEventListener("message", (event) => receive(JSON.parse(event.data)));
  return () => source.close();
}
