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
    (name = "object.js", esModule = embed "../durably/object.js"),
    (name = "topology.js", esModule = embed "../durably/topology.js"),
    (name = "durably.js", esModule = embed "../durably/durably.js"),
    (name = "durably_piece0.js", esModule = embed "../durably/durably_piece0.js"),
    (name = "durably_bg.wasm", wasm = embed "../durably/durably_bg.wasm"),
  ],
  durableObjectNamespaces = [
    (className = "AccountLimit", uniqueKey = "durably-account-limit", enableSql = true),
    (className = "JobShard", uniqueKey = "durably-job-shard", enableSql = true),
    (className = "TopologyCoordinator", uniqueKey = "durably-topology-coordinator", enableSql = true),
    (className = "TopologyMember", uniqueKey = "durably-topology-member", enableSql = true),
    (className = "TopologyShelf", uniqueKey = "durably-topology-shelf", enableSql = true),
    (className = "Empty", uniqueKey = "durably-bench-empty", enableSql = true),
  ],
  durableObjectStorage = (localDisk = "disk"),
  bindings = [
    (name = "ACCOUNT_LIMIT", durableObjectNamespace = "AccountLimit"),
    (name = "JOB_SHARD", durableObjectNamespace = "JobShard"),
    (name = "TOPOLOGY", durableObjectNamespace = "TopologyCoordinator"),
    (name = "TOPOLOGY_MEMBER", durableObjectNamespace = "TopologyMember"),
    (name = "TOPOLOGY_SHELF", durableObjectNamespace = "TopologyShelf"),
    (name = "EMPTY", durableObjectNamespace = "Empty"),
    (name = "API_TOKEN", fromEnvironment = "DURABLY_API_TOKEN"),
    (name = "DEFAULT_LIMIT", fromEnvironment = "DURABLY_DEFAULT_LIMIT"),
    (name = "DEFAULT_GROUP_LIMIT", fromEnvironment = "DURABLY_DEFAULT_GROUP_LIMIT"),
    (name = "DEFAULT_LEASES", fromEnvironment = "DURABLY_DEFAULT_LEASES"),
    (name = "ROUND_WAIT_MS", fromEnvironment = "DURABLY_ROUND_WAIT_MS"),
    (name = "ROUND_PERIOD_MS", fromEnvironment = "DURABLY_ROUND_PERIOD_MS"),
    (name = "GRANT_TIMEOUT_MS", fromEnvironment = "DURABLY_GRANT_TIMEOUT_MS"),
    (name = "ALARM_MIN_DELAY_MS", fromEnvironment = "DURABLY_ALARM_MIN_DELAY_MS"),
    (name = "SHARDS_PER_ACCOUNT", fromEnvironment = "DURABLY_SHARDS_PER_ACCOUNT"),
    (name = "JOB_URL", fromEnvironment = "DURABLY_JOB_URL"),
    (name = "JOB_CONCURRENCY", fromEnvironment = "DURABLY_JOB_CONCURRENCY"),
    (name = "JOB_ATTEMPTS", fromEnvironment = "DURABLY_JOB_ATTEMPTS"),
    (name = "JOB_TIMEOUT_MS", fromEnvironment = "DURABLY_JOB_TIMEOUT_MS"),
    (name = "MAX_BODY_BYTES", fromEnvironment = "DURABLY_MAX_BODY_BYTES"),
    (name = "MAX_QUEUE_LENGTH", fromEnvironment = "DURABLY_MAX_QUEUE_LENGTH"),
    (name = "RETENTION_MS", fromEnvironment = "DURABLY_RETENTION_MS"),
    (name = "STATE_CHANNELS", fromEnvironment = "DURABLY_STATE_CHANNELS"),
    (name = "MEMBER_URL", fromEnvironment = "DURABLY_MEMBER_URL"),
    (name = "MEMBER_TOKEN", fromEnvironment = "DURABLY_MEMBER_TOKEN"),
    (name = "DELIVERY_TIMEOUT_MS", fromEnvironment = "DURABLY_DELIVERY_TIMEOUT_MS"),
    (name = "DRAIN_CHECK_PERIOD_MS", fromEnvironment = "DURABLY_DRAIN_CHECK_PERIOD_MS"),
    (name = "REMOVAL_GUARD", fromEnvironment = "DURABLY_REMOVAL_GUARD"),
    (name = "MAX_SNAPSHOT_BYTES", fromEnvironment = "DURABLY_MAX_SNAPSHOT_BYTES"),
    (name = "LANDING_WINDOW_MS", fromEnvironment = "DURABLY_LANDING_WINDOW_MS"),
    (name = "READER_TTL_MS", fromEnvironment = "DURABLY_READER_TTL_MS"),
    (name = "LOCATION_HINT", fromEnvironment = "DURABLY_LOCATION_HINT"),
  ],
);
