// The endpoints of the fairness benchmark, in a process of their own: one that never answers, one that drips a body for
// ever, one that says 429, and as many that answer 200 at once. Prints their urls, in that order, as one JSON line.
import { createServer, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

const good = Number(process.argv[2]);
const answers: readonly ((response: ServerResponse) => void)[] = [
  () => {},
  (response) => {
    response.writeHead(200);
    const timer = setInterval(() => response.writableNeedDrain || response.write("."), 100);
    response.on("close", () => clearInterval(timer));
  },
  (response) => response.writeHead(429, { "retry-after": "1" }).end(),
  ...Array.from({ length: good }, () => (response: ServerResponse) => {
    response.end();
  }),
];

const urls = await Promise.all(
  answers.map(async (answer) => {
    const server: Server = createServer((request, response) => {
      request.resume();
      request.on("end", () => answer(response));
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
  }),
);
process.stdout.write(`${JSON.stringify(urls)}\n`);
