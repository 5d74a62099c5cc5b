// A holder in a few lines: rounds, claims with a deadline, repeated and overtaken requests, clients
// without storage. It checks what no client may do, and loses what a test wants lost.

import assert from "node:assert/strict";

/**
 * @import { Message, PermitRequest, PermitSync, Reply, GrantReply } from "durably"
 * @typedef {{ clientId: string, requestId: string | undefined, group: string, permits: number, claimed: number, released: number, deadline: number }} Row
 * @typedef {{ request: PermitRequest, until: number, seen: boolean, answer: (reply: Reply) => void }} Waiting
 */

export class FakeHolder {
  /** @type {Map<string, Row>} */ grants = new Map();
  /** @type {Message[]} */ log = [];
  /**
   * What becomes of the next messages of a type: done and not answered, not even done, never answered,
   * or answered after whatever is said next.
   * @type {{ type: Message["type"], fault: "lose" | "drop" | "hang" | "late" }[]}
   */
  faults = [];
  /** @type {() => "lose" | "drop" | undefined} */ chance = () => undefined;
  /** @type {Waiting[]} */ #waiting = [];
  /** @type {Map<string, number>} */ #numbers = new Map();
  /** @type {Map<string, { claimed: number, released: number }>} */ #marks = new Map();
  /** @type {Map<string, { ttl: number, heard: number }>} */ clients = new Map();
  #serial = 0;
  /** @type {(value: undefined) => void} */ #tellAnswered = () => {};
  /** Resolves once a message was answered in full. */
  answered = new Promise((resolve) => (this.#tellAnswered = resolve));
  /** @type {((message: Message) => void)[]} */ #listeners = [];
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #round;

  /** @param {{ limit?: number, roundMs?: number, grantTimeoutMs?: number }} [options] */
  constructor({ limit = 1, roundMs = 5, grantTimeoutMs = 10_000 } = {}) {
    this.limit = limit;
    this.roundMs = roundMs;
    this.grantTimeoutMs = grantTimeoutMs;
  }

  /** @type {import("durably").Ask} */
  ask = async (message) => {
    const place = this.faults.findIndex(({ type }) => type === message.type);
    const fault = place >= 0 ? this.faults.splice(place, 1)[0]?.fault : this.chance();
    const copy = /** @type {Message} */ (JSON.parse(JSON.stringify(message)));
    if (fault === "drop") throw new TypeError("no way there");
    this.log.push(copy);
    for (const listener of this.#listeners) listener(copy);
    const reply = copy.type === "request" ? this.#request(copy) : this.#sync(copy);
    if (fault === "hang") return new Promise(() => {});
    const said = await reply;
    if (fault === "late") await this.answered;
    if (fault === "lose") throw new TypeError("no way back");
    this.#tellAnswered(undefined);
    return JSON.parse(JSON.stringify(said));
  };

  /**
   * Resolves with the next message that fits.
   * @param {(message: Message) => boolean} fits
   * @returns {Promise<Message>}
   */
  next(fits) {
    return new Promise((resolve) => {
      const listener = (/** @type {Message} */ message) => {
        if (!fits(message)) return;
        this.#listeners = this.#listeners.filter((one) => one !== listener);
        resolve(message);
      };
      this.#listeners.push(listener);
    });
  }

  get used() {
    let used = 0;
    for (const { permits, released } of this.grants.values()) used += permits - released;
    return used;
  }

  /** @returns {PermitRequest[]} */
  get requests() {
    return this.log.filter((message) => message.type === "request");
  }

  /** @returns {PermitSync[]} */
  get syncs() {
    return this.log.filter((message) => message.type === "sync");
  }

  /** @param {PermitRequest} request */
  #request(request) {
    this.#heard(request);
    assert.deepEqual(request.grants, [], "a request that reports would not wait");
    assert.ok(request.requestId !== undefined && request.requestNumber !== undefined);
    // The older call is answered with nothing.
    const isRepeated = (/** @type {Waiting} */ one) => one.request.requestId === request.requestId;
    for (const older of this.#waiting.filter(isRepeated)) older.answer(this.#reply(older.request, []));
    this.#waiting = this.#waiting.filter((one) => !isRepeated(one));
    const promise = new Promise((/** @type {(reply: Reply) => void} */ answer) => {
      this.#waiting.push({ request, until: Date.now() + (request.waitMs ?? 0), seen: false, answer });
    });
    this.#schedule();
    return promise;
  }

  #schedule() {
    this.#round ??= setTimeout(() => {
      this.#round = undefined;
      this.#hold();
    }, this.roundMs);
  }

