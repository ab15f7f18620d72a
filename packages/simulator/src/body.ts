import type { IncomingMessage } from "node:http";

/** Reads a body to its end, or until there are `enough` bytes (or the connection ends): what was read. */
export function readAtLeast(request: IncomingMessage, enough: number): Promise<Buffer> {
  if (enough === 0) return Promise.resolve(Buffer.alloc(0));
  const chunks: Buffer[] = [];
  let size = 0;
  return new Promise((resolve) => {
    const finish = (): void => resolve(Buffer.concat(chunks));
    request.on("data", (chunk: Buffer) => {
      if (size < enough) chunks.push(chunk);
      size += chunk.length;
      if (size < enough) return;
      request.pause();
      finish();
    });
    request.on("end", finish);
    request.on("close", finish);
  });
}
