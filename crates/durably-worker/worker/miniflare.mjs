// Serves the ready-made worker's topologies in miniflare, with its simulators of R2 and KV:
//
//   node miniflare.mjs FOLDER-OF-THE-WORKER FOLDER-FOR-DATA
//
// The environment's DURABLY_STORE says which is bound: R2 or KV. Says where it serves, as workerd does with
// --control-fd, and ends when its input does.
import { join } from "node:path";
import { Miniflare, convertV4MiniflareOptions } from "miniflare";

const [worker, data] = process.argv.slice(2);
const module = (type, name) => ({ type, path: join(worker, name) });
const stores = { R2: { r2Buckets: ["TOPOLOGY_R2"] }, KV: { kvNamespaces: ["TOPOLOGY_KV"] } };

const options = convertV4MiniflareOptions({
  modulesRoot: worker,
  modules: [
    module("ESModule", "worker.js"),
    module("ESModule", "object.js"),
    module("ESModule", "topology.js"),
    module("ESModule", "durably.js"),
    module("ESModule", "durably_piece0.js"),
    module("CompiledWasm", "durably_bg.wasm"),
  ],
  compatibilityDate: "2026-01-01",
  host: "127.0.0.1",
  port: 0,
  bindings: { STATE_CHANNELS: "limits", ALARM_MIN_DELAY_MS: 1000 },
  durableObjects: {
    TOPOLOGY: { className: "TopologyCoordinator", useSQLite: true },
    TOPOLOGY_MEMBER: { className: "TopologyMember", useSQLite: true },
  },
  ...stores[process.env.DURABLY_STORE],
  resourcePersistencePath: data,
});
const miniflare = new Miniflare(options);

const url = await miniflare.ready;
console.log(JSON.stringify({ event: "listen", socket: "http", port: Number(url.port) }));
process.stdin.resume();
process.stdin.on("end", async () => {
  await miniflare.dispose();
  process.exit(0);
});
