// Where the webhooks go: two endpoints that are slow, busy, broken and silent at times, as endpoints are.
import { createHash } from "node:crypto";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { nodeHandler, type Receiver, readNodeRequest } from "@fencepost/receiver";
import { startEndpoint } from "@fencepost/simulator";
import type pg from "pg";
import { TIMEOUT_MS } from "./attempts.ts";
import { book } from "./customer.ts";

/** A request as the endpoint saw it. */
export interface SeenRequest {
  readonly eventId: string;
  /** The number of the attempt, as its header says. */
  readonly attempt: number;
  /** The fencing token, as its header says. */
  readonly token: string;
  /** The status that the endpoint decided on, whether or not its answer arrived. */
  readonly status: number;
}

export interface DemoEndpoint {
  readonly url: string;
  /** In the order in which they were answered. */
  readonly requests: readonly SeenRequest[];
  /** Requests that are being worked on at this moment. */
  readonly open: number;
  close(): Promise<void>;
}

type Mood = "serves" | "is slow" | "is busy" | "fails" | "loses its answer";

/** How an endpoint meets an attempt: drawn from the seed, and never badly more than twice for one event. */
function moodFor(seed: number, eventId: string, attempt: number): Mood {
  const draw = createHash("sha256").update(`${seed} ${eventId} ${attempt}`).digest().readUInt32BE() / 2 ** 32;
  if (attempt <= 2) {
    if (draw < 0.06) return "is busy";
    if (draw < 0.12) return "fails";
    if (draw < 0.14) return "loses its answer";
  }
  return draw < 0.25 ? "is slow" : "serves";
}

const WORK_MS: Readonly<Record<Mood, number>> = {
  serves: 40,
  "is slow": 400,
  "is busy": 5,
  fails: 20,
  "loses its answer": 40,
};

/** An endpoint that takes whatever it is sent, and has no idea of what it was sent before. */
export async function startPlainEndpoint(seed: number): Promise<DemoEndpoint> {
  const requests: SeenRequest[] = [];
  let open = 0;
  const endpoint = await startEndpoint({
    async answer({ headers, complete }) {
      open++;
      const seen = seenIn(headers);
      const mood = moodFor(seed, seen.eventId, seen.attempt);
      await sleep(WORK_MS[mood]);
      const status = !complete ? 400 : mood === "is busy" ? 503 : mood === "fails" ? 500 : 200;
      requests.push({ ...seen, status });
      // It has taken the event, but its answer comes when nobody waits for it any more.
      if (mood === "loses its answer") await sleep(TIMEOUT_MS + 500, undefined, { ref: false });
      open--;
      return { status };
    },
  });
  return {
    url: endpoint.url,
    requests,
    get open() {
      return open;
    },
    close: endpoint.close,
  };
}

/** The customer's endpoint, with the receiver library in front of its tables. */
export async function startReceiverEndpoint(
  seed: number,
  receiver: Receiver<pg.PoolClient>,
): Promise<DemoEndpoint> {
  const requests: SeenRequest[] = [];
  let open = 0;
  const quiet = { onError: () => {} };
  const serve = nodeHandler(receiver, book, quiet);
  const serveAndFail = nodeHandler(
    receiver,
    async (message, tx) => {
      await book(message, tx);
      throw new Error("The customer's program fails after its writes: they are undone.");
    },
    quiet,
  );

  const server = createServer(async (request, response) => {
    open++;
    const seen = seenIn(request.headers);
    const mood = moodFor(seed, seen.eventId, seen.attempt);
    try {
      await sleep(WORK_MS[mood]);
      if (mood === "is busy") {
        response.writeHead(503).end();
      } else if (mood === "fails") {
        await serveAndFail(request, response);
      } else if (mood === "loses its answer") {
        await receiver.handle(await readNodeRequest(request), book);
        response.destroy();
      } else {
        await serve(request, response);
      }
      requests.push({ ...seen, status: response.statusCode });
    } catch {
      response.destroy();
      requests.push({ ...seen, status: 500 });
    }
    open--;
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    requests,
    get open() {
      return open;
    },
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

function seenIn(headers: Readonly<Record<string, string | readonly string[] | undefined>>) {
  const text = (name: string): string => String(headers[name] ?? "");
  return {
    eventId: text("webhook-id"),
    attempt: Number(text("webhook-attempt")),
    token: text("fencing-token"),
  };
}
