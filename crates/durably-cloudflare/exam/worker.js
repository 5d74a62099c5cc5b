// Declares the exam's classes to the platform, and is the examiners' way to them: a POST to any path, of
// {object, action, request} for the host exam, of {publisher, case} for that of publishers.
import { DurableObject } from "cloudflare:workers";
import { askDesk } from "./desk.js";
import { Exam, ShelfHalf, examine_publisher, publisher_cases } from "./exam.js";

export { Desk } from "./desk.js";

export class ExamObject extends DurableObject {
  #inner;

  constructor(ctx, env) {
    super(ctx, env);
    this.#inner = new Exam(ctx);
  }

  call(request) {
    return this.#inner.call(request);
  }

  alarm(info) {
    return this.#inner.alarm(info?.retryCount ?? 0);
  }

  // Never resolves: the caller is told that the object was reset. Only a fresh macrotask may abort: what
  // Rust has queued would be lost for all objects otherwise.
  abort() {
    return new Promise(() => setTimeout(() => this.ctx.abort("told to"), 0));
  }
}

export class ShelfObject extends DurableObject {
  #inner;

  constructor(ctx, env) {
    super(ctx, env);
    this.#inner = new ShelfHalf(ctx);
  }

  shelf(group, text) {
    return this.#inner.shelf(group, text);
  }
}

async function examine(env, publisher, name) {
  try {
    if (name === undefined) return Response.json(publisher_cases(env, publisher));
    return Response.json(await examine_publisher(env, publisher, name));
  } catch (error) {
    return Response.json(String(error));
  }
}

export default {
  async fetch(request, env) {
    const { object, action, request: step, publisher, case: name, desk } = await request.json();
    if (publisher) return examine(env, publisher, name);
    if (desk) {
      const answer = await askDesk(env, desk, step).catch((error) => ({ thrown: error.message }));
      return Response.json(answer);
    }
    const stub = env.EXAM.getByName(object);
    try {
      if (action === "abort") {
        await stub.abort();
        return Response.json({ lost: "it lives on" });
      }
      const [passed, text] = await stub.call(step);
      return Response.json(passed ? { passed: text } : { failed: text });
    } catch (error) {
      return Response.json({ lost: String(error) });
    }
  },
};
