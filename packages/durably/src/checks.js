// What is refused before it is sent, and after it came.

import { HolderError } from "./errors.js";

/** @import { Reply } from "../types/index.js" */

const MAX_ID_BYTES = 256;

/**
 * @param {string} name
 * @param {string} value
 */
export function id(name, value) {
  const bytes = typeof value === "string" ? new TextEncoder().encode(value).length : 0;
  if (bytes < 1 || bytes > MAX_ID_BYTES) throw new RangeError(`${name} must have 1 to ${MAX_ID_BYTES} bytes`);
  return value;
}

/**
 * @param {string} name
 * @param {number} value
 * @param {number} least
 * @param {number} most
 */
export function whole(name, value, least, most) {
  if (Number.isSafeInteger(value) && value >= least && value <= most) return value;
  throw new RangeError(`${name} must be a whole number from ${least} to ${most}`);
}

/**
 * A reply of another type, or without its lists, would be misread.
 * @param {Reply["type"]} type
 * @param {Reply} reply
 */
export function checked(type, reply) {
  const lists = type === "grant" ? ["grants", "blocked", "grantResults"] : ["grantResults"];
  const read = /** @type {Record<string, unknown> | null | undefined} */ (/** @type {unknown} */ (reply));
  const isReply = read?.type === type && read.v === 1 && lists.every((list) => Array.isArray(read[list]));
  if (isReply) return reply;
  throw new HolderError("malformed_reply", `what came is no reply of the type ${type}`, { retryable: true });
}
