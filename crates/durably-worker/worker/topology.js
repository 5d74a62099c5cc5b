// Declares the classes of topologies to the platform, and answers what is below /v1/topologies and /v1/members.
import {
  TopologyCoordinatorHalf,
  TopologyMemberHalf,
  TopologyShelfHalf,
  TopologyWatch,
  topology_request,
} from "./durably.js";
import { DurablyObject } from "./object.js";

/** How often a watch looks at the store, and after how many looks without news a line without meaning is sent. */
const LOOK_EVERY_MS = 2_000;
const LOOKS_TO_HEARTBEAT = 7;

/** The groups of one topology, which is the object's name. */
export class TopologyCoordinator extends DurablyObject {
  constructor(ctx, env) {
    super(ctx, env, TopologyCoordinatorHalf);
  }
}

/** A member of groups that applies what it is told, and shows it. Its name is the member's. */
export class TopologyMember extends DurablyObject {
  constructor(ctx, env) {
    super(ctx, env, TopologyMemberHalf);
  }
}

/** What is published of one group, for workers that have neither R2 nor KV. */
export class TopologyShelf extends DurablyObject {
  constructor(ctx, env) {
    super(ctx, env, TopologyShelfHalf);
  }

  /** By RPC: the published text of the group; with a text, after that has been published. */
  shelf(group, text) {
    return this.half.shelf(group, text ?? undefined);
  }
}

/** Answers a request that was read; undefined for one that is nobody's here. */
export async function topology(request, env, { method, path, query, contentType, body }) {
  if (path[0] !== "v1" || (path[1] !== "topologies" && path[1] !== "members")) return undefined;
  const header = (name) => request.headers.get(name) ?? undefined;
  const conditions = [header("if-match"), header("if-none-match")];
  const [status, answer, given] = await topology_request(env, method, path, query, contentType, body, ...conditions);
  const headers = { "content-type": "application/json", ...Object.fromEntries(given) };
  if (status === 200 && path[3] === "published" && path[5] === "watch") {
    const watch = new TopologyWatch(env, path[2], path[4], header("last-event-id"));
    return new Response(events(watch), { status, headers });
  }
  return new Response(status === 304 ? null : answer, { status, headers });
}

/** What a watch tells, for as long as somebody reads it. */
function events(watch) {
  const encoder = new TextEncoder();
  let looks = 0;
  return new ReadableStream({
    async pull(controller) {
      for (;;) {
        if (looks++ > 0) await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
        const news = await watch.look();
        if (news === undefined && looks % LOOKS_TO_HEARTBEAT !== 0) continue;
        controller.enqueue(encoder.encode(news ?? ":\n\n"));
        return;
      }
    },
    cancel() {
      watch.free();
    },
  });
}
