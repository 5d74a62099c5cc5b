/** What a topology publishes and sends: docs/topology.md. Held against the Rust types in CI. */

/** `draining`: takes no new work, and is read for as long as it is there. */
export type MemberState = "active" | "draining";

export interface Member {
  /** Unique in its group. */
  id: string;
  state: MemberState;
  /** Where it would best live. */
  locationHint?: string;
  /** What the application wants to know of it. */
  meta?: unknown;
  /** When it joined its group, on the coordinator's clock. */
  joinedAt: number;
}

/** Which life of its storage a coordinator is in; the later one is the newer one. */
export interface Incarnation {
  createdAt: number;
  /** For two that began at once. */
  nonce: string;
}

/** A group at one version, as the HTTP API shows it. */
export interface Snapshot {
  group: string;
  /** Rises with every change of the members; compares only within one coordinator. */
  version: number;
  coordinator: string;
  members: Member[];
}

/** What stores have of a group, within its envelope. Without `members` the group was deleted. */
export interface PublishedContent {
  group: string;
  version: number;
  coordinator: string;
  incarnation: Incarnation;
  members?: Member[];
}

/** The text in stores, parsed. `checksum` is of the text of `content` as it stands. */
export interface PublishedEnvelope {
  schema: 1;
  checksum: string;
  content: PublishedContent;
}

/** A value on its way to a member. Apply only what is newer than what the member has. */
export interface StateUpdate {
  group: string;
  channel: string;
  /** Rises with every value for this member on this channel, within an incarnation. */
  version: number;
  /** The version of the group when the value was set, or the member joined. */
  topologyVersion: number;
  coordinator: string;
  incarnation: Incarnation;
  value: unknown;
}

/** The body of `POST URL/state`, by which `durably serve` brings a value to a member. */
export interface StateDelivery extends StateUpdate {
  topology: string;
  member: string;
}

/** Why a published text cannot be used. */
export type SnapshotErrorCode = "snapshot_malformed" | "snapshot_newer_schema" | "snapshot_other_group";

export declare class SnapshotError extends Error {
  constructor(code: SnapshotErrorCode, message: string);
  readonly code: SnapshotErrorCode;
}

/**
 * Reads the published text of `group`; without `members` in the answer, the group was deleted.
 * Checks the schema, the group and the type of every field. The checksum is NOT verified: a text
 * that was changed and still has this form is not noticed, as the readers in Rust would.
 *
 * @throws {SnapshotError}
 */
export declare function readSnapshot(group: string, text: string): PublishedContent;
