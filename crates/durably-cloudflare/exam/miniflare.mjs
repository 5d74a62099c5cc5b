// Serves the exam's worker in miniflare, with its simulators of KV and R2:
//
//   node miniflare.mjs FOLDER-OF-THE-WORKER FOLDER-FOR-DATA
//
// Says where, as workerd does with --control-fd, and ends when its input does.
import { join } from "node:path";
import { Miniflare, convertV4MiniflareOptions } from "miniflare";

const [worker, data] = process.argv.slice(2);
const module = (type, name) => ({ type, path: join(worker, name) });

const options = convertV4MiniflareOptions({
  modulesRoot: worker,
  modules: [
    module("ESModule", "worker.js"),
    module("ESModule", "desk.js"),
    module("ESModule", "exam.js"),
    module("ESModule", "exam_piece0.js"),
    module("CompiledWasm", "exam_bg.wasm"),
  ],
  compatibilityDate: "2026-01-01",
  host: "127.0.0.1",
  port: 0,
  kvNamespaces: ["KV"],
  r2Buckets: ["R2"],
  durableObjects: {
    EXAM: { className: "ExamObject", useSQLite: true },
    SHELF: { className: "ShelfObject", useSQLite: true },
  },
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