  #hold() {
    const now = Date.now();
    for (const [id, row] of this.grants) {
      if (row.claimed === 0 && row.deadline <= now) this.grants.delete(id);
    }
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const one of waiting) {
      const { request } = one;
      const highest = this.#numbers.get(request.clientId) ?? 0;
      const number = request.requestNumber ?? 0;
      this.#numbers.set(request.clientId, Math.max(highest, number));
      const known = [...this.grants].filter(
        ([, row]) => row.clientId === request.clientId && row.requestId === request.requestId,
      );
      const given = known.map(([grantId, { group, permits }]) => ({ grantId, group, permits }));
      // One that is older than what was seen, or a copy of it, is given nothing.
      const isNew = one.seen ? number === highest : number > highest;
      one.seen = true;
      if (known.length === 0 && isNew) {
        for (const { group, count } of request.demand) {
          const permits = Math.min(count, this.limit - this.used);
          if (permits <= 0) continue;
          const grantId = `grant-${(this.#serial += 1)}`;
          const { clientId, requestId } = request;
          const deadline = now + this.grantTimeoutMs;
          this.grants.set(grantId, { clientId, requestId, group, permits, claimed: 0, released: 0, deadline });
          given.push({ grantId, group, permits });
        }
      }
      if (given.length > 0 || now >= one.until) one.answer(this.#reply(request, given));
      else this.#waiting.push(one);
    }
    // Polls where a real one would know; it is only a fake.
    if (this.#waiting.length > 0) this.#schedule();
  }

  /**
   * @param {PermitRequest} request
   * @param {GrantReply["grants"]} grants
   * @returns {GrantReply}
   */
  #reply(request, grants) {
    const asked = request.demand.map(({ group }) => group);
    const blocked = asked.filter((group) => !grants.some((grant) => grant.group === group));
    const now = Date.now() + 500_000;
    return {
      type: "grant",
      v: 1,
      grants,
      blocked: blocked.map((group) => ({ group, reason: "limit" })),
      grantResults: [],
      nextRequestAt: now + this.roundMs,
      requestNumber: this.#numbers.get(request.clientId) ?? 0,
      now,
    };
  }

  /**
   * @param {PermitSync} sync
   * @returns {Promise<Reply>}
   */
  async #sync(sync) {
    this.#heard(sync);
    const now = Date.now();
    const grantResults = sync.grants.map(({ grantId, claimed, released }) => {
      const before = this.#marks.get(grantId) ?? { claimed: 0, released: 0 };
      assert.ok(claimed >= before.claimed && released >= before.released, "marks only rise");
      assert.ok(released <= claimed, "what is released was claimed");
      this.#marks.set(grantId, { claimed, released });
      const row = this.grants.get(grantId);
      if (row === undefined || row.clientId !== sync.clientId || (row.claimed === 0 && row.deadline <= now)) {
        this.grants.delete(grantId);
        return { grantId, claimed: 0, status: /** @type {const} */ ("not_found") };
      }
      row.claimed = Math.max(row.claimed, Math.min(row.permits, claimed));
      row.released = Math.max(row.released, Math.min(row.claimed, released));
      if (row.released === row.permits) this.grants.delete(grantId);
      return { grantId, claimed: row.claimed, status: /** @type {const} */ ("ok") };
    });
    return { type: "synced", v: 1, grantResults, now: now + 500_000 };
  }

  /** @param {Message} message */
  #heard({ clientId, clientTtlMs, sentAt }) {
    assert.ok(clientTtlMs !== undefined && sentAt !== undefined);
    this.clients.set(clientId, { ttl: clientTtlMs, heard: Date.now() });
  }
}
