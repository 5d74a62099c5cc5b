// The client and the types against a real `durably serve`: the binary that DURABLY_BIN names.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";

import { HolderClient, HolderError, fetchHolder, readSnapshot } from "durably";

/** @import { ApiFailure, Ask, JobStatus, Permit, Snapshot, SubmitAnswer, Usage } from "durably" */

const binary = process.env.DURABLY_BIN;
const skip = binary ? false : "DURABLY_BIN names no binary of durably";
const token = "a-token";
let base = "";
/** @type {import("node:http").Server} */ let endpoint;
/** @type {import("node:child_process").ChildProcess} */ let server;
/** @type {string} */ let folder;

before(async () => {
  if (!binary) return;
  endpoint = createServer((_, response) => {
    response.setHeader("content-type", "application/json").end('{"sent":true}');
  });
  await new Promise((resolve) => endpoint.listen(0, "127.0.0.1", () => resolve(undefined)));
  const address = endpoint.address();
  assert.ok(typeof address === "object" && address !== null);
  folder = await mkdtemp(join(tmpdir(), "durably-"));
  const flags = {
    listen: "127.0.0.1:0",
    "data-dir": folder,
    "job-endpoint": `http://127.0.0.1:${address.port}`,
    "default-limit": "2",
    "round-wait": "10ms",
    "round-period": "20ms",
  };
  const args = Object.entries(flags).flatMap(([name, value]) => [`--${name}`, value]);
  const env = { DURABLY_TOKEN: token };
  server = spawn(binary, ["serve", ...args], { env, stdio: ["ignore", "pipe", "inherit"] });
  assert.ok(server.stdout);
  for await (const line of createInterface(server.stdout)) {
    const told = /^listening on (http:\S+)/.exec(line);
    if (told?.[1] !== undefined) {
      base = told[1];
      break;
    }
  }
  assert.notEqual(base, "", "the server ended instead of listening");
});

after(async () => {
  if (!binary) return;
  const ended = new Promise((resolve) => server.once("exit", resolve));
  server.kill("SIGTERM");
  await ended;
  endpoint.closeAllConnections();
  endpoint.close();
  await rm(folder, { recursive: true });
});

/**
 * @param {string} method
 * @param {string} path
 * @param {unknown} [body]
 */
async function call(method, path, body) {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const response = await fetch(base + path, { method, headers, ...(body !== undefined && { body: JSON.stringify(body) }) });
  return { status: response.status, text: await response.text() };
}

/**
 * @param {string} key
 * @returns {Promise<Usage>}
 */
const usage = async (key) => JSON.parse((await call("GET", `/v1/accounts/${key}/usage`)).text);

/** @param {string} key */
const holder = (key) => fetchHolder({ url: base, key, token });

test("permits of a real holder", { skip }, async () => {
  const client = new HolderClient({ ask: holder("acme") });
  const permits = await Promise.all([1, 2].map(() => client.acquire({ group: "nightly" })));
  assert.deepEqual((await usage("acme")).groups.nightly, { granted: 2 });
  await assert.rejects(client.acquire({ group: "nightly" }), (error) => {
    assert.ok(error instanceof HolderError);
    assert.deepEqual([error.code, error.reason], ["not_granted", "limit"]);
    return true;
  });
  const waits = client.acquire({ group: "nightly", waitMs: 30_000 });
  await permits[0]?.release();
  const next = await waits;
  await Promise.all([permits[1]?.release(), next.release()]);
  assert.equal((await usage("acme")).granted, 0);
  await client.close();
});

test("what a real holder refuses keeps its code", { skip }, async () => {
  const client = new HolderClient({ ask: fetchHolder({ url: base, key: "acme", token: "another" }) });
  await assert.rejects(client.acquire({ group: "g", waitMs: 60_000 }), { code: "unauthorized", status: 401 });
  await client.close();
  const { signal } = new AbortController();
  const wrong = { type: /** @type {const} */ ("sync"), v: /** @type {const} */ (1), clientId: "", grants: [] };
  await assert.rejects(holder("acme")(wrong, { signal }), { code: "malformed", field: "clientId" });
});

