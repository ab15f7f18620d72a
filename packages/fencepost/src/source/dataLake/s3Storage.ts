import { S3mini } from "s3mini";
import { SourceUnavailableError } from "../errors.ts";
import { joinBounded, type LakeStorage, TooLargeError } from "./storage.ts";

export interface S3Options {
  /** Origin of the service; AWS unless given. Buckets are asked for in the path. */
  readonly endpoint?: string;
  /** us-east-1 unless given. */
  readonly region?: string;
  /** Without a key, requests are not signed: a public bucket. */
  readonly accessKeyId?: string;
  readonly secretAccessKey?: string;
}

/** A bucket of S3-compatible storage, from `s3://bucket/prefix`. `timeoutMs` is the total time for one answer. */
export function s3Storage(url: URL, options: S3Options, timeoutMs: number): LakeStorage {
  const { region = "us-east-1", accessKeyId = "", secretAccessKey = "" } = options;
  if ((accessKeyId === "") !== (secretAccessKey === "")) {
    throw new TypeError(
      "source.s3 needs both accessKeyId and secretAccessKey, or neither for a public bucket.",
    );
  }
  const { endpoint = `https://s3.${region}.amazonaws.com` } = options;
  if (!/^https?:\/\//.test(endpoint)) throw new TypeError("source.s3.endpoint is not an http or https url.");
  const bucket = `${endpoint.replace(/\/+$/, "")}/${url.host}`;
  const prefix = decodeURIComponent(url.pathname).replace(/^\/|\/$/g, "");
  const where = `s3://${url.host}/${prefix}`;
  const fullKey = (key: string): string => (prefix === "" ? key : `${prefix}/${key}`);

  async function ask<T>(
    what: string,
    signal: AbortSignal,
    question: (client: S3mini) => Promise<T>,
  ): Promise<T> {
    const total = AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]);
    // The client knows no signal of its own, so each question has a client whose requests end with it.
    const client = new S3mini({
      accessKeyId,
      secretAccessKey,
      endpoint: bucket,
      region,
      fetch: (input, init) => fetch(input, { ...init, signal: total }),
    });
    try {
      return await question(client);
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof TooLargeError) throw error;
      const { status, code, cause } = error as { status?: number; code?: string; cause?: { code?: string } };
      const problem = total.aborted
        ? `not whole within ${timeoutMs} ms`
        : [status && `HTTP ${status}`, code ?? cause?.code].filter(Boolean).join(" ") || String(error);
      throw new SourceUnavailableError(`${where} did not give ${what}: ${problem.slice(0, 200)}.`, {
        cause: error,
      });
    }
  }

  return {
    where,
    get: (key, maxBytes, signal) =>
      ask(key, signal, async (client) => {
        const response = await client.getObjectResponse(fullKey(key));
        if (!response) return null;
        return response.body ? joinBounded(response.body, maxBytes) : Buffer.alloc(0);
      }),
    exists: (key, signal) =>
      ask(key, signal, async (client) => (await client.objectExists(fullKey(key))) === true),
    list: (folder, most, signal) =>
      ask(`a listing of ${folder || "itself"}`, signal, async (client) => {
        const start = fullKey(folder === "" ? "" : `${folder}/`);
        const found = await client.listObjectsPaged("/", start, most, undefined, { delimiter: "/" });
        const names = (found?.objects ?? []).map(({ Key }) => Key.slice(start.length).replace(/\/$/, ""));
        // A page gives its objects before its folders.
        return names.sort();
      }),
  };
}
