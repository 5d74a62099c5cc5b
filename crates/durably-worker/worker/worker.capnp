using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "durably", worker = .durably),
    (name = "disk", disk = (writable = true)),
  ],
  sockets = [(name = "http", http = (), service = "durably")],
);

const durably :Workerd.Worker = (
  compatibilityDate = "2026-01-01",
  modules = [
    (name = "worker.js", esModule = embed "worker.js"),
    (name = "durably.js", esModule = embed "durably.js"),
    (name = "durably_piece0.js", esModule = embed "durably_piece0.js"),
    (name = "durably_bg.wasm", wasm = embed "durably_bg.wasm"),
  ],
  durableObjectNamespaces = [(className = "AccountLimit", uniqueKey = "durably-account-limit", enableSql = true)],
  durableObjectStorage = (localDisk = "disk"),
  bindings = [(name = "ACCOUNT_LIMIT", durableObjectNamespace = "AccountLimit")],
);
