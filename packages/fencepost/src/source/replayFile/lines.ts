import { createReadStream } from "node:fs";
import { ReplayFileUnreadableError } from "./errors.ts";
import { MAX_LINE_BYTES } from "./fileFormat.ts";

/** A line without its end, and where it begins in the file. Null text: it has no end, or none in time. */
export interface Line {
  readonly offset: number;
  readonly text: string | null;
}

const NEWLINE = 0x0a;

/**
 * The lines of a file from a byte on. What is held is one line and one piece of the file. Throws
 * {@link ReplayFileUnreadableError}.
 */
export async function* readLines(path: string, from: number, signal: AbortSignal): AsyncGenerator<Line> {
  let offset = from;
  let begun: Buffer[] = [];
  let length = 0;
  for await (const chunk of piecesOf(path, from, signal)) {
    const piece = chunk as Buffer;
    let start = 0;
    for (let end = piece.indexOf(NEWLINE); end >= 0; end = piece.indexOf(NEWLINE, start)) {
      const text = Buffer.concat([...begun, piece.subarray(start, end)]).toString();
      yield { offset, text };
      offset += length + (end - start) + 1;
      begun = [];
      length = 0;
      start = end + 1;
    }
    begun.push(piece.subarray(start));
    length += piece.length - start;
    if (length > MAX_LINE_BYTES) break;
  }
  if (length > 0) yield { offset, text: null };
}

async function* piecesOf(path: string, start: number, signal: AbortSignal): AsyncGenerator<unknown> {
  try {
    yield* createReadStream(path, { start, signal });
  } catch (error) {
    throw signal.aborted ? error : new ReplayFileUnreadableError(path, error as Error);
  }
}
