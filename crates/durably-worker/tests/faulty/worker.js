// The ready-made worker, set up wrongly in ways that a user may: each first part of a path is one of them, and the
// rest is a path of the worker's.
import { DurableObject } from "cloudflare:workers";
import ready, { AccountLimit, JobShard } from "./ready.js";

export { AccountLimit, JobShard };

/** Another class than the one that is meant. */
export class Plain extends DurableObject {}

/** A class that has no SQLite: it is among `new_classes`, or in no migration. */
export class WithoutSqlite extends AccountLimit {}

/** A class whose setting is no number. */
export class WronglySet extends AccountLimit {
  constructor(ctx, env) {
    super(ctx, { ...env, DEFAULT_LIMIT: "many" });
  }
}

const faults = {
  "no-accounts": (env) => ({ ...env, ACCOUNT_LIMIT: undefined }),
  "no-shards": (env) => ({ ...env, JOB_SHARD: undefined }),
  "no-endpoint": (env) => ({ ...env, JOB_URL: undefined }),
  "wrong-class": (env) => ({ ...env, JOB_SHARD: env.PLAIN, TOPOLOGY: env.PLAIN }),
  "no-sqlite": (env) => ({ ...env, ACCOUNT_LIMIT: env.WITHOUT_SQLITE }),
  "wrong-setting": (env) => ({ ...env, ACCOUNT_LIMIT: env.WRONGLY_SET }),
  "with-token": (env) => ({ ...env, API_TOKEN: "secret" }),
  "as-it-is": (env) => env,
};

export default {
  async fetch(request, env, ctx) {
    const url = new URL(request.url);
    const [, fault, ...rest] = url.pathname.split("/");
    if (fault === "rpc") {
      // What a caller by RPC gets: the reply, or the message of the error.
      const { key, message } = await request.json();
      const answer = await env.ACCOUNT_LIMIT.getByName(key)
        .permits(message)
        .catch((error) => ({ thrown: error.message }));
      return Response.json(answer);
    }
    const { getRandomValues } = crypto;
    if (fault === "no-randomness") {
      // The host cannot go on without, so its object panics.
      crypto.getRandomValues = () => {
        throw new Error("there is none");
      };
    }
    try {
      const faulty = (faults[fault] ?? faults["as-it-is"])(env);
      return await ready.fetch(new Request(new URL(`/${rest.join("/")}`, url), request), faulty, ctx);
    } finally {
      crypto.getRandomValues = getRandomValues;
    }
  },
};
