// Two ways to a holder: HTTP, and the stub of a Durable Object. What is asked is not decided here.

import { HolderError } from "./errors.js";

/** @import { Ask, Fetch, HolderStub, Reply } from "../types/index.js" */

/**
 * @param {{ url: string, key: string, token?: string, fetch?: Fetch }} options
 * @returns {Ask}
 */
export function fetchHolder({ url, key, token, fetch }) {
  // A URL takes these for steps up and down its path, however they are written.
  if (key === "" || key === "." || key === "..") {
    throw new HolderError("invalid", `${JSON.stringify(key)} cannot be part of a URL`);
  }
  const address = `${url.replace(/\/+$/, "")}/v1/holders/${encodeURIComponent(key)}/messages`;
  /** @type {Record<string, string>} */
  const headers = { "content-type": "application/json" };
  if (token !== undefined) headers.authorization = `Bearer ${token}`;
  return async (message, { signal }) => {
    const send = fetch ?? globalThis.fetch;
    // Redirects are not followed: the token is for this server.
    const init = /** @type {const} */ ({ method: "POST", redirect: "manual" });
    const response = await send(address, { ...init, headers, body: JSON.stringify(message), signal });
    const text = await response.text();
    const said = parsed(text);
    if (response.ok) return /** @type {Reply} */ (said);
    throw refusal(said, response.status);
  };
}

/**
 * @param {HolderStub} stub
 * @returns {Ask}
 */
export function stubHolder(stub) {
  return async (message) => {
    /** @type {unknown} */
    let said;
    try {
      said = await stub.permits(message);
    } catch (error) {
      // An error loses all but its message on the way, so the refusal is that.
      const told = error instanceof Error ? parsed(error.message) : undefined;
      throw isRefusal(told) ? refusal(told, undefined) : error;
    }
    if (isRefusal(said)) throw refusal(said, undefined);
    return /** @type {Reply} */ (said);
  };
}

/** What another message would be refused with as well. */
const FINAL = new Set(["malformed", "invalid", "malformed_json", "malformed_request", "unauthorized", "held_elsewhere"]);

/**
 * @param {unknown} said
 * @param {number | undefined} status
 */
function refusal(said, status) {
  if (!isRefusal(said)) {
    const message = `the server answered with the status ${status}`;
    return new HolderError("http_status", message, { status, retryable: isPassing(status) });
  }
  const { code, message, field } = said.error;
  const retryable = status === undefined ? !FINAL.has(code) : isPassing(status);
  return new HolderError(code, message ?? code, { status, field, retryable });
}

/** @param {number | undefined} status */
function isPassing(status) {
  return status !== undefined && (status >= 500 || [408, 425, 429].includes(status));
}

/**
 * @param {unknown} said
 * @returns {said is { error: { code: string, message?: string, field?: string } }}
 */
function isRefusal(said) {
  const error = /** @type {{ error?: { code?: unknown } } | null | undefined} */ (said)?.error;
  return typeof error?.code === "string";
}

/** @param {string} text */
function parsed(text) {
  try {
    return /** @type {unknown} */ (JSON.parse(text));
  } catch {
    return undefined;
  }
}
