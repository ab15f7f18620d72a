import { isUtf8 } from "node:buffer";
import { createMiddleware } from "hono/factory";
import { RefusedRequestError } from "./problem.ts";

const MAX_BODY_BYTES = 512 * 1_024;
/** As much of a body that is too large is read and dropped: a caller that still sends would not read the answer. */
const MAX_DROPPED_BYTES = 8 * 1_024 * 1_024;

/** Reads the body, of a bounded size, before anything looks at it. What is not UTF-8 would be read as something else. */
export const readBody = createMiddleware(async (c, next) => {
  const { body } = c.req.raw;
  if (body !== null) {
    const bytes = await readUpTo(body, MAX_BODY_BYTES);
    if (!bytes) {
      throw new RefusedRequestError("body-too-large", `A body has ${MAX_BODY_BYTES} bytes at the most.`, {
        headers: { connection: "close" },
      });
    }
    if (!isUtf8(bytes)) throw new RefusedRequestError("malformed-request", "The body is not UTF-8.");
    const { method, headers, signal } = c.req.raw;
    c.req.raw = new Request(c.req.url, { method, headers, signal, body: bytes });
  }
  await next();
});

async function readUpTo(
  body: ReadableStream<Uint8Array>,
  limit: number,
): Promise<Buffer<ArrayBuffer> | undefined> {
  const reader = body.getReader();
  const kept: Uint8Array[] = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return size <= limit ? Buffer.concat(kept) : undefined;
    size += value.length;
    if (size <= limit) kept.push(value);
    else if (size > MAX_DROPPED_BYTES) return undefined;
    else kept.length = 0;
  }
}
