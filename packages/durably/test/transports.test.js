// What goes over HTTP and RPC, and what becomes of refusals.

import assert from "node:assert/strict";
import { test } from "node:test";

import { HolderClient, HolderError, fetchHolder, stubHolder } from "durably";

import { FakeHolder } from "./fake-holder.js";

/** @import { Fetch, Message, Reply } from "durably" */

const { signal } = new AbortController();
/** @type {Message} */
const sync = { type: "sync", v: 1, clientId: "c", grants: [] };
/** @type {Reply} */
const synced = { type: "synced", v: 1, grantResults: [] };

/**
 * @param {number} status
 * @param {string} text
 * @returns {Fetch}
 */
const answering = (status, text) => async () => ({ ok: status < 300, status, text: async () => text });

test("a message is posted to the holder of the key", async () => {
  /** @type {{ url: string, init: object }[]} */
  const calls = [];
  const ask = fetchHolder({
    url: "http://durably.example:7070/",
    key: "acme/ü",
    token: "t",
    fetch: async (url, init) => {
      calls.push({ url, init });
      return answering(200, JSON.stringify(synced))(url, init);
    },
  });
  assert.deepEqual(await ask(sync, { signal }), synced);
  assert.deepEqual(calls, [
    {
      url: "http://durably.example:7070/v1/holders/acme%2F%C3%BC/messages",
      init: {
        method: "POST",
        redirect: "manual",
        headers: { "content-type": "application/json", authorization: "Bearer t" },
        body: JSON.stringify(sync),
        signal,
      },
    },
  ]);
  for (const key of ["", ".", ".."]) {
    assert.throws(() => fetchHolder({ url: "http://durably.example", key }), HolderError);
  }
});

test("a refusal over HTTP keeps its code, and says whether to try again", async () => {
  const malformed = '{"error":{"code":"malformed","message":"no","field":"demand[0].count"}}';
  for (const [status, text, expected] of /** @type {const} */ ([
    [400, malformed, ["malformed", false, 400, "demand[0].count"]],
    [401, '{"error":{"code":"unauthorized","message":"no"}}', ["unauthorized", false, 401, undefined]],
    [503, '{"error":{"code":"overloaded","message":"no"}}', ["overloaded", true, 503, undefined]],
    [429, "", ["http_status", true, 429, undefined]],
    [302, "<html>", ["http_status", false, 302, undefined]],
  ])) {
    const ask = fetchHolder({ url: "http://durably.example", key: "k", fetch: answering(status, text) });
    await assert.rejects(ask(sync, { signal }), (error) => {
      assert.ok(error instanceof HolderError);
      assert.deepEqual([error.code, error.retryable, error.status, error.field], expected);
      return true;
    });
  }
});

test("an answer that is no JSON is no reply", async () => {
  const ask = fetchHolder({ url: "http://durably.example", key: "k", fetch: answering(200, "<html>") });
  const client = new HolderClient({ ask });
  await assert.rejects(client.acquire({ group: "g" }), { code: "malformed_reply" });
  await client.close();
});

test("a stub is asked by its method", async () => {
  const holder = new FakeHolder();
  const stub = { permits: (/** @type {Message} */ message) => holder.ask(message, { signal }) };
  const client = new HolderClient({ ask: stubHolder(stub) });
  const permit = await client.acquire({ group: "g" });
  assert.equal(holder.used, 1);
  await permit.release();
  await client.close();
});

test("a stub's refusals keep their code, thrown or answered", async () => {
  const error = { code: "malformed", message: "no", field: "v" };
  const thrown = new Error(JSON.stringify({ error }));
  const answered = /** @type {Reply} */ (/** @type {unknown} */ ({ error }));
  for (const permits of [async () => answered, () => Promise.reject(thrown)]) {
    await assert.rejects(stubHolder({ permits })(sync, { signal }), (refused) => {
      assert.ok(refused instanceof HolderError);
      assert.deepEqual([refused.code, refused.field, refused.retryable], ["malformed", "v", false]);
      return true;
    });
  }
  const lost = new Error("the object was reset");
  await assert.rejects(stubHolder({ permits: () => Promise.reject(lost) })(sync, { signal }), lost);
});
