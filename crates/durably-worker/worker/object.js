// What all classes have.
import { DurableObject } from "cloudflare:workers";

/** An object whose half in Rust is built with its state and the worker's settings. */
export class DurablyObject extends DurableObject {
  half;

  constructor(ctx, env, Half) {
    super(ctx, env);
    this.half = new Half(ctx, env);
  }

  /** By RPC, for the worker itself: a request whose path follows the object's name. */
  request(...texts) {
    return this.half.request(...texts);
  }

  /** By RPC: rows, requests and alarms since the object was built, as they are billed. */
  counters() {
    return JSON.parse(this.half.counters());
  }

  alarm(info) {
    return this.half.alarm(info?.retryCount ?? 0);
  }
}
