export { HolderClient } from "./client.js";
export { HolderError, SnapshotError } from "./errors.js";
export { readSnapshot } from "./snapshot.js";
export { fetchHolder, stubHolder } from "./transports.js";
