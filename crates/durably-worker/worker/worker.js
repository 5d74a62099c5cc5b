// Declares the classes of the worker to the platform, and finds the object that a request is for.
import { DurableObject } from "cloudflare:workers";
import { AccountLimitHalf } from "./durably.js";

const refusal = (status, code, message) => Response.json({ error: { code, message } }, { status });

/** The budget of one account, which is the object's name. */
export class AccountLimit extends DurableObject {
  #half;

  constructor(ctx, env) {
    super(ctx, env);
    this.#half = new AccountLimitHalf(ctx, Number(env.DEFAULT_LIMIT ?? 10));
  }

  /** The HTTP API of an account: `/v1/accounts/{account}/…` and `/v1/holders/{key}/messages`. */
  async fetch(request) {
    const [, , , ...path] = segments(request);
    const [status, body] = await this.#half.request(request.method, path, await request.text());
    return new Response(body, { status, headers: { "content-type": "application/json" } });
  }

  /** By RPC: a message of the semaphore in, its reply out. Fails with the refusal as its message. */
  async permits(message) {
    const [status, body] = await this.#half.request("POST", ["messages"], JSON.stringify(message));
    if (status !== 200) throw new Error(body);
    return JSON.parse(body);
  }

  /** By RPC: rows, requests and alarms since the object was built, as they are billed. */
  counters() {
    return JSON.parse(this.#half.counters());
  }

  alarm(info) {
    return this.#half.alarm(info?.retryCount ?? 0);
  }
}

function segments(request) {
  return new URL(request.url).pathname.slice(1).split("/").map(decodeURIComponent);
}

export default {
  async fetch(request, env) {
    let path;
    try {
      path = segments(request);
    } catch {
      return refusal(400, "malformed_request", "the path is not percent-encoded UTF-8");
    }
    const [version, room, name] = path;
    if (version === "v1" && room === "health") return Response.json({ status: "ok" });
    if (version !== "v1" || (room !== "accounts" && room !== "holders") || !name) {
      return refusal(404, "not_found", "nothing is here: docs/http.md lists the paths");
    }
    if (!env.ACCOUNT_LIMIT) {
      return refusal(500, "missing_binding", "bind the class AccountLimit to the name ACCOUNT_LIMIT");
    }
    return env.ACCOUNT_LIMIT.getByName(name).fetch(request);
  },
};
