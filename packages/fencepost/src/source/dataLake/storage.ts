import { open, readdir, stat } from "node:fs/promises";
import { SourceUnavailableError } from "../errors.ts";

/** Where the objects of a lake are. Keys and folders are relative to the lake, with `/` between their parts. */
export interface LakeStorage {
  /** For messages: the place, without any secret. */
  readonly where: string;
  /** The object's bytes; null where there is none. Throws {@link TooLargeError} for more than `maxBytes`. */
  get(key: string, maxBytes: number, signal: AbortSignal): Promise<Buffer | null>;
  exists(key: string, signal: AbortSignal): Promise<boolean>;
  /**
   * The first names directly in a folder (`""` is the lake itself), in ascending order, at most `most` of them.
   * Absent where nothing can be listed.
   */
  readonly list?: (folder: string, most: number, signal: AbortSignal) => Promise<readonly string[]>;
}

/** An object has more bytes than its reader allows. */
export class TooLargeError extends Error {
  override readonly name = "TooLargeError";

  constructor(maxBytes: number) {
    super(`It has more than ${maxBytes} bytes.`);
  }
}

/** A folder of this machine. A folder that does not exist is empty. */
export function folderStorage(folder: string): LakeStorage {
  async function ask<T>(what: string, signal: AbortSignal, read: () => Promise<T>, missing: T): Promise<T> {
    try {
      signal.throwIfAborted();
      return await read();
    } catch (error) {
      signal.throwIfAborted();
      const { code } = error as NodeJS.ErrnoException;
      if (code === "ENOENT" || code === "ENOTDIR") return missing;
      if (error instanceof TooLargeError) throw error;
      throw new SourceUnavailableError(`${folder} did not give ${what}: ${code ?? error}.`, { cause: error });
    }
  }

  return {
    where: folder,
    get: (key, maxBytes, signal) =>
      ask<Buffer | null>(
        key,
        signal,
        async () => {
          const file = await open(`${folder}/${key}`);
          try {
            if ((await file.stat()).size > maxBytes) throw new TooLargeError(maxBytes);
            return await file.readFile({ signal });
          } finally {
            await file.close();
          }
        },
        null,
      ),
    exists: (key, signal) => ask(key, signal, async () => (await stat(`${folder}/${key}`)).isFile(), false),
    list: (sub, most, signal) =>
      ask(
        `a listing of ${sub || "itself"}`,
        signal,
        async () => (await readdir(`${folder}/${sub}`)).sort().slice(0, most),
        [],
      ),
  };
}

/** Joins the chunks of a body. Throws {@link TooLargeError} as soon as there are more than `maxBytes`. */
export async function joinBounded(body: AsyncIterable<Uint8Array>, maxBytes: number): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of body) {
    size += chunk.length;
    if (size > maxBytes) throw new TooLargeError(maxBytes);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks, size);
}
