// Errors with a stable `code`. Where they come from is decided elsewhere.

/** @import { BlockedReason, SnapshotErrorCode } from "../types/index.js" */

/** Why there is no answer of a holder, or no permit. */
export class HolderError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   * @param {{ retryable?: boolean, status?: number, field?: string, reason?: BlockedReason, cause?: unknown }} [details]
   */
  constructor(code, message, { retryable = false, status, field, reason, cause } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = "HolderError";
    /** @readonly */
    this.code = code;
    /** @readonly */
    this.retryable = retryable;
    /** @readonly */
    this.status = status;
    /** @readonly */
    this.field = field;
    /** @readonly */
    this.reason = reason;
  }

  /**
   * Whatever a transport rejected with.
   * @param {unknown} error
   */
  static of(error) {
    if (error instanceof HolderError) return error;
    const text = error instanceof Error ? error.message : String(error);
    return new HolderError("unreachable", `the holder could not be reached: ${text}`, {
      retryable: true,
      cause: error,
    });
  }
}

/** Why a published text cannot be used. */
export class SnapshotError extends Error {
  /**
   * @param {SnapshotErrorCode} code
   * @param {string} message
   */
  constructor(code, message) {
    super(message);
    this.name = "SnapshotError";
    /** @readonly */
    this.code = code;
  }
}
