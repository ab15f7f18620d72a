import type { Server as HttpServer } from "node:http";
import type { AddressInfo, Server } from "node:net";

/** Listens on a free port of the loopback interface. `close` resolves when every connection has ended. */
export async function listen(
  server: Server | HttpServer,
): Promise<{ port: number; close: () => Promise<void> }> {
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(0, "127.0.0.1", resolve);
  });
  const { port } = server.address() as AddressInfo;
  const close = (): Promise<void> =>
    new Promise((resolve) => {
      server.close(() => resolve());
      if ("closeAllConnections" in server) server.closeAllConnections();
    });
  return { port, close };
}
