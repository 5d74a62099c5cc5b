// What the example uses of the platform. In a project of your own `wrangler types` writes all of it.

declare module "cloudflare:workers" {
  export class DurableObject<Env> {
    constructor(ctx: DurableObject<Env>["ctx"], env: Env);
    protected env: Env;
    ctx: {
      storage: { sql: { exec<Row>(statement: string, ...parameters: (string | number)[]): { toArray(): Row[] } } };
    };
  }
}
