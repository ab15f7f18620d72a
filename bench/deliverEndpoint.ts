// The endpoint of the delivery benchmark, in a process of its own: answers 200 to every POST and notes how long after
// it was due each came. GET tells, and begins anew unless it only peeks.
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

const DUE = Buffer.from('"due":');
let latencies: number[] = [];

const server = createServer((request, response) => {
  if (request.method === "GET") {
    const sorted = latencies.toSorted((a, b) => a - b);
    if (!request.url?.includes("peek")) latencies = [];
    const at = (share: number): number => sorted[Math.floor((sorted.length - 1) * share)] ?? 0;
    response.end(JSON.stringify({ count: sorted.length, p50: at(0.5), p95: at(0.95), p99: at(0.99) }));
    return;
  }
  const chunks: Buffer[] = [];
  request.on("data", (chunk: Buffer) => chunks.push(chunk));
  request.on("end", () => {
    const body = chunks.length === 1 && chunks[0] ? chunks[0] : Buffer.concat(chunks);
    const at = body.indexOf(DUE) + DUE.length;
    latencies.push(Date.now() - Number.parseInt(body.toString("latin1", at, at + 15), 10));
    response.end();
  });
});
server.keepAliveTimeout = 60_000;
server.listen(0, "127.0.0.1", () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`);
});
