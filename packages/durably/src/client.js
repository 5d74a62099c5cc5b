// Asks one holder for permits, claims them, keeps them alive and gives them back.
//
// Decided here: what is asked and reported when, and what an answer means. Nothing is stored, so each
// message says for how long this client may be silent. Requests carry no reports: one that reports is
// answered by its first round and would not wait. All waiting callers share the one open request; a
// newer one takes its place under the same id. Each grant is claimed in full, and what nobody waits
// for any more is released in the same report.
// Not decided here: how a message travels.

import { checked, id, whole } from "./checks.js";
import { HolderError } from "./errors.js";
import { backoff, sleep, steady, unref } from "./time.js";

/**
 * @import { AcquireOptions, Ask, BlockedReason, GrantReply, GrantReport, GrantResult, HolderClientOptions, Message, Permit, Reply, SyncReply } from "../types/index.js"
 */

const MAX_LIST_LENGTH = 4_096;
const MAX_TTL_MS = 2 ** 31 - 1;
/** A request that is lost is not missed sooner than its wait ends, so long waits are asked for in parts. */
const MAX_WAIT_MS = 20_000;
/** A sync is answered at once, and a claim has a deadline. */
const MAX_SYNC_TIMEOUT_MS = 5_000;
/** No request takes another's place sooner, so that a burst of callers shares one. */
const MIN_GAP_MS = 50;

/**
 * Who waits for permits.
 * @typedef {object} Waiter
 * @property {string} group
 * @property {number} permits
 * @property {number} queuedAt on the wall clock, for the wire
 * @property {number} until on the steady clock
 * @property {HolderError | undefined} told why there was nothing, once that was said
 * @property {boolean} settled
 * @property {(permit: Permit) => void} resolve
 * @property {(error: unknown) => void} reject
 */

/**
 * A grant, from the reply that brought it until its end is confirmed.
 * @typedef {object} Held
 * @property {string} id
 * @property {string} group
 * @property {number} permits all of them are claimed
 * @property {number} released
 * @property {boolean} confirmed the claim is
 * @property {boolean} dirty something is to be said about it
 * @property {{ waiter: Waiter, permits: number }[]} assigned who get it once the claim is confirmed
 * @property {Set<AbortController>} handles of those who have it
 * @property {{ mark: number, resolve: () => void }[]} releasing who wait for `released` to be answered
 */

/**
 * A request that is out.
 * @typedef {object} Sent
 * @property {string} requestId
 * @property {number} number
 * @property {Set<Waiter>} covers
 */

export class HolderClient {
  /** @type {Ask} */ #ask;
  /** @type {number} */ #ttl;
  /** @type {number} */ #answerTimeout;
  #closed = false;
  #stopped = false;

  /** @type {Waiter[]} */ #waiters = [];
  /** @type {string | undefined} the same until a reply gives something */ #requestId;
  /** The highest that was used or seen. */
  #number = 0;
  /** @type {Sent | undefined} the newest, while its answer matters */ #open;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #asking;
  /** When the holder wants to be asked again, and no sooner. */
  #notBefore = 0;
  #failures = 0;
  /** @type {Set<AbortController>} */ #requests = new Set();

  /** @type {Map<string, Held>} */ #grants = new Map();
  #reporting = false;
  /** When what was sent that was answered last. */
  #heardAt = 0;
  /** @type {ReturnType<typeof setInterval> | undefined} */ #renewal;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #silence;
  /** @type {(() => void)[]} */ #emptied = [];

  /** @param {HolderClientOptions} options */
  constructor({ ask, clientId, clientTtlMs = 60_000, answerTimeoutMs = 10_000 }) {
    if (typeof ask !== "function") throw new TypeError("ask must be a function");
    this.#ask = ask;
    /** @readonly */
    this.clientId = id("clientId", clientId ?? crypto.randomUUID());
    this.#ttl = whole("clientTtlMs", clientTtlMs, 1, MAX_TTL_MS);
    this.#answerTimeout = whole("answerTimeoutMs", answerTimeoutMs, 1, MAX_TTL_MS);
  }

