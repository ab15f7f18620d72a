import { chmod, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { startEmbeddedPostgres } from "fencepost";
import pg from "pg";

export interface Databases {
  /** A folder that is removed in the end. */
  readonly folder: string;
  /** The database of Fencepost. */
  readonly url: string;
  readonly fencepost: pg.Pool;
  /** The database of the customer, who knows nothing of Fencepost's. */
  readonly customer: pg.Pool;
}

/** Starts a PostgreSQL in a temporary folder. `atEnd` is given what takes each part of it away again. */
export async function startDatabases(atEnd: (close: () => Promise<unknown>) => void): Promise<Databases> {
  const folder = await mkdtemp(join(tmpdir(), "fencepost-demo-"));
  atEnd(() => rm(folder, { recursive: true, force: true }));
  await chmod(folder, 0o755); // as root the server runs as another user, who must get in
  const server = await startEmbeddedPostgres({ dataDir: join(folder, "postgres") });
  atEnd(() => server.stop());

  const open = (url: string): pg.Pool => {
    const pool = new pg.Pool({ connectionString: url });
    pool.on("error", () => {}); // an idle connection that broke; the next statement opens another
    atEnd(() => pool.end());
    return pool;
  };
  const fencepost = open(server.url);
  await fencepost.query("CREATE DATABASE customer");
  const customerUrl = new URL(server.url);
  customerUrl.pathname = "/customer";
  return { folder, url: server.url, fencepost, customer: open(customerUrl.href) };
}
