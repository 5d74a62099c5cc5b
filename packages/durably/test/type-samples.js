// Writes test/generated/samples.ts: the samples as TypeScript, each list held against the type of its name.
// JSON that is imported has lost its literal types, so the text is written out.

import { mkdirSync, readFileSync, writeFileSync } from "node:fs";

/** @type {Record<string, unknown[]>} */
const samples = JSON.parse(readFileSync(new URL("samples.json", import.meta.url), "utf8"));
const lines = [
  'import type * as T from "durably";',
  'import type { Exact } from "../exact.js";',
  "",
];
for (const [name, list] of Object.entries(samples)) {
  const entries = list.map((sample) => `  ${JSON.stringify(sample)},`);
  lines.push(`export const ${name} = [`, ...entries, `] satisfies readonly [T.${name}, ...T.${name}[]];`);
  lines.push(`export const ${name}IsExact: Exact<T.${name}, typeof ${name}> = true;`, "");
}
const folder = new URL("generated/", import.meta.url);
mkdirSync(folder, { recursive: true });
writeFileSync(new URL("samples.ts", folder), lines.join("\n"));
