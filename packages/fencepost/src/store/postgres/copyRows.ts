import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { from } from "pg-copy-streams";
import { arrayText } from "./arrayText.ts";
import type { DatabaseClient } from "./database.ts";

/** A value of a column; an array stands for `text[]`. */
export type CopyValue = string | number | bigint | boolean | Buffer | readonly string[] | null;

/** Text that is sent at once, in characters. */
const CHUNK = 64 * 1024;

/**
 * Writes rows with COPY, in the caller's transaction: about half of what an INSERT of many rows costs. It knows no ON
 * CONFLICT: a key that is there fails all of it. `table` and `columns` are SQL.
 */
export async function copyRows(
  client: DatabaseClient,
  table: string,
  columns: readonly string[],
  rows: Iterable<readonly CopyValue[]>,
): Promise<void> {
  const sql = `COPY ${table} (${columns.join(", ")}) FROM STDIN`;
  await pipeline(Readable.from(chunksOf(rows)), client.query(from(sql)));
}

function* chunksOf(rows: Iterable<readonly CopyValue[]>): Generator<string> {
  let text = "";
  for (const row of rows) {
    let separator = "";
    for (const value of row) {
      text += separator + textOf(value);
      separator = "\t";
    }
    text += "\n";
    if (text.length < CHUNK) continue;
    yield text;
    text = "";
  }
  if (text !== "") yield text;
}

function textOf(value: CopyValue): string {
  if (value === null) return "\\N";
  if (typeof value === "string") return escaped(value);
  if (Buffer.isBuffer(value)) return `\\\\x${value.toString("hex")}`;
  if (typeof value === "object") return escaped(arrayText(value));
  return String(value);
}

/** Between two tabs. */
function escaped(text: string): string {
  return /[\\\t\n\r]/.test(text)
    ? text.replace(/[\\\t\n\r]/g, (character) => ESCAPES[character] ?? "")
    : text;
}

const ESCAPES: Readonly<Record<string, string>> = { "\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r" };
