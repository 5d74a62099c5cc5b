/**
 * Version 1 of the messages between a holder of permits and its clients: docs/semaphore.md, "The
 * wire". Held against the Rust types in CI.
 */

/** What a client wants in one group. */
export interface Demand {
  group: string;
  /** Permits wanted, from 1. */
  count: number;
  /** When the oldest waiting piece of work was queued. */
  oldestAt: number;
}

/** What became of a grant so far, as marks that only rise. */
export interface GrantReport {
  grantId: string;
  /** Permits ever claimed. */
  claimed: number;
  /** Claimed permits ever given back. */
  released: number;
}

/** What became of a lease so far, as marks that only rise. */
export interface LeaseReport {
  leaseId: string;
  /** Permits ever drawn. */
  drawn: number;
  /** Drawn permits ever given back. */
  released: number;
  /** The client will draw no more. */
  retired?: boolean;
}

/** Asks for permits; answered by the round that takes it up. */
export interface PermitRequest {
  type: "request";
  v: 1;
  clientId: string;
  demand: Demand[];
  grants: GrantReport[];
  /** Present, even empty, if the client can use leases. */
  leases?: LeaseReport[];
  /** The sender's clock. */
  sentAt?: number;
  /** Names the request, so that one whose reply was lost can be repeated. */
  requestId?: string;
  /** Rises with every request that is sent; only with `requestId`. */
  requestNumber?: number;
  /** How long the request may wait for a later round if the first one gives it nothing. */
  waitMs?: number;
  /** Registers a client without storage: after so long a silence all its permits come back. */
  clientTtlMs?: number;
}

/** Reports without asking; answered at once. */
export interface PermitSync {
  type: "sync";
  v: 1;
  clientId: string;
  grants: GrantReport[];
  leases?: LeaseReport[];
  /** The sender's clock. */
  sentAt?: number;
  /** Registers a client without storage: after so long a silence all its permits come back. */
  clientTtlMs?: number;
}

export type Message = PermitRequest | PermitSync;

/** Permits given to one group of the client. */
export interface Grant {
  grantId: string;
  group: string;
  permits: number;
}

/** Why demand of a group was left waiting. */
export type BlockedReason = "group_limit" | "limit" | "not_permitted" | "limit_resolution_error";

export interface Blocked {
  group: string;
  reason: BlockedReason;
}

/** `expired`: some of the claim came after the deadline; `not_found`: no such grant (any more). */
export type GrantStatus = "ok" | "expired" | "not_found";

/** The answer to a report of a grant. */
export interface GrantResult {
  grantId: string;
  /** Permits that count as claimed. */
  claimed: number;
  status: GrantStatus;
}

/** A lease as the holder sees it: new, refreshed, or stopped. */
export interface LeaseGrant {
  leaseId: string;
  /** Empty for a lease that the holder does not know. */
  group: string;
  permits: number;
  /** No permit is drawn from here on, on the holder's clock. */
  expiresAt: number;
}

/** The answer to a {@link PermitRequest}. */
export interface GrantReply {
  type: "grant";
  v: 1;
  grants: Grant[];
  /** Groups with demand left. */
  blocked: Blocked[];
  grantResults: GrantResult[];
  /** Ask no sooner, by the holder's clock. */
  nextRequestAt: number;
  /** Present exactly if the request had the field. */
  leases?: LeaseGrant[];
  /** Undrawn permits of groups with nothing queued are wanted back. */
  contended?: boolean;
  /** The highest that was seen of the client; present exactly if the request had one. */
  requestNumber?: number;
  /** The holder's clock; present exactly if the request said `sentAt`. */
  now?: number;
}

/** The answer to a {@link PermitSync}. */
export interface SyncReply {
  type: "synced";
  v: 1;
  grantResults: GrantResult[];
  leases?: LeaseGrant[];
  /** Undrawn permits of groups with nothing queued are wanted back. */
  contended?: boolean;
  /** The holder's clock; present exactly if the message said `sentAt`. */
  now?: number;
}

export type Reply = GrantReply | SyncReply;
