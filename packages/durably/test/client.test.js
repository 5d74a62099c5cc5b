// The client against a holder that loses messages.

import assert from "node:assert/strict";
import { after, test } from "node:test";

import { HolderClient, HolderError } from "durably";

import { FakeHolder } from "./fake-holder.js";

// Renewals keep no process alive.
const alive = setInterval(() => {}, 1_000);
after(() => clearInterval(alive));

/**
 * @param {string} code
 * @returns {(error: unknown) => boolean}
 */
const refused = (code) => (error) => error instanceof HolderError && error.code === code;

/** @param {AbortSignal} signal */
const aborted = (signal) =>
  signal.aborted || new Promise((resolve) => signal.addEventListener("abort", () => resolve(true)));

test("permits are claimed before they are handed over, and given back", async () => {
  const holder = new FakeHolder({ limit: 3 });
  const client = new HolderClient({ ask: holder.ask, clientId: "c1", clientTtlMs: 30_000 });
  const permit = await client.acquire({ group: "nightly", permits: 2 });
  assert.equal(permit.group, "nightly");
  assert.equal(permit.permits, 2);
  assert.equal(holder.used, 2);
  const [request] = holder.requests;
  assert.ok(request !== undefined && request.type === "request");
  const { sentAt, requestId, requestNumber, demand, ...others } = request;
  assert.deepEqual(others, { type: "request", v: 1, clientId: "c1", grants: [], clientTtlMs: 30_000 });
  assert.ok(sentAt !== undefined && requestId !== undefined && requestNumber !== undefined);
  assert.deepEqual([demand.length, demand[0]?.group, demand[0]?.count], [1, "nightly", 2]);
  assert.deepEqual(holder.syncs[0]?.grants, [{ grantId: "grant-1", claimed: 2, released: 0 }]);
  await permit.release();
  assert.equal(holder.used, 0);
  await permit.release();
  assert.equal(holder.syncs.length, 2, "a second release says nothing");
  await client.close();
});

test("a request whose answer was lost is sent again under its id, and given nothing twice", async () => {
  const holder = new FakeHolder({ limit: 5 });
  const client = new HolderClient({ ask: holder.ask });
  holder.faults.push({ type: "request", fault: "drop" }, { type: "request", fault: "lose" });
  const permit = await client.acquire({ group: "g", waitMs: 60_000 });
  assert.equal(holder.used, 1);
  const [first, second] = holder.requests;
  assert.ok(first !== undefined && second !== undefined);
  assert.equal(second.requestId, first.requestId);
  assert.ok((second.requestNumber ?? 0) > (first.requestNumber ?? 0));
  await permit.release();
  const other = await client.acquire({ group: "g" });
  assert.notEqual(holder.requests.at(-1)?.requestId, first.requestId, "it gave something");
  await other.release();
  await client.close();
});

test("claims and releases without an answer are said again with the same marks", async () => {
  const holder = new FakeHolder();
  const client = new HolderClient({ ask: holder.ask });
  holder.faults.push({ type: "sync", fault: "lose" }, { type: "sync", fault: "drop" });
  const permit = await client.acquire({ group: "g" });
  const claim = { grantId: "grant-1", claimed: 1, released: 0 };
  assert.deepEqual(holder.syncs.map(({ grants }) => grants), [[claim], [claim]]);
  holder.faults.push({ type: "sync", fault: "lose" });
  await permit.release();
  const release = { ...claim, released: 1 };
  assert.deepEqual(holder.syncs.slice(2).map(({ grants }) => grants), [[release], [release]]);
  await client.close();
});

test("an answer that never comes is given up after its time", async () => {
  const holder = new FakeHolder();
  const client = new HolderClient({ ask: holder.ask, answerTimeoutMs: 50 });
  holder.faults.push({ type: "request", fault: "hang" });
  await assert.rejects(client.acquire({ group: "g" }), refused("timeout"));
  holder.faults.push({ type: "sync", fault: "hang" });
  const permit = await client.acquire({ group: "g", waitMs: 10_000 });
  assert.equal(holder.used, 1, "what the lost answer brought is brought again");
  await permit.release();
  await client.close();
});

test("a newer caller joins the request that waits", async () => {
  const holder = new FakeHolder({ limit: 1 });
  const client = new HolderClient({ ask: holder.ask });
  const permit = await client.acquire({ group: "a" });
  const first = client.acquire({ group: "a", waitMs: 30_000 });
  const waiting = await holder.next(({ type }) => type === "request");
  const joins = holder.next(({ type }) => type === "request");
  const second = client.acquire({ group: "b", waitMs: 30_000 });
  const joined = await joins;
  assert.ok(waiting.type === "request" && joined.type === "request");
  assert.equal(joined.requestId, waiting.requestId);
  assert.ok((joined.requestNumber ?? 0) > (waiting.requestNumber ?? 0));
  assert.deepEqual(joined.demand.map(({ group, count }) => [group, count]), [["a", 1], ["b", 1]]);
  await permit.release();
  await (await first).release();
  await (await second).release();
  assert.equal(holder.used, 0);
  await client.close();
});

