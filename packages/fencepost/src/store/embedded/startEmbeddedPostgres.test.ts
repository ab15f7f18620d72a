import { execFile } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdir, mkdtemp, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { Client } from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { type ScriptProcess, startScript } from "../../__tests__/support/scriptProcess.ts";
import { waitUntil } from "../../__tests__/support/waitUntil.ts";
import {
  EmbeddedPostgresFolderError,
  EmbeddedPostgresStartError,
  EmbeddedPostgresVersionError,
} from "./errors.ts";
import { processIdentity } from "./processIdentity.ts";
import { startEmbeddedPostgres } from "./startEmbeddedPostgres.ts";

const IS_ROOT = process.getuid?.() === 0;

/** An engine in a process of its own: starts the server, says so, and stops it when told, or on Ctrl-C. */
const ENGINE = `
  import { startEmbeddedPostgres } from ${JSON.stringify(new URL("./startEmbeddedPostgres.ts", import.meta.url).href)};
  import { Client } from ${JSON.stringify(import.meta.resolve("pg"))};
  const server = await startEmbeddedPostgres({ dataDir: process.argv[1] });
  process.on("SIGINT", async () => {
    const client = new Client({ connectionString: server.url });
    await client.connect();
    const { rows } = await client.query("SELECT 'still there' AS answer");
    await client.end();
    console.log(rows[0].answer);
    await server.stop();
    process.exit(0);
  });
  console.log(JSON.stringify({ url: server.url, adopted: server.adopted }));
  process.stdin.on("data", async () => {
    await server.stop();
    process.exit(0);
  });
`;

