// The ready-made worker, set up wrongly in ways that a user may: each first part of a path is one of them, and the
// rest is a path of the worker's. `/wished` answers where objects were wished to come to be, which is not to be seen of
// them here.
import { DurableObject } from "cloudflare:workers";
import ready, * as classes from "./ready.js";

export { AccountLimit, TopologyMember, TopologyShelf } from "./ready.js";

/** By binding and name of an object: the hints that it was asked for with. */
const wished = {};

/** The same environment, whose namespaces of objects note that. */
function noting(env) {
  const noted = (binding, objects) => ({
    getByName(name, options) {
      const hints = (wished[`${binding} ${name}`] ??= []);
      const hint = options?.locationHint ?? null;
      if (!hints.includes(hint)) hints.push(hint);
      return objects.getByName(name, options);
    },
  });
  const bindings = Object.entries(env).map(([name, value]) => [name, value?.getByName ? noted(name, value) : value]);
  return Object.fromEntries(bindings);
}

const notingClass = (Class) =>
  class extends Class {
    constructor(ctx, env) {
      super(ctx, noting(env));
    }
  };

export class JobShard extends notingClass(classes.JobShard) {}

export class TopologyCoordinator extends notingClass(classes.TopologyCoordinator) {}

/** Another class than the one that is meant. */
export class Plain extends DurableObject {}

/** A class that has no SQLite: it is among `new_classes`, or in no migration. */
export class WithoutSqlite extends classes.AccountLimit {}

/** A class whose setting is no number. */
export class WronglySet extends classes.AccountLimit {
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
    if (fault === "wished") return Response.json(wished);
    const { getRandomValues } = crypto;
    if (fault === "no-randomness") {
      // The host cannot go on without, so its object panics.
      crypto.getRandomValues = () => {
        throw new Error("there is none");
      };
    }
    try {
      const faulty = (faults[fault] ?? faults["as-it-is"])(noting(env));
      return await ready.fetch(new Request(new URL(`/${rest.join("/")}`, url), request), faulty, ctx);
    } finally {
      crypto.getRandomValues = getRandomValues;
    }
  },
};
