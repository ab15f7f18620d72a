import { type Dispatcher, request } from "undici";
import { SourceUnavailableError } from "../errors.ts";
import { joinBounded, type LakeStorage, TooLargeError } from "./storage.ts";

/** What a server says of an error is not read beyond this many bytes. */
const MAX_ERROR_BYTES = 64 * 1024;

/** A web server under a base url: it lists nothing. `timeoutMs` is the total time for one object. */
export function httpStorage(base: URL, timeoutMs: number): LakeStorage {
  // A key of the owner's may stand in the path or query: messages name the host only.
  const where = base.origin;

  async function ask<T>(
    method: "GET" | "HEAD",
    key: string,
    signal: AbortSignal,
    read: (body: Dispatcher.ResponseData["body"]) => Promise<T>,
    missing: T,
  ): Promise<T> {
    const url = new URL(base);
    url.pathname = `${base.pathname.replace(/\/$/, "")}/${key}`;
    const total = AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]);
    try {
      const { statusCode, body } = await request(url, { method, signal: total });
      if (statusCode === 200) return await read(body);
      await body.dump({ limit: MAX_ERROR_BYTES });
      if (statusCode === 404 || statusCode === 410) return missing;
      const hint =
        statusCode === 403 ? " Storage that may not be listed says so of what is missing, too." : "";
      throw new SourceUnavailableError(`${where} answered HTTP ${statusCode} for ${key}.${hint}`);
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof SourceUnavailableError || error instanceof TooLargeError) throw error;
      const { code, message } = error as { code?: string; message?: string };
      const why = total.aborted ? `not whole within ${timeoutMs} ms` : (code ?? message);
      throw new SourceUnavailableError(`${where} did not give ${key}: ${why}.`, { cause: error });
    }
  }

  return {
    where,
    get: (key, maxBytes, signal) =>
      ask<Buffer | null>("GET", key, signal, (body) => joinBounded(body, maxBytes), null),
    exists: (key, signal) =>
      ask(
        "HEAD",
        key,
        signal,
        async (body) => {
          await body.dump();
          return true;
        },
        false,
      ),
  };
}
