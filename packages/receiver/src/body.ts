import { BodyTimeoutError, BodyTooLargeError, IncompleteBodyError, WebhookRefusedError } from "./errors.ts";
import { timeLimit } from "./timeLimit.ts";

/** What the reading of a body is bounded by. */
export interface BodyLimits {
  /** Bytes of a body. */
  readonly maxBodyBytes: number;
  /** Milliseconds from the headers to the last byte. */
  readonly bodyTimeoutMs: number;
}

/** 1 MiB, 10 seconds. */
export const DEFAULT_LIMITS: BodyLimits = { maxBodyBytes: 1_048_576, bodyTimeoutMs: 10_000 };

/** The next chunk of a body: of a stream reader or an async iterator. */
export type NextChunk = () => Promise<{ readonly done?: boolean; readonly value?: Uint8Array | undefined }>;

/**
 * Reads a body within its limits; `eventId` is for the errors. Throws {@link BodyTooLargeError}, {@link BodyTimeoutError},
 * {@link IncompleteBodyError}.
 */
export async function readBody(next: NextChunk, limits: BodyLimits, eventId?: string): Promise<Uint8Array> {
  const { maxBodyBytes, bodyTimeoutMs } = limits;
  const limit = timeLimit(bodyTimeoutMs, () => new BodyTimeoutError(bodyTimeoutMs, eventId));
  const chunks: Uint8Array[] = [];
  let size = 0;
  try {
    // A sender that is cut off in the middle of its body may see a reset instead of the 413, so a body that is not
    // much too large is read to its end.
    while (size <= 2 * maxBodyBytes) {
      const { done, value } = await limit.wait(next());
      if (done === true || value === undefined) break;
      size += value.byteLength;
      chunks.push(value);
    }
  } catch (error) {
    throw error instanceof WebhookRefusedError ? error : new IncompleteBodyError(error, eventId);
  } finally {
    limit.clear();
  }
  if (size > maxBodyBytes) throw new BodyTooLargeError(maxBodyBytes, eventId);
  return concat(chunks, size);
}

/** True for a Buffer or any other Uint8Array, also of another realm (as in a test runner's sandbox). */
export function isBytes(value: unknown): value is Uint8Array {
  return ArrayBuffer.isView(value) && Object.prototype.toString.call(value) === "[object Uint8Array]";
}

function concat(chunks: readonly Uint8Array[], size: number): Uint8Array {
  const body = new Uint8Array(size);
  let at = 0;
  for (const chunk of chunks) {
    body.set(chunk, at);
    at += chunk.byteLength;
  }
  return body;
}
