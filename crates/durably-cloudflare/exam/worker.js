// Declares the exam's class to the platform, and is the examiner's way to it: a POST of
// {object, action, request} to any path.
import { DurableObject } from "cloudflare:workers";
import { Exam } from "./exam.js";

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

export default {
  async fetch(request, env) {
    const { object, action, request: step } = await request.json();
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
