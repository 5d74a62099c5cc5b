/** The jobs of `durably serve`: docs/http.md. Held against the Rust types in CI, unless it says otherwise. */

import type { BlockedReason } from "./protocol.js";

/** The body of `POST /v1/jobs`, alone or in a list. */
export interface NewJob {
  account: string;
  /** Unique within the account. */
  id: string;
  /** `default` if not given. */
  group?: string;
  /** What the job endpoint gets. */
  body?: unknown;
}

/** `refused` has an `error`. (Held against a running server only.) */
export type SubmitOutcome = "queued" | "duplicate" | "refused";

/** What became of one submitted job. (Held against a running server only.) */
export interface JobResult {
  /** Its line, from 1, in an answer to lines. */
  line?: number;
  account?: string;
  id?: string;
  outcome: SubmitOutcome;
  error?: ApiError;
}

/** The answer to `POST /v1/jobs` with one job or a list. (Held against a running server only.) */
export interface SubmitAnswer {
  results: JobResult[];
}

/** Every code is in docs/http.md. (Held against a running server only.) */
export interface ApiError {
  code: string;
  message: string;
  /** The field to blame. */
  field?: string;
}

/** The body of every answer that is not a success. (Held against a running server only.) */
export interface ApiFailure {
  error: ApiError;
}

/** `unknown` is told by the library only; over HTTP it is a 404. */
export type JobState = "unknown" | "queued" | "claiming" | "running" | "completed" | "failed" | "cancelled";

/** Why a job waits. */
export type WaitReason = BlockedReason | "unreachable";

/** The answer to `GET /v1/accounts/{account}/jobs/{id}`. */
export interface JobStatus {
  account: string;
  id: string;
  state: JobState;
  group?: string;
  /** While it waits: its place in its group within its shard, from 1. */
  place?: number;
  /** While it waits: why its group got no permit when last asked. */
  blockedReason?: WaitReason;
  /** While it waits: what its group is measured against at this moment. */
  usage?: Standing;
  /** Since when it is in this state, or blocked for this reason. */
  since?: number;
  /** Attempts begun. */
  attempt?: number;
  nextAttemptAt?: number;
  lastError?: string;
  /** What the job endpoint answered. */
  result?: unknown;
}

/** The `outcome` of `DELETE /v1/accounts/{account}/jobs/{id}`; over HTTP the last three are errors. */
export type CancelOutcome = "cancelled" | "stopping" | "running" | "ended" | "unknown";

/** The answer to `GET /v1/accounts/{account}/jobs`. */
export interface AccountJobs {
  waiting: number;
  running: number;
  /** Permits that shards have leased and not used yet. */
  undrawn: number;
}

/** What a group is measured against at one moment. */
export interface Standing {
  /** Permits that may be out at once, of all groups. */
  limit: number;
  granted: number;
  leased: number;
  available: number;
  group: GroupStanding;
}

export interface GroupStanding {
  /** The group's own ceiling, if it has one. */
  limit?: number;
  granted: number;
  leased: number;
  /** Why the group is given nothing whatever is left, if so. */
  closed?: BlockedReason;
}

/** The answer to `GET /v1/accounts/{account}/usage`. */
export interface Usage {
  limit: number;
  granted: number;
  leased: number;
  available: number;
  groups: Record<string, GroupUsage>;
}

export interface GroupUsage {
  granted: number;
  /** The group's own ceiling, if it has one. */
  limit?: number;
}
