import { promisify } from "node:util";
import { type Zlib, type ZstdOptions, zstdDecompress } from "node:zlib";
import type { ObjectFault } from "./errors.ts";

/** zlib gives back its output in pieces of this size: a whole ledger in one or two. */
const UNPACK_CHUNK_BYTES = 512 * 1024;
/** More than what packs in parallel or appends makes: a frame for each few MB, or for each ledger. */
const MAX_FRAMES = 10_000;

/** Zstd data cannot be unpacked. */
export class ZstdError extends Error {
  override readonly name = "ZstdError";
  readonly fault: ObjectFault;

  constructor(fault: ObjectFault, detail: string, cause?: unknown) {
    super(detail, { cause });
    this.fault = fault;
  }
}

/** Unpacks one frame, and says where it ends. On zlib's own threads. */
const unpackFrame = promisify(zstdDecompress) as unknown as (
  packed: Buffer,
  options: ZstdOptions & { readonly info: true },
) => Promise<{ readonly buffer: Buffer; readonly engine: Zlib }>;

/**
 * Unpacks zstd data of one frame or more to at most `maxBytes`; frames that are to be skipped hold nothing. Throws
 * {@link ZstdError}.
 */
export async function unpackFrames(packed: Buffer, maxBytes: number): Promise<Buffer> {
  const tooLarge = (cause?: unknown) =>
    new ZstdError("too large", `it unpacks to more than ${maxBytes} bytes.`, cause);
  const frames: Buffer[] = [];
  let [at, size] = [0, 0];
  do {
    if (frames.length === MAX_FRAMES) {
      throw new ZstdError("too large", `it has more than ${MAX_FRAMES} zstd frames.`);
    }
    const { buffer, engine } = await unpackFrame(packed.subarray(at), {
      maxOutputLength: Math.max(maxBytes - size, 1), // zlib takes no less
      chunkSize: UNPACK_CHUNK_BYTES,
      info: true,
    }).catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ERR_BUFFER_TOO_LARGE") throw tooLarge(error);
      const detail = `its zstd data ends after ${packed.length} bytes, before its end.`;
      if (error.code === "Z_BUF_ERROR") throw new ZstdError("truncated", detail, error);
      throw new ZstdError("garbled", `its zstd data is wrong (${error.message}).`, error);
    });
    frames.push(buffer);
    at += engine.bytesWritten;
    size += buffer.length;
    if (size > maxBytes) throw tooLarge();
  } while (at < packed.length);
  const [only] = frames;
  return frames.length === 1 && only ? only : Buffer.concat(frames, size);
}
