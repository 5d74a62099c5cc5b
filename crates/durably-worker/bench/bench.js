// The ready-made worker with what its measurements and tests need beside it: a class that does nothing, and doors to
// the objects of all classes. `POST /bench/{binding}/{object}/{door}` goes through one, `POST /bench/memory` tells how
// large the memory of the wasm is; all else is the ready-made worker's.
import { DurableObject } from "cloudflare:workers";
import { memoryBytes } from "./memory.js";
import ready, * as classes from "./worker.js";

export { TopologyCoordinator, TopologyMember, TopologyShelf } from "./worker.js";

const doors = {
  // Never answered: the caller is told that the object was reset. Only a fresh macrotask may abort: what Rust has queued
  // would be lost for all objects otherwise.
  async evict(stub) {
    await stub.evict().catch(() => undefined);
    return null;
  },
  counters: (stub) => stub.counters(),
  // The shortest way to an object and back.
  touch: async (stub) => (await stub.fetch("http://object/")).json(),
};

const withDoors = (Class) =>
  class extends Class {
    evict() {
      return new Promise(() => setTimeout(() => this.ctx.abort("told to"), 0));
    }
  };

/** What is always there: how long it takes is taken off. */
export class Empty extends withDoors(DurableObject) {
  fetch() {
    return Response.json(null);
  }
}

export class AccountLimit extends withDoors(classes.AccountLimit) {}

export class JobShard extends withDoors(classes.JobShard) {}

export default {
  async fetch(request, env, ctx) {
    const [room, binding, object, door] = new URL(request.url).pathname.slice(1).split("/").map(decodeURIComponent);
    if (room !== "bench") return ready.fetch(request, env, ctx);
    if (binding === "memory") return Response.json(memoryBytes());
    return Response.json((await doors[door](env[binding].getByName(object))) ?? null);
  },
};
