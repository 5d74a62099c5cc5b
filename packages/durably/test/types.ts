// What must be a type error is one, and what applications write is none. Nothing here is run.

import { HolderClient, HolderError, SnapshotError, fetchHolder, readSnapshot, stubHolder } from "durably";
import type * as T from "durably";
import * as implementation from "../src/index.js";
import type { Exact } from "./exact.js";

// The implementation is what the types say.
implementation satisfies {
  HolderClient: new (options: T.HolderClientOptions) => T.HolderClient;
  HolderError: typeof HolderError;
  SnapshotError: typeof SnapshotError;
  fetchHolder: typeof fetchHolder;
  readSnapshot: typeof readSnapshot;
  stubHolder: typeof stubHolder;
};

// @ts-expect-error the version is 1
({ type: "sync", v: 2, clientId: "c", grants: [] }) satisfies T.Message;
// @ts-expect-error no such message
({ type: "ask", v: 1, clientId: "c", grants: [] }) satisfies T.Message;
// @ts-expect-error a request says what it wants
({ type: "request", v: 1, clientId: "c", grants: [] }) satisfies T.Message;
// @ts-expect-error a sync wants nothing
({ type: "sync", v: 1, clientId: "c", grants: [], demand: [] }) satisfies T.Message;
// @ts-expect-error a misspelt field
({ type: "sync", v: 1, clientId: "c", grants: [], clientTTLMs: 1 }) satisfies T.Message;
// @ts-expect-error marks are numbers
({ grantId: "g", claimed: "1", released: 0 }) satisfies T.GrantReport;
// @ts-expect-error a demand has an age
({ group: "g", count: 1 }) satisfies T.Demand;
// @ts-expect-error null is not absent
({ leaseId: "l", drawn: 0, released: 0, retired: null }) satisfies T.LeaseReport;
// @ts-expect-error said by a queue, not by a holder
"unreachable" satisfies T.BlockedReason;
// @ts-expect-error no such status
"late" satisfies T.GrantStatus;
// @ts-expect-error no such state
({ id: "m", state: "paused", joinedAt: 1 }) satisfies T.Member;
// @ts-expect-error another schema
({ schema: 2, checksum: "", content: { group: "g", version: 1, coordinator: "c", incarnation: { createdAt: 1, nonce: "" } } }) satisfies T.PublishedEnvelope;
// @ts-expect-error a job has an account
({ id: "job-1" }) satisfies T.NewJob;
// @ts-expect-error a misspelt field
({ account: "a", id: "job-1", grup: "g" }) satisfies T.NewJob;
// @ts-expect-error no such state
({ account: "a", id: "job-1", state: "waiting" }) satisfies T.JobStatus;

// The check of samples notices what it is there for.
type Two = { one: number; two?: string };
declare const whole: [{ one: number; two: string }, { one: number }];
export const isWhole: Exact<Two, typeof whole> = true;
declare const withoutAField: [{ one: number }];
// @ts-expect-error `two` occurs nowhere
export const lacksAField: Exact<Two, typeof withoutAField> = true;
declare const neverAbsent: [{ one: number; two: string }];
// @ts-expect-error `two` is absent nowhere
export const lacksAnAbsence: Exact<Two, typeof neverAbsent> = true;
// @ts-expect-error "b" is missing
export const lacksAValue: Exact<"a" | "b", ["a"]> = true;

export async function usage(stub: T.HolderStub): Promise<T.GrantReply["grants"]> {
  new HolderClient({ ask: stubHolder(stub) });
  const client = new HolderClient({ ask: fetchHolder({ url: "http://127.0.0.1:7070", key: "acme", fetch }) });
  const permit = await client.acquire({ group: "nightly", permits: 2, waitMs: 1_000 });
  const some: number = permit.permits;
  await fetch("https://example.com", { signal: permit.signal });
  await permit.release();
  // @ts-expect-error a group is needed
  await client.acquire({ permits: some });
  // @ts-expect-error a client needs a way to its holder
  new HolderClient({ clientId: "c" });
  const published = readSnapshot("tenant-1", "");
  // @ts-expect-error a group that was deleted has no members
  published.members.length;
  const reply = await stub.permits({ type: "sync", v: 1, clientId: "c", grants: [] });
  // @ts-expect-error a reply may be that to a sync
  reply.grants;
  return reply.type === "grant" ? reply.grants : [];
}
