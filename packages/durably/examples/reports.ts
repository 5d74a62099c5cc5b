// A worker with objects of its own, written in TypeScript, whose work stays within budgets of a Rust holder:
// `POST /{account}/{report}` makes a report in the account's own object, `GET /{account}` lists what it has made.

import { DurableObject } from "cloudflare:workers";
import { HolderClient, HolderError, stubHolder, type HolderStub } from "durably";

interface Env {
  /** The objects of this worker. */
  REPORTS: { getByName(account: string): Reports };
  /** The class `AccountLimit` of the ready-made worker: an account's holder is named like it. */
  HOLDERS: { getByName(key: string): HolderStub };
}

/** The reports of one account, which is the object's name. */
export class Reports extends DurableObject<Env> {
  // One client for an object: all its requests share it. What it holds comes back if the object goes.
  #client: HolderClient | undefined;

  constructor(ctx: DurableObject<Env>["ctx"], env: Env) {
    super(ctx, env);
    ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS reports (name TEXT PRIMARY KEY, made_at INTEGER NOT NULL)");
  }

  async make(account: string, report: string): Promise<{ made: boolean; reason?: string }> {
    this.#client ??= new HolderClient({ ask: stubHolder(this.env.HOLDERS.getByName(account)) });
    try {
      const permit = await this.#client.acquire({ group: "reports", waitMs: 20_000 });
      try {
        await work(permit.signal);
        const insert = "INSERT INTO reports VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET made_at = excluded.made_at";
        this.ctx.storage.sql.exec(insert, report, Date.now());
        return { made: true };
      } finally {
        await permit.release();
      }
    } catch (error) {
      if (!(error instanceof HolderError)) throw error;
      return { made: false, reason: error.reason ?? error.code };
    }
  }

  list(): string[] {
    const rows = this.ctx.storage.sql.exec<{ name: string }>("SELECT name FROM reports ORDER BY name");
    return rows.toArray().map(({ name }) => name);
  }
}

/** What takes its time. It must stop when the signal says so: nobody counts it any more then. */
async function work(signal: AbortSignal): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, 50));
  signal.throwIfAborted();
}

export default {
  async fetch(request: Request, env: Env): Promise<Response> {
    const [, account, report] = new URL(request.url).pathname.split("/").map(decodeURIComponent);
    if (!account) return new Response("name an account", { status: 404 });
    const reports = env.REPORTS.getByName(account);
    if (request.method === "GET") return Response.json(await reports.list());
    const outcome = await reports.make(account, report ?? "report");
    return Response.json(outcome, { status: outcome.made ? 201 : 503 });
  },
};