test("a grant that two answers bring is one grant", async () => {
  const holder = new FakeHolder({ limit: 1 });
  const client = new HolderClient({ ask: holder.ask });
  holder.faults.push({ type: "request", fault: "late" });
  const asked = holder.next(({ type }) => type === "request");
  const first = client.acquire({ group: "g" });
  await asked;
  let isSecond = false;
  const second = client.acquire({ group: "g", waitMs: 30_000 }).then((permit) => ((isSecond = true), permit));
  const permit = await first;
  // The late answer, and the next request, which says that the second still waits.
  await holder.next(({ type }) => type === "request");
  assert.ok(!isSecond);
  await permit.release();
  await (await second).release();
  await client.close();
  assert.equal(holder.used, 0);
});

test("callers that come together share one request and one claim", async () => {
  const holder = new FakeHolder({ limit: 10 });
  const client = new HolderClient({ ask: holder.ask });
  const permits = await Promise.all(Array.from({ length: 10 }, () => client.acquire({ group: "g" })));
  assert.equal(holder.requests.length, 1);
  assert.equal(holder.syncs.length, 1);
  await Promise.all(permits.map((permit) => permit.release()));
  assert.equal(holder.used, 0);
  await client.close();
});

test("a claim that came too late starts nothing, and its caller waits on", async () => {
  // What is dropped is said again after 100 ms at the earliest.
  const holder = new FakeHolder({ grantTimeoutMs: 50 });
  const client = new HolderClient({ ask: holder.ask });
  holder.faults.push({ type: "sync", fault: "drop" });
  const permit = await client.acquire({ group: "g", waitMs: 10_000 });
  assert.ok(holder.requests.length >= 2);
  assert.equal(holder.used, 1);
  await permit.release();
  await client.close();
});

test("who gets nothing in time is told why", async () => {
  const holder = new FakeHolder({ limit: 0 });
  const client = new HolderClient({ ask: holder.ask });
  for (const waitMs of [0, 30]) {
    const begun = performance.now();
    await assert.rejects(client.acquire({ group: "g", waitMs }), (error) => {
      assert.ok(error instanceof HolderError);
      assert.deepEqual([error.code, error.reason], ["not_granted", "limit"]);
      return true;
    });
    assert.ok(performance.now() - begun + 1 >= waitMs);
  }
  await client.close();
});

test("less than was asked for is handed over; what nobody waits for any more goes back", async () => {
  const holder = new FakeHolder({ limit: 2 });
  const client = new HolderClient({ ask: holder.ask });
  const permit = await client.acquire({ group: "g", permits: 5 });
  assert.equal(permit.permits, 2);
  await permit.release();
  const left = new AbortController();
  const claims = holder.next(({ type }) => type === "sync");
  const given = holder.next(({ type }) => type === "request");
  const acquired = client.acquire({ group: "g", signal: left.signal });
  await given;
  left.abort(new Error("no matter"));
  await assert.rejects(acquired, /no matter/);
  const sync = await claims;
  assert.deepEqual(sync.grants, [{ grantId: "grant-2", claimed: 1, released: 1 }]);
  await client.close();
  assert.equal(holder.used, 0);
});

test("who leaves while the claim is under way leaves nothing behind", async () => {
  const holder = new FakeHolder();
  const client = new HolderClient({ ask: holder.ask });
  const left = new AbortController();
  void holder.next(({ type }) => type === "sync").then(() => left.abort(new Error("gone")));
  const released = holder.next(({ type, grants }) => type === "sync" && grants[0]?.released === 1);
  await assert.rejects(client.acquire({ group: "g", signal: left.signal }), /gone/);
  await released;
  assert.equal(holder.used, 0);
  await client.close();
});

test("what is held is reported every third of the time to live", async () => {
  const holder = new FakeHolder();
  const client = new HolderClient({ ask: holder.ask, clientTtlMs: 600 });
  const permit = await client.acquire({ group: "g" });
  for (let renewals = 0; renewals < 4; renewals += 1) {
    const from = performance.now();
    const renewal = await holder.next(({ type }) => type === "sync");
    assert.equal(renewal.clientTtlMs, 600);
    assert.deepEqual(renewal.grants, [{ grantId: "grant-1", claimed: 1, released: 0 }]);
    assert.ok(performance.now() - from < 600);
  }
  assert.ok(!permit.signal.aborted);
  await permit.release();
  await client.close();
});

test("who is not heard learns it before the holder takes the permits back", async () => {
  const holder = new FakeHolder();
  const client = new HolderClient({ ask: holder.ask, clientTtlMs: 1_200 });
  const permit = await client.acquire({ group: "g" });
  const from = performance.now();
  holder.chance = () => "drop";
  await aborted(permit.signal);
  assert.ok(performance.now() - from < 1_200);
  assert.equal(holder.used, 1, "and it still counts until it is given back");
  holder.chance = () => undefined;
  await permit.release();
  assert.equal(holder.used, 0);
  await client.close();
});

