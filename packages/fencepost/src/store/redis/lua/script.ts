import { createHash } from "node:crypto";
import { type Script, SHARD_KEYS } from "../shards.ts";
import { HELPERS } from "./helpers.ts";

/** Helpers with the names that they define. */
const helpers = HELPERS.map((source) => ({
  source,
  defined: Array.from(source.matchAll(/^local (?:function )?(\w+)/gm), ([, name]) => name ?? ""),
}));

/** Not in a comment or a text, nor as a field. */
function names(source: string, name: string): boolean {
  return new RegExp(`(?<![.\\w])${name}\\b`).test(source.replaceAll(/--.*$|"[^"\n]*"/gm, ""));
}

/**
 * A script of these lines. It gets the helpers that it names, or that these name in turn, and declares the keys that
 * they all name: it can touch no other. `binary`: its replies have bytes in them, and are read as buffers.
 */
export function script(lines: string, { binary = false } = {}): Script {
  let source = lines;
  for (const helper of helpers.toReversed()) {
    if (helper.defined.some((name) => names(source, name))) source = `${helper.source}\n${source}`;
  }
  const keys = SHARD_KEYS.filter((key) => names(source, key.toUpperCase()));
  source = `local ${keys.map((key) => key.toUpperCase()).join(", ")} = unpack(KEYS)\n${source}`;
  return { source, sha: createHash("sha1").update(source).digest("hex"), keys, binary };
}
