/** Types of Durably's wire, and a client for holders. Times are milliseconds since the epoch. */
export * from "./protocol.js";
export * from "./topology.js";
export * from "./jobs.js";
export * from "./client.js";