test("a release does not wait for a holder that is gone", async () => {
  const holder = new FakeHolder();
  const client = new HolderClient({ ask: holder.ask, clientTtlMs: 300 });
  const permit = await client.acquire({ group: "g" });
  holder.chance = () => "drop";
  await permit.release();
  const waits = client.acquire({ group: "g" });
  await assert.rejects(waits, refused("unreachable"));
  await client.close();
});

test("who lost the permits at the holder learns it", async () => {
  const holder = new FakeHolder();
  const client = new HolderClient({ ask: holder.ask, clientTtlMs: 300 });
  const permit = await client.acquire({ group: "g" });
  holder.grants.clear();
  await aborted(permit.signal);
  assert.ok(refused("not_found")(permit.signal.reason));
  await permit.release();
  await client.close();
});

test("what would be refused again is not repeated", async () => {
  let calls = 0;
  const client = new HolderClient({
    ask: async () => {
      calls += 1;
      throw new HolderError("unauthorized", "no", { status: 401 });
    },
  });
  await assert.rejects(client.acquire({ group: "g", waitMs: 60_000 }), refused("unauthorized"));
  assert.equal(calls, 1);
  await client.close();
});

test("what is no reply is not taken for one", async () => {
  const client = new HolderClient({ ask: async () => JSON.parse('{"type":"grant","v":1}') });
  await assert.rejects(client.acquire({ group: "g" }), refused("malformed_reply"));
  await client.close();
});

test("what cannot be asked is refused at once", async () => {
  const holder = new FakeHolder();
  const client = new HolderClient({ ask: holder.ask });
  for (const options of [
    { group: "" },
    { group: "ü".repeat(129) },
    { group: "g", permits: 0 },
    { group: "g", permits: 1.5 },
    { group: "g", waitMs: -1 },
  ]) {
    await assert.rejects(client.acquire(options), RangeError);
  }
  await assert.rejects(client.acquire({ group: "g", signal: AbortSignal.abort() }));
  assert.throws(() => new HolderClient({ ask: holder.ask, clientTtlMs: 0 }), RangeError);
  assert.throws(() => new HolderClient({ ask: holder.ask, clientId: "" }), RangeError);
  assert.equal(holder.log.length, 0);
  await client.close();
});

test("a client that is closed gives all back and refuses who waits", async () => {
  const holder = new FakeHolder();
  const client = new HolderClient({ ask: holder.ask });
  const permit = await client.acquire({ group: "g" });
  const waits = assert.rejects(client.acquire({ group: "g", waitMs: 60_000 }), refused("closed"));
  await client.close();
  await waits;
  assert.ok(permit.signal.aborted);
  assert.equal(holder.used, 0);
  await assert.rejects(client.acquire({ group: "g" }), refused("closed"));
});

test("a clock that was set back costs one request", async () => {
  const holder = new FakeHolder();
  const before = new HolderClient({ ask: holder.ask, clientId: "c" });
  await (await before.acquire({ group: "g" })).release();
  await before.close();
  const { now } = Date;
  Date.now = () => now() - 3_600_000;
  try {
    const client = new HolderClient({ ask: holder.ask, clientId: "c" });
    await (await client.acquire({ group: "g" })).release();
    await client.close();
  } finally {
    Date.now = now;
  }
  assert.equal(holder.requests.length, 3);
});

test("many callers with many losses: never too many at once, and nothing is left", async () => {
  for (let seed = 1; seed <= 3; seed += 1) {
    const holder = new FakeHolder({ limit: 4, grantTimeoutMs: 5_000 });
    let state = seed;
    const random = () => (state = (state * 48_271) % 2_147_483_647) / 2_147_483_647;
    holder.chance = () => (random() < 0.15 ? "lose" : random() < 0.1 ? "drop" : undefined);
    const clients = [1, 2].map(() => new HolderClient({ ask: holder.ask }));
    let running = 0;
    let most = 0;
    let done = 0;
    const worker = async (/** @type {number} */ number) => {
      const client = clients[number % 2];
      assert.ok(client !== undefined);
      const permits = 1 + (number % 2);
      const permit = await client.acquire({ group: `g${number % 3}`, permits, waitMs: 60_000 });
      running += permit.permits;
      most = Math.max(most, running);
      assert.ok(running <= holder.used, "the holder counts all that runs");
      await new Promise((resolve) => setTimeout(resolve, random() * 5));
      running -= permit.permits;
      done += 1;
      await permit.release();
    };
    await Promise.all(Array.from({ length: 24 }, (_, number) => worker(number)));
    holder.chance = () => undefined;
    await Promise.all(clients.map((client) => client.close()));
    assert.equal(done, 24);
    assert.ok(most <= 4, `${most} at once`);
    assert.equal(holder.used, 0);
  }
});
