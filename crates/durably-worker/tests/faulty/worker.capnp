using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "faulty", worker = .faulty),
    (name = "disk", disk = (writable = true)),
  ],
  sockets = [(name = "http", http = (), service = "faulty")],
);

const faulty :Workerd.Worker = (
  compatibilityDate = "2026-01-01",
  modules = [
    (name = "faulty.js", esModule = embed "worker.js"),
    (name = "ready.js", esModule = embed "../durably/worker.js"),
    (name = "object.js", esModule = embed "../durably/object.js"),
    (name = "topology.js", esModule = embed "../durably/topology.js"),
    (name = "durably.js", esModule = embed "../durably/durably.js"),
    (name = "durably_piece0.js", esModule = embed "../durably/durably_piece0.js"),
    (name = "durably_bg.wasm", wasm = embed "../durably/durably_bg.wasm"),
  ],
  durableObjectNamespaces = [
    (className = "AccountLimit", uniqueKey = "faulty-account-limit", enableSql = true),
    (className = "JobShard", uniqueKey = "faulty-job-shard", enableSql = true),
    (className = "TopologyCoordinator", uniqueKey = "faulty-topology-coordinator", enableSql = true),
    (className = "TopologyMember", uniqueKey = "faulty-topology-member", enableSql = true),
    (className = "TopologyShelf", uniqueKey = "faulty-topology-shelf", enableSql = true),
    (className = "Plain", uniqueKey = "faulty-plain", enableSql = true),
    (className = "WronglySet", uniqueKey = "faulty-wrongly-set", enableSql = true),
    (className = "WithoutSqlite", uniqueKey = "faulty-without-sqlite"),
  ],
  durableObjectStorage = (localDisk = "disk"),
  bindings = [
    (name = "ACCOUNT_LIMIT", durableObjectNamespace = "AccountLimit"),
    (name = "JOB_SHARD", durableObjectNamespace = "JobShard"),
    (name = "TOPOLOGY", durableObjectNamespace = "TopologyCoordinator"),
    (name = "TOPOLOGY_MEMBER", durableObjectNamespace = "TopologyMember"),
    (name = "TOPOLOGY_SHELF", durableObjectNamespace = "TopologyShelf"),
    (name = "PLAIN", durableObjectNamespace = "Plain"),
    (name = "WRONGLY_SET", durableObjectNamespace = "WronglySet"),
    (name = "WITHOUT_SQLITE", durableObjectNamespace = "WithoutSqlite"),
    (name = "JOB_URL", text = "http://127.0.0.1:1/"),
    (name = "SHARDS_PER_ACCOUNT", text = "2"),
    (name = "ROUND_WAIT_MS", text = "20"),
    (name = "LOCATION_HINT", text = "weur"),
    (name = "STATE_CHANNELS", text = "limits"),
  ],
);
