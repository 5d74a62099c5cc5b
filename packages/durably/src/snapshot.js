// Reads published texts. The checksum is not verified: JavaScript has no xxh3, and it protects against
// damage only.

import { SnapshotError } from "./errors.js";

/** @import { Member, PublishedContent } from "../types/index.js" */

/** The newest schema that is read here. */
const SCHEMA = 1;

/**
 * @param {string} group
 * @param {string} text
 * @returns {PublishedContent}
 */
export function readSnapshot(group, text) {
  /** @type {unknown} */
  let read;
  try {
    read = JSON.parse(text);
  } catch (error) {
    throw malformed(error instanceof Error ? error.message : String(error));
  }
  const envelope = object(read, "the text");
  const schema = whole(envelope, "schema");
  if (schema > SCHEMA) {
    const problem = `its schema is ${schema}, and this package reads up to ${SCHEMA}: update it`;
    throw new SnapshotError("snapshot_newer_schema", problem);
  }
  if (!/^[0-9a-f]{16}$/.test(string(envelope, "checksum"))) throw malformed("checksum is none");
  const content = object(envelope.content, "content");
  const incarnation = object(content.incarnation, "incarnation");
  /** @type {PublishedContent} */
  const published = {
    group: string(content, "group"),
    version: whole(content, "version"),
    coordinator: string(content, "coordinator"),
    incarnation: { createdAt: whole(incarnation, "createdAt"), nonce: string(incarnation, "nonce") },
  };
  if (published.group !== group) {
    const problem = `it is about the group ${JSON.stringify(published.group)}`;
    throw new SnapshotError("snapshot_other_group", problem);
  }
  if (content.members !== undefined && content.members !== null) {
    if (!Array.isArray(content.members)) throw malformed("members is no list");
    published.members = content.members.map(member);
  }
  return published;
}

/**
 * @param {unknown} value
 * @returns {Member}
 */
function member(value) {
  const read = object(value, "a member");
  const state = string(read, "state");
  if (state !== "active" && state !== "draining") throw malformed(`state is ${JSON.stringify(state)}`);
  /** @type {Member} */
  const found = { id: string(read, "id"), state, joinedAt: whole(read, "joinedAt") };
  if (read.locationHint !== undefined && read.locationHint !== null) {
    found.locationHint = string(read, "locationHint");
  }
  if (read.meta !== undefined && read.meta !== null) found.meta = read.meta;
  return found;
}

/**
 * @param {unknown} value
 * @param {string} what
 */
function object(value, what) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw malformed(`${what} is no object`);
  }
  return /** @type {Record<string, unknown>} */ (value);
}

/**
 * @param {Record<string, unknown>} from
 * @param {string} field
 */
function string(from, field) {
  const value = from[field];
  if (typeof value !== "string") throw malformed(`${field} is no text`);
  return value;
}

/**
 * @param {Record<string, unknown>} from
 * @param {string} field
 */
function whole(from, field) {
  const value = from[field];
  if (typeof value !== "number" || !Number.isSafeInteger(value) || value < 0) {
    throw malformed(`${field} is no whole number`);
  }
  return value;
}

/** @param {string} problem */
function malformed(problem) {
  return new SnapshotError("snapshot_malformed", `it is not a published snapshot: ${problem}`);
}