test("losses cost neither permits nor the limit", { skip }, async () => {
  const real = holder("lossy");
  let state = 7;
  const random = () => (state = (state * 48_271) % 2_147_483_647) / 2_147_483_647;
  let isLossy = true;
  /** @type {Ask} */
  const ask = async (message, options) => {
    if (isLossy && random() < 0.1) throw new Error("no way there");
    const reply = await real(message, options);
    if (isLossy && random() < 0.2) throw new Error("no way back");
    return reply;
  };
  const clients = [1, 2].map(() => new HolderClient({ ask }));
  let running = 0;
  const worker = async (/** @type {number} */ number) => {
    const client = clients[number % 2];
    assert.ok(client !== undefined);
    const permit = await client.acquire({ group: `g${number % 3}`, waitMs: 60_000 });
    running += permit.permits;
    assert.ok(running <= 2, `${running} at once`);
    await usage("lossy");
    running -= permit.permits;
    await permit.release();
  };
  await Promise.all(Array.from({ length: 20 }, (_, number) => worker(number)));
  isLossy = false;
  await Promise.all(clients.map((client) => client.close()));
  assert.equal((await usage("lossy")).granted, 0);
});

test("what a process held that died comes back, and one that lives keeps it", { skip }, async () => {
  let isDead = false;
  const real = holder("ephemeral");
  /** @type {Ask} */
  const ask = async (message, options) => {
    if (isDead) throw new Error("dead");
    return real(message, options);
  };
  const dying = new HolderClient({ ask, clientTtlMs: 1_000 });
  const living = new HolderClient({ ask: real, clientTtlMs: 1_000 });
  /** @type {Permit[]} */
  const [lost, kept] = await Promise.all([dying, living].map((client) => client.acquire({ group: "g" })));
  assert.ok(lost !== undefined && kept !== undefined);
  isDead = true;
  const other = new HolderClient({ ask: real });
  const permit = await other.acquire({ group: "g", waitMs: 30_000 });
  assert.ok(lost.signal.aborted, "told before the permit went to another");
  assert.ok(!kept.signal.aborted);
  assert.equal((await usage("ephemeral")).granted, 2);
  await Promise.all([permit.release(), kept.release()]);
  isDead = false;
  await lost.release();
  assert.equal((await usage("ephemeral")).granted, 0);
  await Promise.all([dying, living, other].map((client) => client.close()));
});

test("jobs are answered as the types say", { skip }, async () => {
  /** @type {import("durably").NewJob} */
  const job = { account: "jobs", id: "job-1", group: "nightly", body: { report: 7 } };
  const taken = await call("POST", "/v1/jobs", job);
  assert.equal(taken.status, 202);
  /** @type {SubmitAnswer} */
  const answer = JSON.parse(taken.text);
  assert.deepEqual(answer, { results: [{ account: "jobs", id: "job-1", outcome: "queued" }] });
  const list = await call("POST", "/v1/jobs", [job, { account: "jobs" }]);
  /** @type {SubmitAnswer} */
  const { results } = JSON.parse(list.text);
  assert.deepEqual(results[0], { account: "jobs", id: "job-1", outcome: "duplicate" });
  assert.deepEqual(results[1], {
    outcome: "refused",
    error: { code: "invalid", message: "id is missing", field: "id" },
  });
  /** @type {JobStatus} */
  let status;
  do {
    status = JSON.parse((await call("GET", "/v1/accounts/jobs/jobs/job-1")).text);
  } while (status.state !== "completed");
  assert.deepEqual(status.result, { sent: true });
  const unknown = await call("GET", "/v1/accounts/jobs/jobs/job-2");
  assert.equal(unknown.status, 404);
  /** @type {ApiFailure} */
  const failure = JSON.parse(unknown.text);
  assert.equal(failure.error.code, "unknown_job");
});

test("a published group is read", { skip }, async () => {
  const path = "/v1/topologies/main/groups/tenant-1";
  const put = await call("PUT", path, { members: [{ id: "shard-1", state: "active", meta: { url: "http://ü" } }] });
  /** @type {{ snapshot: Snapshot }} */
  const { snapshot } = JSON.parse(put.text);
  const published = await call("GET", "/v1/topologies/main/published/tenant-1");
  const { incarnation, ...read } = readSnapshot("tenant-1", published.text);
  assert.deepEqual(read, snapshot);
  assert.ok(incarnation.createdAt > 0);
});
