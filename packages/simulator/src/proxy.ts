import { createConnection, createServer, type Socket } from "node:net";
import { listen } from "./listen.ts";

/** `up` is from the client to the target, `down` is the way back. */
export type Direction = "up" | "down";

/** A TCP proxy in front of a server, a database for one, that can break what goes through it. */
export interface TcpProxy {
  readonly port: number;
  /** Connections open now. */
  readonly connections: number;
  /** Resets every open connection on the client's side and ends it on the target's. New ones are accepted. */
  cut(): void;
  /**
   * Cuts all connections at the next chunk, in either direction, for which `when` is true. With `deliver` that
   * chunk still arrives: a COMMIT that the server sees, whose answer the client never gets.
   */
  cutWhen(
    when: (chunk: Buffer, direction: Direction) => boolean,
    options?: { readonly deliver?: boolean },
  ): void;
  /** Cuts all connections once `bytes` have gone in this direction from now on; the last of them arrive. */
  cutAfter(bytes: number, direction: Direction): void;
  /** Lets nothing through, in both directions, until `resume`; the connections stay open. */
  pause(): void;
  resume(): void;
  /** Cuts everything and stops listening. */
  close(): Promise<void>;
}

/** How long a cut connection may take to end on the target's side. */
const LINGER_MS = 5_000;

/** Starts a proxy on a free port of the loopback interface. */
export async function startProxy(target: {
  readonly targetPort: number;
  readonly targetHost?: string;
}): Promise<TcpProxy> {
  const { targetPort: port, targetHost: host = "127.0.0.1" } = target;
  const pairs = new Set<{ client: Socket; server: Socket }>();
  let paused = false;
  /** How many bytes of this chunk still pass before everything is cut; undefined: all of them, and no cut. */
  let limit: (chunk: Buffer, direction: Direction) => number | undefined = () => undefined;

  function cut(deliverTo?: Socket): void {
    for (const { client, server } of pairs) {
      // A reset could overtake what was just written, so that side ends in order.
      if (client === deliverTo) client.destroySoon();
      else client.resetAndDestroy();
      server.end();
      server.resume();
      server.setTimeout(LINGER_MS, () => server.destroy());
    }
    pairs.clear();
  }

  const listener = createServer((client) => {
    const server = createConnection({ port, host });
    const pair = { client, server };
    pairs.add(pair);
    const forward = (from: Socket, to: Socket, direction: Direction): void => {
      if (paused) from.pause();
      from.on("data", (chunk: Buffer) => {
        if (!pairs.has(pair)) return;
        const passing = limit(chunk, direction);
        if (!to.write(chunk.subarray(0, passing))) from.pause();
        if (passing === undefined) return;
        limit = () => undefined;
        cut(passing > 0 ? to : undefined);
      });
      to.on("drain", () => paused || from.resume());
      from.on("end", () => to.end());
      from.on("error", () => to.destroy());
      from.on("close", () => {
        if (pairs.delete(pair)) to.destroy();
      });
    };
    forward(client, server, "up");
    forward(server, client, "down");
  });
  const { port: ownPort, close } = await listen(listener);
  return {
    port: ownPort,
    get connections() {
      return pairs.size;
    },
    cut: () => cut(),
    cutWhen(when, { deliver = false } = {}) {
      limit = (chunk, direction) => (when(chunk, direction) ? (deliver ? chunk.length : 0) : undefined);
    },
    cutAfter(bytes, direction) {
      let left = bytes;
      limit = (chunk, way) => {
        if (way !== direction) return undefined;
        left -= chunk.length;
        return left <= 0 ? chunk.length + left : undefined;
      };
    },
    pause() {
      paused = true;
      for (const { client, server } of pairs) for (const socket of [client, server]) socket.pause();
    },
    resume() {
      paused = false;
      for (const { client, server } of pairs) for (const socket of [client, server]) socket.resume();
    },
    close() {
      cut();
      return close();
    },
  };
}
