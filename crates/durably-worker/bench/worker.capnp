using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "bench", worker = .bench),
    (name = "disk", disk = (writable = true)),
    # Whoever runs jobs is at an address of this machine.
    (name = "internet", network = (allow = ["public", "private"])),
  ],
  sockets = [(name = "http", http = (), service = "bench")],
);

# The ready-made worker's modules, from its own folder, behind an entry that adds to them.
const bench :Workerd.Worker = (
  compatibilityDate = "2026-01-01",
  modules = [
    (name = "bench.js", esModule = embed "bench.js"),
    (name = "memory.js", esModule = embed "memory.js"),
    (name = "worker.js", esModule = embed "../durably/worker.js"),
    (name = "topology.js", esModule = embed "../durably/topology.js"),
    (name = "durably.js", esModule = embed "../durably/durably.js"),
    (name = "durably_piece0.js", esModule = embed "../durably/durably_piece0.js"),
    (name = "durably_bg.wasm", wasm = embed "../durably/durably_bg.wasm"),
  ],
  durableObjectNamespaces = [
    (className = "AccountLimit", uniqueKey = "durably-account-limit", enableSql = true),
    (className = "Empty", uniqueKey = "durably-bench-empty", enableSql = true),
  ],
  durableObjectStorage = (localDisk = "disk"),
  bindings = [
    (name = "ACCOUNT_LIMIT", durableObjectNamespace = "AccountLimit"),
    (name = "EMPTY", durableObjectNamespace = "Empty"),
    (name = "ROUND_WAIT_MS", fromEnvironment = "DURABLY_ROUND_WAIT_MS"),
    (name = "ROUND_PERIOD_MS", fromEnvironment = "DURABLY_ROUND_PERIOD_MS"),
    (name = "DEFAULT_LIMIT", fromEnvironment = "DURABLY_DEFAULT_LIMIT"),
  ],
);
