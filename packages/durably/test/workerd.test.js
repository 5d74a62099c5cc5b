// Workers ask a Rust holder by RPC, in a real workerd: the binary that DURABLY_WORKERD names, with the ready-made
// worker in the folder DURABLY_WORKERS, both as `.ci/cloudflare` makes them. One is in JavaScript, the other, with objects of
// its own, is the example in TypeScript.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdir, mkdtemp, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

const { DURABLY_WORKERD: binary, DURABLY_WORKERS: workers } = process.env;
const skip = binary && workers ? false : "DURABLY_WORKERD and DURABLY_WORKERS name no workerd and no workers";
const source = fileURLToPath(new URL("../src/", import.meta.url));
let folder = "";
let base = "";
let reports = "";
/** @type {import("node:child_process").ChildProcess} */ let workerd;

// Each request has a client of its own; one with a message passes that on as it is.
const script = `
import { HolderClient, stubHolder } from "./durably/index.js";

export default {
  async fetch(request, env) {
    const { message, key, group, permits, waitMs, runMs } = await request.json();
    const ask = stubHolder(env.HOLDERS.getByName(key));
    const client = new HolderClient({ ask });
    try {
      if (message) return Response.json(await ask(message));
      const permit = await client.acquire({ group, permits, waitMs });
      await new Promise((resolve) => setTimeout(resolve, runMs));
      await permit.release();
      return Response.json({ permits: permit.permits, lost: permit.signal.aborted });
    } catch (error) {
      return Response.json({ code: error.code, field: error.field, reason: error.reason, message: error.message });
    } finally {
      await client.close();
    }
  },
};
`;

/** @param {string} name */
const wire = (name) => `(name = "${name}", esModule = embed "${name}")`;

before(async () => {
  if (!binary || !workers) return;
  folder = await mkdtemp(join(tmpdir(), "durably-"));
  await mkdir(join(folder, "disk"));
  await symlink(join(workers, "durably"), join(folder, "holder"));
  await symlink(source, join(folder, "durably"));
  await writeFile(join(folder, "client.js"), script);
  const modules = (await readdir(source)).map((name) => wire(`durably/${name}`));
  const config = `
using Workerd = import "/workerd/workerd.capnp";
using Holder = import "holder/worker.capnp";

const config :Workerd.Config = (
  services = [
    (name = "durably", worker = Holder.durably),
    (name = "client", worker = .client),
    (name = "reports", worker = .reports),
    (name = "disk", disk = (writable = true)),
  ],
  sockets = [
    (name = "http", address = "127.0.0.1:0", http = (), service = "client"),
    (name = "reports", address = "127.0.0.1:0", http = (), service = "reports"),
    (name = "holders", address = "127.0.0.1:0", http = (), service = "durably"),
  ],
);

const client :Workerd.Worker = (
  compatibilityDate = "2026-01-01",
  modules = [${[wire("client.js"), ...modules].join(", ")}],
  bindings = [(name = "HOLDERS", durableObjectNamespace = (className = "AccountLimit", serviceName = "durably"))],
);

# The package is found as npm would have it, by its name.
const reports :Workerd.Worker = (
  compatibilityDate = "2026-01-01",
  modules = [
    (name = "reports.js", esModule = embed "built/examples/reports.js"),
    (name = "durably", esModule = embed "entry.js"),
    ${modules.join(",\n    ")}
  ],
  durableObjectNamespaces = [(className = "Reports", uniqueKey = "reports", enableSql = true)],
  durableObjectStorage = (localDisk = "disk"),
  bindings = [
    (name = "REPORTS", durableObjectNamespace = "Reports"),
    (name = "HOLDERS", durableObjectNamespace = (className = "AccountLimit", serviceName = "durably")),
  ],
);
`;
  await writeFile(join(folder, "entry.js"), 'export * from "./durably/index.js";\n');
  const compiler = fileURLToPath(new URL("../node_modules/typescript/bin/tsc", import.meta.url));
  const project = fileURLToPath(new URL("../examples", import.meta.url));
  execFileSync(process.execPath, [compiler, "-p", project, "--outDir", join(folder, "built")], { stdio: "inherit" });
  await writeFile(join(folder, "config.capnp"), config);
  const disk = `--directory-path=disk=${join(folder, "disk")}`;
  const args = ["serve", join(folder, "config.capnp"), "config", "--control-fd", "1", disk];
  workerd = spawn(binary, args, { stdio: ["ignore", "pipe", "inherit"] });
  assert.ok(workerd.stdout);
  const lines = createInterface(workerd.stdout);
  await new Promise((resolve, reject) => {
    lines.on("line", (line) => {
      const { socket, port } = JSON.parse(line);
      if (socket === "http") base = `http://127.0.0.1:${port}`;
      if (socket === "reports") reports = `http://127.0.0.1:${port}`;
      if (base && reports) resolve(undefined);
    });
    lines.on("close", () => reject(new Error("workerd ended instead of listening")));
  });
});

after(async () => {
  if (skip) return;
  const ended = new Promise((resolve) => workerd.once("exit", resolve));
  workerd.kill("SIGKILL");
  await ended;
  await rm(folder, { recursive: true });
});

/**
 * @param {object} body
 * @returns {Promise<Record<string, unknown>>}
 */
const ask = async (body) => {
  const answer = await fetch(base, { method: "POST", body: JSON.stringify(body) });
  return /** @type {Record<string, unknown>} */ (await answer.json());
};

test("a worker has permits of a Rust holder", { skip }, async () => {
  // Six want four of ten.
  const wanted = { key: "acme", group: "nightly", permits: 4, waitMs: 60_000, runMs: 100 };
  const answers = await Promise.all(Array.from({ length: 6 }, () => ask(wanted)));
  for (const { permits, lost, ...others } of answers) {
    assert.ok(Number(permits) >= 1 && Number(permits) <= 4);
    assert.deepEqual([lost, others], [false, {}]);
  }
  const all = await ask({ ...wanted, permits: 10, waitMs: 0, runMs: 0 });
  assert.deepEqual(all, { permits: 10, lost: false }, "all came back");
});

test("what the Rust holder refuses keeps its code on the way", { skip }, async () => {
  const message = { type: "sync", v: 1, clientId: "", grants: [] };
  const { code, field } = await ask({ key: "acme", message });
  assert.deepEqual([code, field], ["malformed", "clientId"]);
});

test("a worker in TypeScript keeps the work of its own objects within a Rust holder's limit", { skip }, async () => {
  const names = Array.from({ length: 25 }, (_, number) => `report-${String(number).padStart(2, "0")}`);
  const made = await Promise.all(names.map((name) => fetch(`${reports}/acme/${name}`, { method: "POST" })));
  assert.deepEqual(new Set(made.map(({ status }) => status)), new Set([201]));
  assert.deepEqual(await (await fetch(`${reports}/acme`)).json(), names);
  // All came back: the holder gives its whole limit to another.
  const all = await ask({ key: "acme", group: "nightly", permits: 10, waitMs: 0, runMs: 0 });
  assert.deepEqual(all, { permits: 10, lost: false });
});