describe("the embedded PostgreSQL", () => {
  let made: string;
  let dataDir: string;
  const engines: ScriptProcess[] = [];

  beforeAll(async () => {
    made = await temporaryFolder();
    await (await startEmbeddedPostgres({ dataDir: made })).stop();
  });
  afterAll(() => rm(made, { recursive: true, force: true }));
  beforeEach(async () => {
    dataDir = await temporaryFolder();
  });
  afterEach(async () => {
    for (const { child } of engines.splice(0)) await end(child, () => child.kill("SIGKILL"));
    const pid = await serverPid();
    if (pid && (await serverRuns())) process.kill(pid, "SIGKILL");
    await waitUntil(async () => !(await serverRuns()), { what: "the server of the test is gone" });
    await rm(dataDir, { recursive: true, force: true, maxRetries: 10 });
  });

  /** Fills the folder of the test with a stopped database, faster than making a new one. */
  const copyMade = () => promisify(execFile)("cp", ["-a", `${made}/.`, dataDir]);

  async function startEngine(): Promise<ScriptProcess & { url: string; adopted: boolean }> {
    const engine = startScript(ENGINE, [dataDir]);
    engines.push(engine);
    const { url, adopted } = JSON.parse(await engine.nextLine()) as { url: string; adopted: boolean };
    return { ...engine, url, adopted };
  }

  async function serverPid(): Promise<number | undefined> {
    const text = await readFile(join(dataDir, "data", "postmaster.pid"), "utf8").catch(() => "");
    const pid = Number.parseInt(text, 10);
    return pid > 0 && pid !== process.pid ? pid : undefined;
  }

  async function serverRuns(): Promise<boolean> {
    const pid = await serverPid();
    return pid !== undefined && (await processIdentity(pid)) !== undefined;
  }

  it("keeps what was committed over a stop and a start, on a durable server that only we can reach", async () => {
    await mkdir(join(dataDir, "data.new", "half"), { recursive: true }); // of a start that was killed
    const first = await startEmbeddedPostgres({ dataDir });
    expect(first.adopted).toBe(false);
    await query(first.url, "CREATE TABLE t AS SELECT 42 AS n");
    const settings = `SELECT current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS commit,
      current_setting('listen_addresses') AS listen, current_setting('timezone') AS zone,
      current_setting('unix_socket_directories') AS sockets, current_setting('server_encoding') AS encoding,
      datcollate AS locale FROM pg_database WHERE datname = 'fencepost'`;
    expect(await query(first.url, settings)).toEqual([
      {
        fsync: "on",
        commit: "on",
        listen: "127.0.0.1",
        zone: "UTC",
        sockets: "",
        encoding: "UTF8",
        locale: "C",
      },
    ]);
    expect((await stat(join(dataDir, "password"))).mode & 0o777).toBe(0o600);
    const guessed = new URL(first.url);
    guessed.password = "guessed";
    await expect(query(guessed.href, "SELECT 1")).rejects.toMatchObject({ code: "28P01" });
    if (IS_ROOT) expect((await stat(`/proc/${await serverPid()}`)).uid).not.toBe(0);
    await first.stop();
    await first.stop();
    expect(await serverRuns()).toBe(false);

    // As after a crash of the machine, when another program has been given the server's process id.
    await writeFile(join(dataDir, "data", "postmaster.pid"), `${process.pid}\n${dataDir}/data\n1\n1\n\n\n\n`);
    const second = await startEmbeddedPostgres({ dataDir });
    expect(second.adopted).toBe(false);
    expect(await query(second.url, "SELECT n FROM t")).toEqual([{ n: 42 }]);
    await second.stop();
  });

  it("is adopted when the engine that started it was killed, and stopped by the one that adopted it", async () => {
    await copyMade();
    const killed = await startEngine();
    await query(killed.url, "CREATE TABLE t AS SELECT 42 AS n");
    await end(killed.child, () => killed.child.kill("SIGKILL"));
    const pid = await serverPid();

    const next = await startEmbeddedPostgres({ dataDir });
    expect(next.adopted).toBe(true);
    expect(next.url).toBe(killed.url);
    expect(await serverPid()).toBe(pid);
    expect(await query(next.url, "SELECT n FROM t")).toEqual([{ n: 42 }]);
    await next.stop();
    expect(await serverRuns()).toBe(false);
  });

  it("recovers at the same address when it was killed itself", async () => {
    await copyMade();
    const first = await startEmbeddedPostgres({ dataDir });
    await query(first.url, "CREATE TABLE t AS SELECT 42 AS n");
    process.kill((await serverPid())!, "SIGKILL");

    const second = await startEmbeddedPostgres({ dataDir });
    expect(second.adopted).toBe(false);
    expect(second.url).toBe(first.url);
    expect(await query(second.url, "SELECT n FROM t")).toEqual([{ n: 42 }]);
    await first.stop();
    expect(await serverRuns()).toBe(true);
    await second.stop();
    expect(await serverRuns()).toBe(false);
  });

  it("is one server for engines that start at once on one folder, until the last of them stops", async () => {
    const [one, two] = await Promise.all([startEngine(), startEngine()]);
    expect(one.url).toBe(two.url);
    expect([one.adopted, two.adopted].sort()).toEqual([false, true]);

    await end(one.child, () => one.child.stdin?.write("stop\n"));
    expect(await query(two.url, "SELECT 1 AS n")).toEqual([{ n: 1 }]);
    await end(two.child, () => two.child.stdin?.write("stop\n"));
    expect(await serverRuns()).toBe(false);
  });

  it("still answers an engine that was told to end by Ctrl-C, which reaches its whole process group", async () => {
    await copyMade();
    const engine = await startEngine();
    const answer = engine.nextLine();
    await end(engine.child, () => process.kill(-engine.pid, "SIGINT"));
    expect(await answer).toBe("still there");
    expect(await serverRuns()).toBe(false);
  });

  it("does not touch data of another major version, and names both", async () => {
    await mkdir(join(dataDir, "data"));
    await writeFile(join(dataDir, "data", "PG_VERSION"), "15\n");
    await writeFile(join(dataDir, "password"), "secret");
    const starting = startEmbeddedPostgres({ dataDir });
    await expect(starting).rejects.toThrow(EmbeddedPostgresVersionError);
    await expect(starting).rejects.toThrow(/made by PostgreSQL 15, and the embedded one is version 18/);
  });

  it("shows what the server wrote when it gives up", async () => {
    await mkdir(join(dataDir, "data"));
    await writeFile(join(dataDir, "data", "PG_VERSION"), "18\n");
    await writeFile(join(dataDir, "password"), "secret");
    const starting = startEmbeddedPostgres({ dataDir });
    await expect(starting).rejects.toThrow(EmbeddedPostgresStartError);
    await expect(starting).rejects.toThrow(/postgres ended with code 2\.\n.*postgresql\.conf.*\n.*try again/);
  });

  it("does not begin anew over data whose password is gone", async () => {
    await mkdir(join(dataDir, "data"));
    await writeFile(join(dataDir, "data", "PG_VERSION"), "18\n");
    await expect(startEmbeddedPostgres({ dataDir })).rejects.toThrow(/`password` is gone/);
  });

  it.runIf(IS_ROOT)("names the folder that the server's user may not enter", async () => {
    await chmod(dataDir, 0o700);
    const starting = startEmbeddedPostgres({ dataDir: join(dataDir, "below") });
    await expect(starting).rejects.toThrow(EmbeddedPostgresFolderError);
    await expect(starting).rejects.toThrow(`may not enter ${dataDir}.`);
  });

  it("says so where a file is in the place of its folder", async () => {
    const file = join(dataDir, "file");
    await writeFile(file, "");
    await expect(startEmbeddedPostgres({ dataDir: file })).rejects.toThrow(EmbeddedPostgresFolderError);
  });
});

async function temporaryFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "fencepost-embedded-"));
  await chmod(folder, 0o755); // as root the server runs as another user, who must get in
  return folder;
}

async function query(url: string, sql: string): Promise<unknown[]> {
  const client = new Client({ connectionString: url });
  client.on("error", () => {}); // a server that is killed cuts it; the query then fails by itself
  await client.connect();
  try {
    return (await client.query(sql)).rows;
  } finally {
    await client.end();
  }
}

/** Ends a process by `how` and waits until it is gone. */
async function end(child: ScriptProcess["child"], how: () => unknown): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = once(child, "exit");
  how();
  await gone;
}
