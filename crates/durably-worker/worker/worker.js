// Declares the classes of the worker to the platform, and hands requests to their halves in Rust.
import { AccountLimitHalf, JobShardHalf, request as answer } from "./durably.js";
import { DurablyObject } from "./object.js";
import { topology } from "./topology.js";

export { TopologyCoordinator, TopologyMember, TopologyShelf } from "./topology.js";

/** The budget of one account, which is the object's name. */
export class AccountLimit extends DurablyObject {
  constructor(ctx, env) {
    super(ctx, env, AccountLimitHalf);
  }

  /** The HTTP API of an account: `/v1/accounts/{account}/…` and `/v1/holders/{key}/messages`. */
  async fetch(request) {
    const { method, path, query, contentType, body } = await read(request);
    return respond(await this.request(method, path.slice(3), query, contentType, body));
  }

  /** By RPC: a message of the semaphore in, its reply out. Fails with the refusal as its message. */
  async permits(message) {
    const text = JSON.stringify(message) ?? "null";
    const [status, body] = await this.request("POST", ["messages"], "", undefined, text);
    if (status !== 200) throw new Error(body);
    return JSON.parse(body);
  }
}

/** A queue of jobs, and what runs them. */
export class JobShard extends DurablyObject {
  constructor(ctx, env) {
    super(ctx, env, JobShardHalf);
  }
}

/** A request as texts. Fails if its path is no percent-encoded UTF-8. */
async function read(request) {
  const { pathname, search } = new URL(request.url);
  return {
    method: request.method,
    path: pathname.slice(1).split("/").map(decodeURIComponent),
    query: search.slice(1),
    contentType: request.headers.get("content-type") ?? undefined,
    body: await request.text(),
  };
}

function respond([status, body, headers]) {
  return new Response(body, { status, headers: { "content-type": "application/json", ...Object.fromEntries(headers) } });
}

function refusal(status, code, message) {
  return Response.json({ error: { code, message } }, { status });
}

export default {
  async fetch(request, env, ctx) {
    let texts;
    try {
      texts = await read(request);
    } catch (error) {
      return refusal(400, "malformed_request", `the path is not percent-encoded UTF-8, or the body broke off: ${error.message}`);
    }
    const { method, path, query, contentType, body } = texts;
    const authorization = request.headers.get("authorization") ?? undefined;
    const answered = await answer(env, ctx, authorization, method, path, query, contentType, body);
    if (answered) return respond(answered);
    const found = await topology(request, env, texts);
    if (found) return found;
    return refusal(404, "not_found", `nothing is at ${new URL(request.url).pathname}: docs/http.md lists the paths`);
  },
};
