// The half in JavaScript of the class in desk.rs: declares it to the platform, and says what others may call.
import { DurableObject } from "cloudflare:workers";
import { DeskHalf, ask_desk } from "./exam.js";

export class Desk extends DurableObject {
  #half;

  constructor(ctx, env) {
    super(ctx, env);
    this.#half = new DeskHalf(ctx);
  }

  /** By RPC: a message of the semaphore in, its reply out. */
  async permits(message) {
    return JSON.parse(await this.#half.permits(JSON.stringify(message)));
  }

  alarm(info) {
    return this.#half.alarm(info?.retryCount ?? 0);
  }
}

/** What a worker without state does with it. */
export async function askDesk(env, key, request) {
  return JSON.parse(await ask_desk(env, key, JSON.stringify(request)));
}