  /**
   * @param {AcquireOptions} options
   * @returns {Promise<Permit>}
   */
  async acquire({ group, permits = 1, waitMs = 0, signal }) {
    id("group", group);
    whole("permits", permits, 1, Number.MAX_SAFE_INTEGER);
    whole("waitMs", waitMs, 0, MAX_TTL_MS);
    signal?.throwIfAborted();
    if (this.#closed) throw closed();
    return new Promise((resolve, reject) => {
      const end = () => {
        waiter.settled = true;
        clearTimeout(timer);
        signal?.removeEventListener("abort", abort);
        const place = this.#waiters.indexOf(waiter);
        if (place >= 0) this.#waiters.splice(place, 1);
      };
      /** @type {Waiter} */
      const waiter = {
        group,
        permits,
        queuedAt: Date.now(),
        until: steady() + waitMs,
        told: undefined,
        settled: false,
        resolve: (permit) => (end(), resolve(permit)),
        reject: (error) => (end(), reject(error)),
      };
      const abort = () => waiter.reject(signal?.reason);
      signal?.addEventListener("abort", abort, { once: true });
      // Whose time is up before the first answer is told by that.
      const timer = setTimeout(() => this.#endWait(waiter), waitMs);
      this.#waiters.push(waiter);
      this.#schedule();
    });
  }

  async close() {
    this.#closed = true;
    clearTimeout(this.#asking);
    this.#asking = undefined;
    for (const request of this.#requests) request.abort(closed());
    for (const waiter of [...this.#waiters]) waiter.reject(closed());
    for (const held of this.#grants.values()) {
      for (const { waiter } of held.assigned) if (!waiter.settled) waiter.reject(closed());
      for (const handle of held.handles) handle.abort(closed());
      held.released = held.permits;
      held.dirty = true;
    }
    void this.#report();
    if (this.#grants.size > 0) {
      /** @type {ReturnType<typeof setTimeout> | undefined} */
      let timer;
      await new Promise((/** @type {(value?: undefined) => void} */ resolve) => {
        this.#emptied.push(resolve);
        timer = setTimeout(resolve, this.#ttl);
      });
      clearTimeout(timer);
    }
    this.#stopped = true;
    clearInterval(this.#renewal);
    clearTimeout(this.#silence);
    for (const held of this.#grants.values()) for (const { resolve } of held.releasing) resolve();
  }

  // ---- Asking

  /** Has a request sent as soon as it may be, if somebody waits whom the open one does not name. */
  #schedule() {
    const isCovered = this.#waiters.every((waiter) => this.#open?.covers.has(waiter));
    if (this.#closed || this.#asking !== undefined || isCovered) return;
    const delay = Math.max(0, this.#notBefore - steady());
    this.#asking = setTimeout(() => {
      this.#asking = undefined;
      if (this.#waiters.length > 0) void this.#request();
    }, delay);
  }

  async #request() {
    const now = steady();
    this.#requestId ??= crypto.randomUUID();
    this.#number = Math.max(Date.now(), this.#number + 1);
    const number = this.#number;
    const sent = { requestId: this.#requestId, number, covers: new Set(this.#waiters) };
    const longest = Math.max(...this.#waiters.map((waiter) => waiter.until - now));
    // A client counts as silent for as long as its request has waited when that is answered.
    const waitMs = Math.floor(Math.min(MAX_WAIT_MS, this.#ttl / 2, Math.max(0, longest)));
    this.#open = sent;
    this.#notBefore = now + MIN_GAP_MS;
    try {
      const reply = await this.#send(
        "grant",
        {
          type: "request",
          v: 1,
          clientId: this.clientId,
          demand: this.#demand(),
          grants: [],
          sentAt: Date.now(),
          requestId: sent.requestId,
          requestNumber: number,
          ...(waitMs > 0 && { waitMs }),
          clientTtlMs: this.#ttl,
        },
        waitMs + this.#answerTimeout,
      );
      this.#failures = 0;
      this.#answered(sent, /** @type {GrantReply} */ (reply), now);
    } catch (error) {
      this.#unanswered(sent, HolderError.of(error));
    }
    this.#schedule();
  }

  /** What is waited for, by group. */
  #demand() {
    /** @type {Map<string, { group: string, count: number, oldestAt: number }>} */
    const groups = new Map();
    for (const { group, permits, queuedAt } of this.#waiters) {
      const known = groups.get(group);
      if (known !== undefined) {
        known.count = Math.min(Number.MAX_SAFE_INTEGER, known.count + permits);
        known.oldestAt = Math.min(known.oldestAt, queuedAt);
      } else if (groups.size < MAX_LIST_LENGTH) {
        groups.set(group, { group, count: permits, oldestAt: queuedAt });
      }
    }
    return [...groups.values()];
  }

  /**
   * Takes a reply, also one to a request whose place another has taken: the round may have come first.
   * @param {Sent} sent
   * @param {GrantReply} reply
   * @param {number} sentAt
   */
  #answered(sent, reply, sentAt) {
    this.#number = Math.max(this.#number, reply.requestNumber ?? 0);
    const isNewest = this.#open === sent;
    if (isNewest) this.#open = undefined;
    const wait = reply.nextRequestAt - (reply.now ?? Date.now());
    // Bounded, for a holder whose clock is not ours and which does not say what it shows.
    this.#notBefore = Math.max(this.#notBefore, sentAt + Math.min(wait, MAX_WAIT_MS));
    if (reply.grants.length > 0 && this.#requestId === sent.requestId) {
      // The open one has the same name, and is given nothing more.
      this.#requestId = undefined;
      this.#open = undefined;
    }
    for (const { grantId, group, permits } of reply.grants) {
      // A reply to a repeated request brings again what is known.
      if (!this.#grants.has(grantId)) this.#hold(grantId, group, permits);
    }
    if (reply.grants.length > 0) {
      this.#watch();
      void this.#report();
    }
    // Numbers begin lower after a clock was set back: then it was not asked what it answers.
    const isOvertaken = (reply.requestNumber ?? 0) > sent.number;
    if (!isNewest || isOvertaken) return;
    const reasons = new Map(reply.blocked.map(({ group, reason }) => [group, reason]));
    for (const waiter of sent.covers) {
      if (waiter.settled || !this.#waiters.includes(waiter)) continue;
      waiter.told = notGranted(waiter.group, reasons.get(waiter.group));
      this.#endWait(waiter);
    }
  }

  /**
   * @param {Sent} sent
   * @param {HolderError} error
   */
  #unanswered(sent, error) {
    if (this.#open !== sent) return;
    this.#open = undefined;
    this.#notBefore = steady() + this.#delay();
    for (const waiter of sent.covers) {
      if (waiter.settled || !this.#waiters.includes(waiter)) continue;
      waiter.told = error;
      if (error.retryable) this.#endWait(waiter);
      else waiter.reject(error);
    }
  }

  /**
   * Refuses whoever has waited for long enough and knows why.
   * @param {Waiter} waiter
   */
  #endWait(waiter) {
    const isWaiting = !waiter.settled && this.#waiters.includes(waiter);
    // Timers may be a little early.
    if (isWaiting && waiter.told !== undefined && steady() + 1 >= waiter.until) waiter.reject(waiter.told);
  }

  // ---- Holding

  /**
   * Assigns a new grant to those who wait, first come first.
   * @param {string} grantId
   * @param {string} group
   * @param {number} permits
   */
  #hold(grantId, group, permits) {
    /** @type {Held} */
    const held = {
      id: grantId,
      group,
      permits,
      released: 0,
      confirmed: false,
      dirty: true,
      assigned: [],
      handles: new Set(),
      releasing: [],
    };
    let left = permits;
    this.#waiters = this.#waiters.filter((waiter) => {
      if (waiter.group !== group || left === 0) return true;
      const share = Math.min(left, waiter.permits);
      held.assigned.push({ waiter, permits: share });
      left -= share;
      return false;
    });
    held.released = left;
    this.#grants.set(grantId, held);
  }

  /** Says what is to be said, one message at a time and until each is answered. */
  async #report() {
    if (this.#reporting) return;
    this.#reporting = true;
    let failures = 0;
    while (!this.#stopped) {
      const dirty = [...this.#grants.values()].filter((held) => held.dirty).slice(0, MAX_LIST_LENGTH);
      if (dirty.length === 0) break;
      /** @type {GrantReport[]} */
      const grants = dirty.map(({ id, permits, released }) => ({ grantId: id, claimed: permits, released }));
      const { clientId } = this;
      try {
        const reply = await this.#send(
          "synced",
          { type: "sync", v: 1, clientId, grants, sentAt: Date.now(), clientTtlMs: this.#ttl },
          Math.min(this.#answerTimeout, MAX_SYNC_TIMEOUT_MS),
        );
        failures = 0;
        const results = new Map(
          /** @type {SyncReply} */ (reply).grantResults.map((result) => [result.grantId, result]),
        );
        for (const [place, held] of dirty.entries()) {
          const result = results.get(held.id);
          // Without one nothing is known, and it is said again.
          if (result !== undefined) this.#reported(held, grants[place]?.released ?? 0, result);
          else failures = 1;
        }
      } catch (error) {
        failures += 1;
        const refused = HolderError.of(error);
        if (!refused.retryable) this.#claimsRefused(refused);
      }
      if (failures > 0) await sleep(backoff(failures));
    }
    this.#reporting = false;
  }

  /**
   * Takes the answer to a report.
   * @param {Held} held
   * @param {number} released the mark that was said
   * @param {GrantResult} result
   */
  #reported(held, released, result) {
    const isGone = result.status === "not_found";
    if (held.released === released) held.dirty = false;
    if (!held.confirmed) {
      held.confirmed = true;
      const isClaimed = !isGone && result.claimed >= held.permits;
      if (isClaimed) this.#admit(held);
      else this.#requeue(held);
    } else if (isGone) {
      this.#lose(held, new HolderError("not_found", "the holder has taken the permits back"));
    }
    held.releasing = held.releasing.filter(({ mark, resolve }) => {
      const isTold = isGone || mark <= released;
      if (isTold) resolve();
      return !isTold;
    });
    if (isGone || released >= held.permits) {
      this.#grants.delete(held.id);
      if (this.#grants.size === 0) this.#unwatch();
    }
  }

  /**
   * The claim counts: hands the permits over.
   * @param {Held} held
   */
  #admit(held) {
    for (const { waiter, permits } of held.assigned) {
      if (!waiter.settled) {
        waiter.resolve(this.#permit(held, permits));
      } else if (held.released < held.permits) {
        this.#release(held, permits);
      }
    }
    held.assigned = [];
  }

  /**
   * The claim came too late: gives back what may count of it, and has those wait on who waited for it.
   * @param {Held} held
   */
  #requeue(held) {
    const waiting = held.assigned.map(({ waiter }) => waiter).filter((waiter) => !waiter.settled);
    held.assigned = [];
    held.released = held.permits;
    held.dirty = true;
    this.#waiters.unshift(...waiting);
    for (const waiter of waiting) {
      waiter.told ??= notGranted(waiter.group, undefined);
      this.#endWait(waiter);
    }
    this.#schedule();
  }

  /**
   * @param {Held} held
   * @param {number} permits
   * @returns {Permit}
   */
  #permit(held, permits) {
    const handle = new AbortController();
    held.handles.add(handle);
    /** @type {Promise<void> | undefined} */
    let released;
    return {
      group: held.group,
      permits,
      signal: handle.signal,
      release: () => {
        if (released === undefined) {
          held.handles.delete(handle);
          released = this.#release(held, permits);
        }
        return released;
      },
    };
  }

  /**
   * Raises the mark of what was given back, and has it told.
   * @param {Held} held
   * @param {number} permits
   * @returns {Promise<void>}
   */
  #release(held, permits) {
    if (this.#stopped || !this.#grants.has(held.id)) return Promise.resolve();
    held.released = Math.min(held.permits, held.released + permits);
    held.dirty = true;
    void this.#report();
    return new Promise((told) => {
      // After so long a silence the holder has taken it back by itself.
      const timer = setTimeout(told, this.#ttl);
      const resolve = () => (clearTimeout(timer), told());
      held.releasing.push({ mark: held.released, resolve });
    });
  }

  /**
   * @param {Held} held
   * @param {HolderError} error
   */
  #lose(held, error) {
    for (const handle of held.handles) handle.abort(error);
  }

  /**
   * No claim will be confirmed; the grants come back at their deadline, and what counts all the same
   * is given back once the holder listens.
   * @param {HolderError} error
   */
  #claimsRefused(error) {
    for (const held of this.#grants.values()) {
      if (held.confirmed) continue;
      for (const { waiter } of held.assigned) if (!waiter.settled) waiter.reject(error);
    }
  }

  // ---- Being heard

  /** Reports in time while something is held, and notices when nobody answers. */
  #watch() {
    if (this.#grants.size === 0 || this.#stopped) return;
    this.#renewal ??= unref(
      setInterval(
        () => {
          for (const held of this.#grants.values()) held.dirty = true;
          void this.#report();
        },
        Math.max(1, this.#ttl / 3),
      ),
    );
    clearTimeout(this.#silence);
    const left = this.#heardAt + (this.#ttl * 3) / 4 - steady();
    const told = "the holder has not answered for so long that it may take the permits back";
    this.#silence = unref(
      setTimeout(
        () => {
          const error = new HolderError("unreachable", told, { retryable: true });
          for (const held of this.#grants.values()) this.#lose(held, error);
        },
        Math.max(0, left),
      ),
    );
  }

  #unwatch() {
    clearInterval(this.#renewal);
    this.#renewal = undefined;
    clearTimeout(this.#silence);
    for (const resolve of this.#emptied.splice(0)) resolve();
  }

  /**
   * Sends a message, and waits for its reply only so long.
   * @param {Reply["type"]} type of the reply
   * @param {Message} message
   * @param {number} timeout
   * @returns {Promise<Reply>}
   */
  async #send(type, message, timeout) {
    const sentAt = steady();
    const abort = new AbortController();
    if (message.type === "request") this.#requests.add(abort);
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    const late = new Promise((/** @type {(value: never) => void} */ _, reject) => {
      const problem = `the holder did not answer within ${timeout} ms`;
      timer = setTimeout(() => reject(new HolderError("timeout", problem, { retryable: true })), timeout);
      abort.signal.addEventListener("abort", () => reject(abort.signal.reason));
    });
    try {
      const asked = (async () => this.#ask(message, { signal: abort.signal }))();
      const reply = checked(type, await Promise.race([asked, late]));
      this.#heardAt = Math.max(this.#heardAt, sentAt);
      this.#watch();
      return reply;
    } catch (error) {
      abort.abort();
      throw error;
    } finally {
      clearTimeout(timer);
      this.#requests.delete(abort);
    }
  }

  #delay() {
    this.#failures += 1;
    return backoff(this.#failures);
  }
}

/**
 * @param {string} group
 * @param {BlockedReason | undefined} reason
 */
function notGranted(group, reason) {
  const why = reason === undefined ? "" : `: ${reason}`;
  const message = `no permit of the group ${JSON.stringify(group)} in time${why}`;
  return new HolderError("not_granted", message, { retryable: true, reason });
}

function closed() {
  return new HolderError("closed", "the client was closed");
}
