using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "exam", worker = .exam),
    (name = "disk", disk = (writable = true)),
  ],
  sockets = [(name = "http", http = (), service = "exam")],
);

const exam :Workerd.Worker = (
  compatibilityDate = "2026-01-01",
  modules = [
    (name = "worker.js", esModule = embed "worker.js"),
    (name = "desk.js", esModule = embed "desk.js"),
    (name = "exam.js", esModule = embed "exam.js"),
    (name = "exam_piece0.js", esModule = embed "exam_piece0.js"),
    (name = "exam_bg.wasm", wasm = embed "exam_bg.wasm"),
  ],
  durableObjectNamespaces = [
    (className = "ExamObject", uniqueKey = "durably-exam", enableSql = true),
    (className = "Desk", uniqueKey = "durably-desk", enableSql = true),
  ],
  durableObjectStorage = (localDisk = "disk"),
  bindings = [
    (name = "EXAM", durableObjectNamespace = "ExamObject"),
    (name = "DESK", durableObjectNamespace = "Desk"),
  ],
);
