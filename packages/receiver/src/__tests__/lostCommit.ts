import { once } from "node:events";
import net from "node:net";

/**
 * A way to PostgreSQL on which the answer to each COMMIT is lost: the statement arrives, and then both sides find
 * the connection gone.
 */
export async function withoutCommitAnswers(url: string) {
  const { hostname, port } = new URL(url);
  const sockets = new Set<net.Socket>();
  const server = net.createServer((client) => {
    const upstream = net.connect(Number(port), hostname);
    let committing = false;
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => {
        client.destroy();
        upstream.destroy();
      });
    }
    client.on("data", (bytes) => {
      committing ||= bytes.includes("COMMIT");
      upstream.write(bytes);
    });
    upstream.on("data", (bytes) => {
      if (committing) client.destroy();
      else client.write(bytes);
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const way = new URL(url);
  way.hostname = "127.0.0.1";
  way.port = String((server.address() as net.AddressInfo).port);
  return {
    url: way.href,
    close: async () => {
      for (const socket of sockets) socket.destroy();
      server.close();
      await once(server, "close");
    },
  };
}
