/** A client without storage: docs/semaphore.md, "When something is lost". */

import type { BlockedReason, Message, Reply } from "./protocol.js";

/**
 * Brings a message to the holder and its reply back. Rejects with a {@link HolderError} if it knows
 * why; anything else that it rejects with counts as `unreachable`. `signal` is aborted when the
 * client waits no longer.
 */
export type Ask = (message: Message, options: { signal: AbortSignal }) => Promise<Reply>;

/** What {@link fetchHolder} uses of `fetch`, so that any of them fits. */
export type Fetch = (
  url: string,
  init: { method: "POST"; headers: Record<string, string>; body: string; signal: AbortSignal; redirect: "manual" },
) => Promise<{ ok: boolean; status: number; text(): Promise<string> }>;

/** Asks the holder of `key` at a `durably serve`. */
export declare function fetchHolder(options: {
  /** The server's address, such as `http://10.0.0.5:7070`. */
  url: string;
  /** Whose permits: the account. */
  key: string;
  /** The bearer token, if the server asks for one. */
  token?: string;
  /** The global one if not given. */
  fetch?: Fetch;
}): Ask;

/**
 * A stub of a Durable Object with the method `permits`. It refuses by an error whose message is an
 * `ApiFailure` as JSON.
 */
export interface HolderStub {
  permits(message: Message): Promise<Reply>;
}

/** Asks a holder through a stub of its Durable Object, by RPC. */
export declare function stubHolder(stub: HolderStub): Ask;

/**
 * Why there is no answer, or no permit. `code` is the holder's own for what it refuses
 * (docs/http.md), or one of
 * - `not_granted`: nothing was free in time; `reason` says why;
 * - `unreachable`, `timeout`: no answer came;
 * - `malformed_reply`: what came is no reply to the message;
 * - `http_status`: the server answered with a status and nothing that explains it;
 * - `closed`: the client was closed.
 */
export declare class HolderError extends Error {
  constructor(
    code: string,
    message: string,
    details?: { retryable?: boolean; status?: number; field?: string; reason?: BlockedReason; cause?: unknown },
  );
  readonly code: string;
  /** Whether the same message may be answered later. */
  readonly retryable: boolean;
  /** The HTTP status, if there was one. */
  readonly status?: number;
  /** The field of the message to blame. */
  readonly field?: string;
  /** Why the group got nothing, with `not_granted`. */
  readonly reason?: BlockedReason;
}

/** Permits that are held. */
export interface Permit {
  readonly group: string;
  /** How many: from 1 up to as many as were asked for. */
  readonly permits: number;
  /**
   * Aborted when the permits are no longer sure: the holder has not answered for three quarters of
   * `clientTtlMs`, or has taken them back. The work must stop then; call `release` all the same.
   */
  readonly signal: AbortSignal;
  /**
   * Gives them back, which is said until the holder has answered. The promise resolves then, or
   * after `clientTtlMs`; it never rejects, and a second call changes nothing.
   */
  release(): Promise<void>;
}

export interface HolderClientOptions {
  ask: Ask;
  /**
   * Names this client at the holder; random if not given. It must be another one in every process
   * and after every restart: what an earlier one held comes back by its own `clientTtlMs`.
   */
  clientId?: string;
  /**
   * After so long a silence the holder takes back all that this client holds; 60,000 if not given.
   * While permits are held, the client reports every third of it.
   */
  clientTtlMs?: number;
  /** How long to wait for an answer beyond what the request itself may wait; 10,000 if not given. */
  answerTimeoutMs?: number;
}

export interface AcquireOptions {
  group: string;
  /** How many at most, 1 if not given. The holder gives what it has: from 1 up to so many. */
  permits?: number;
  /** How long to wait if the first round gives nothing, in milliseconds; 0 if not given. */
  waitMs?: number;
  /** Gives up waiting. */
  signal?: AbortSignal;
}

/** Asks one holder for permits. Nothing is stored: what is held ends with the process. */
export declare class HolderClient {
  constructor(options: HolderClientOptions);
  readonly clientId: string;
  /**
   * Waits for permits, claims them and resolves once the holder has confirmed it.
   *
   * @throws {HolderError} `not_granted` after `waitMs`, or why the holder did not answer; what the
   * signal was aborted with.
   */
  acquire(options: AcquireOptions): Promise<Permit>;
  /**
   * Gives back all that is held, once the holder has answered. Whoever waits is refused, `closed`.
   * Waits at most `clientTtlMs`: after that the holder has taken them back by itself.
   */
  close(): Promise<void>;
}
