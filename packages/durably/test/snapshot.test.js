// Published texts, read.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { SnapshotError, readSnapshot } from "durably";

/** @type {{ PublishedContent: import("durably").PublishedContent[] }} */
const samples = JSON.parse(readFileSync(new URL("samples.json", import.meta.url), "utf8"));
const checksum = "00c0ffee00c0ffee";

test("snapshots and tombstones are read as they are", () => {
  for (const content of samples.PublishedContent) {
    const text = JSON.stringify({ schema: 1, checksum, content, later: true });
    assert.deepEqual(readSnapshot(content.group, text), content);
  }
});

test("what cannot be used is told by its code", () => {
  const [content] = samples.PublishedContent;
  assert.ok(content !== undefined);
  const good = { schema: 1, checksum, content };
  const [member] = content.members ?? [];
  const cases = [
    ["", "snapshot_malformed"],
    ["null", "snapshot_malformed"],
    [JSON.stringify(good).slice(0, -1), "snapshot_malformed"],
    [JSON.stringify({ ...good, schema: "1" }), "snapshot_malformed"],
    [JSON.stringify({ schema: 2, all: "new" }), "snapshot_newer_schema"],
    [JSON.stringify({ ...good, checksum: "" }), "snapshot_malformed"],
    [JSON.stringify({ ...good, content: { ...content, version: -1 } }), "snapshot_malformed"],
    [JSON.stringify({ ...good, content: { ...content, incarnation: null } }), "snapshot_malformed"],
    [JSON.stringify({ ...good, content: { ...content, members: {} } }), "snapshot_malformed"],
    [JSON.stringify({ ...good, content: { ...content, members: [{ ...member, state: "gone" }] } }), "snapshot_malformed"],
    [JSON.stringify({ ...good, content: { ...content, members: [{ ...member, joinedAt: 0.5 }] } }), "snapshot_malformed"],
    [JSON.stringify({ ...good, content: { ...content, group: "other" } }), "snapshot_other_group"],
  ];
  for (const [text = "", code] of cases) {
    assert.throws(() => readSnapshot(content.group, text), (error) => {
      assert.ok(error instanceof SnapshotError, text);
      assert.equal(error.code, code, text);
      return true;
    });
  }
});
