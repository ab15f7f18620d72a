import { chmod, mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { TestProject } from "vitest/node";
import { processIdentity } from "../../store/embedded/processIdentity.ts";
import { startEmbeddedPostgres } from "../../store/embedded/startEmbeddedPostgres.ts";

declare module "vitest" {
  interface ProvidedContext {
    /** A PostgreSQL server on which the tests may make databases: see `createTestDatabase`. */
    postgresUrl: string;
  }
}

const PREFIX = "fencepost-test-postgres-";

/** What the processes that tests start have compiled: the next one finds it there. `npm ci` takes it away. */
const COMPILED = new URL("../../../../../node_modules/.cache/compiled", import.meta.url);

/** Vitest's global setup: one server for the whole run, the one of `DATABASE_URL` or an embedded one. */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  process.env["NODE_COMPILE_CACHE"] ??= fileURLToPath(COMPILED);
  const given = process.env["DATABASE_URL"];
  if (given) {
    project.provide("postgresUrl", given);
    return async () => {};
  }
  await removeLeftovers();
  const dataDir = await mkdtemp(join(tmpdir(), `${PREFIX}${process.pid}-`));
  await chmod(dataDir, 0o755); // as root the server runs as another user, who must get in
  const server = await startEmbeddedPostgres({ dataDir, maxConnections: 200 });
  project.provide("postgresUrl", server.url);
  return async () => {
    await server.stop();
    await rm(dataDir, { recursive: true, force: true });
  };
}

/** Servers of test runs that were killed: each is adopted, stopped and removed. */
async function removeLeftovers(): Promise<void> {
  for (const name of await readdir(tmpdir())) {
    const pid = Number(new RegExp(`^${PREFIX}(\\d+)-`).exec(name)?.[1]);
    if (!pid || (await processIdentity(pid))) continue;
    const dataDir = join(tmpdir(), name);
    try {
      await (await startEmbeddedPostgres({ dataDir })).stop();
    } catch (error) {
      process.stderr.write(`Could not stop a left-over test server in ${dataDir}: ${error}\n`);
    }
    await rm(dataDir, { recursive: true, force: true });
  }
}
