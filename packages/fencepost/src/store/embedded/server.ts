import { type ChildProcess, execFile, spawn } from "node:child_process";
import {
  chown,
  mkdir,
  open,
  readFile,
  realpath,
  rename,
  rm,
  stat,
  statfs,
  writeFile,
} from "node:fs/promises";
import { createServer } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { Client } from "pg";
import type { Binaries } from "./cachedBinaries.ts";
import { EmbeddedPostgresStartError, EmbeddedPostgresStopError } from "./errors.ts";
import { processIdentity } from "./processIdentity.ts";
import type { ServerUser } from "./serverUser.ts";

const INITDB_LIMIT_MS = 60_000;
/** Covers the recovery of a full write-ahead log (`max_wal_size`, 1 GB) on a slow disk. */
const READY_LIMIT_MS = 120_000;
const STOP_LIMIT_MS = 60_000;
/** Orphans of a killed server keep its shared memory for a moment, and a free port can be taken meanwhile. */
const SPAWN_TRIES = 20;
const RETRIED = /pre-existing shared memory block|Address already in use/;
const PROBE_LIMIT_MS = 5_000;
const POLL_MS = 50;
const LOG_KEPT_BYTES = 64 * 1024;
const LOG_LIMIT_BYTES = 1024 * 1024;
const TAIL_BYTES = 4 * 1024;

const OWNER = "fencepost";
const DATABASE = "fencepost";

/** A server that has answered. */
export interface Server {
  readonly pid: number;
  readonly url: string;
}

interface Postmaster {
  readonly pid: number;
  readonly identity: string | undefined;
  readonly port: number;
}

/** Makes the data folder. It appears under its name only when it is whole. */
export async function initialiseData(at: {
  dataDir: string;
  binaries: Binaries;
  user: ServerUser | undefined;
}): Promise<void> {
  const fresh = join(at.dataDir, "data.new");
  await rm(fresh, { recursive: true, force: true });
  await mkdir(fresh, { mode: 0o700 });
  if (at.user) await chown(fresh, at.user.uid, at.user.gid);
  const args = ["-D", fresh, "-U", OWNER, "--pwfile", join(at.dataDir, "password"), "--auth=scram-sha-256"];
  args.push("--encoding=UTF8", "--locale=C", "--locale-provider=libc", "--no-instructions");
  try {
    await promisify(execFile)(at.binaries.initdb, args, {
      ...asUser(at.user),
      cwd: fresh,
      timeout: INITDB_LIMIT_MS,
    });
  } catch (error) {
    const { message, stdout, stderr } = error as Error & { stdout?: string; stderr?: string };
    throw new EmbeddedPostgresStartError("initdb failed", stderr || stdout || message);
  }
  await rename(fresh, join(at.dataDir, "data"));
  const folder = await open(at.dataDir);
  try {
    await folder.sync(); // or a crash of the machine could undo the rename under commits that follow
  } finally {
    await folder.close();
  }
}

/**
 * The server that runs on this folder, once it answers; `undefined` if none does. Waits for one that is starting
 * or stopping. Throws {@link EmbeddedPostgresStartError} for one that does neither in time.
 */
export async function adoptServer(dataDir: string, password: string): Promise<Server | undefined> {
  const postmaster = await readPostmaster(dataDir);
  if (!postmaster?.identity) return undefined; // PostgreSQL itself sees that its file is stale
  if (!(await isPostgres(postmaster.pid))) {
    // The id was given to another program, which PostgreSQL cannot tell and would refuse to start.
    await rm(join(dataDir, "data", "postmaster.pid"), { force: true });
    return undefined;
  }
  const isGone = async () => (await processIdentity(postmaster.pid)) !== postmaster.identity;
  const url = await untilReady({ dataDir, password, port: postmaster.port, pid: postmaster.pid, isGone });
  return url === undefined ? undefined : { pid: postmaster.pid, url };
}

/** Starts a server and waits until it answers. Throws {@link EmbeddedPostgresStartError}. */
export async function spawnServer(at: {
  dataDir: string;
  binaries: Binaries;
  user: ServerUser | undefined;
  password: string;
  maxConnections: number;
}): Promise<Server> {
  await trimLog(join(at.dataDir, "server.log"));
  // The port of the server before, which may have ended by itself: processes that used it find it again.
  let preferredPort = await lastPort(at.dataDir);
  for (let tries = 1; ; tries++) {
    const port = await freePort(preferredPort);
    preferredPort = 0;
    const logStart = await sizeOf(join(at.dataDir, "server.log"));
    const child = await spawnDetached(at, port);
    const { pid } = child;
    if (pid === undefined) throw new EmbeddedPostgresStartError("it has no process id", "");
    const isGone = async () => child.exitCode !== null || child.signalCode !== null;
    const url = await untilReady({ dataDir: at.dataDir, password: at.password, port, pid, isGone });
    if (url !== undefined) return { pid, url };

    const output = (await logTail(at.dataDir, logStart)) || (await whyNoLog(at.dataDir));
    if (tries === SPAWN_TRIES || !RETRIED.test(output)) {
      throw new EmbeddedPostgresStartError(
        `postgres ended with ${child.signalCode ?? `code ${child.exitCode}`}`,
        output,
      );
    }
    await sleep(POLL_MS * tries);
  }
}

/**
 * Stops the server on this folder, if one runs: sessions are cut off, what was committed is on disk. Throws
 * {@link EmbeddedPostgresStopError} if it is still there after a minute.
 */
export async function stopServer(dataDir: string): Promise<void> {
  const postmaster = await readPostmaster(dataDir);
  if (!postmaster?.identity || !(await isPostgres(postmaster.pid))) return;
  const logStart = await sizeOf(join(dataDir, "server.log"));
  process.kill(postmaster.pid, "SIGINT");
  const deadline = performance.now() + STOP_LIMIT_MS;
  while ((await processIdentity(postmaster.pid)) === postmaster.identity) {
    if (performance.now() > deadline) {
      throw new EmbeddedPostgresStopError(postmaster.pid, STOP_LIMIT_MS, await logTail(dataDir, logStart));
    }
    await sleep(POLL_MS);
  }
}

async function spawnDetached(
  at: { dataDir: string; binaries: Binaries; user: ServerUser | undefined; maxConnections: number },
  port: number,
): Promise<ChildProcess> {
  const data = join(at.dataDir, "data");
  // On the command line, where neither postgresql.conf nor ALTER SYSTEM can change them.
  const settings = {
    fsync: "on",
    synchronous_commit: "on",
    full_page_writes: "on",
    listen_addresses: "127.0.0.1",
    port,
    unix_socket_directories: "",
    max_connections: at.maxConnections,
    shared_buffers: "128MB",
    timezone: "UTC",
    log_timezone: "UTC",
    // Keeps the log small: errors of statements reach their clients anyhow.
    logging_collector: "off",
    log_min_messages: "log",
    log_checkpoints: "off",
  };
  const log = await open(join(at.dataDir, "server.log"), "a", 0o600);
  try {
    const args = Object.entries(settings).flatMap(([name, value]) => ["-c", `${name}=${value}`]);
    const child = spawn(at.binaries.postgres, ["-D", data, ...args], {
      ...asUser(at.user),
      cwd: data,
      detached: true, // a session of its own: Ctrl-C reaches us and not the server
      stdio: ["ignore", log.fd, log.fd],
    });
    await new Promise<void>((resolve, reject) => {
      child.once("spawn", resolve);
      child.once("error", (error) => reject(new EmbeddedPostgresStartError(error.message, "")));
    });
    child.unref();
    return child;
  } finally {
    await log.close();
  }
}

/** No PG* variable of ours may reach the programs, and the C locale keeps their messages in one language. */
function asUser(user: ServerUser | undefined) {
  const env = { PATH: process.env["PATH"], LC_ALL: "C", TZ: "UTC" };
  return user ? { env, uid: user.uid, gid: user.gid } : { env };
}

/** The server's url once it answers with our password, `undefined` once its process is gone. */
async function untilReady(at: {
  dataDir: string;
  password: string;
  port: number;
  pid: number;
  isGone: () => Promise<boolean>;
}): Promise<string | undefined> {
  const url = (database: string) => `postgres://${OWNER}:${at.password}@127.0.0.1:${at.port}/${database}`;
  const logStart = Math.max(0, (await sizeOf(join(at.dataDir, "server.log"))) - TAIL_BYTES);
  const deadline = performance.now() + READY_LIMIT_MS;
  for (;;) {
    if (await at.isGone()) return undefined;
    let problem: Error & { code?: string };
    try {
      await probe(url("postgres"), at.dataDir);
      return url(DATABASE);
    } catch (error) {
      problem = error as Error;
    }
    // Not yet listening, starting, stopping or full: it may still come. Refused or out of disk: it will not.
    if (/^28|^53100$/.test(problem.code ?? "") || performance.now() > deadline) {
      throw new EmbeddedPostgresStartError(
        `process ${at.pid} runs but does not answer (${problem.message}); it is left running`,
        await logTail(at.dataDir, logStart),
      );
    }
    await sleep(POLL_MS);
  }
}

/** Connects, makes sure that the server is the one of this folder, and that our database exists. */
async function probe(url: string, dataDir: string): Promise<void> {
  const client = new Client({ connectionString: url, connectionTimeoutMillis: PROBE_LIMIT_MS });
  client.on("error", () => {}); // a cut connection also fails the query that waits on it
  try {
    await client.connect();
    const shown = await client.query<{ data_directory: string }>("SHOW data_directory");
    const served = shown.rows[0]?.data_directory ?? "";
    if ((await realpath(served)) !== (await realpath(join(dataDir, "data")))) {
      const error = new Error(`it serves ${served}, of which this folder seems to be a copy`);
      throw Object.assign(error, { code: "28000" });
    }
    const found = await client.query("SELECT FROM pg_database WHERE datname = $1", [DATABASE]);
    if (found.rowCount === 0) await client.query(`CREATE DATABASE ${DATABASE}`);
  } finally {
    await client.end().catch(() => {});
  }
}

async function readPostmaster(dataDir: string): Promise<Postmaster | undefined> {
  const text = await readFile(join(dataDir, "data", "postmaster.pid"), "utf8").catch(() => "");
  const lines = text.split("\n");
  const [pid, port] = [Number(lines[0]), Number(lines[3] ?? 0)];
  if (!(pid > 0)) return undefined;
  return { pid, identity: await processIdentity(pid), port };
}

/** The port that the server on this folder had last; 0 where there was none. */
async function lastPort(dataDir: string): Promise<number> {
  const options = await readFile(join(dataDir, "data", "postmaster.opts"), "utf8").catch(() => "");
  return Number(/"port=(\d+)"/.exec(options)?.[1] ?? 0);
}

/** Whether a process is PostgreSQL, as far as the system tells: where it does not, the file is believed. */
async function isPostgres(pid: number): Promise<boolean> {
  const command = await readFile(`/proc/${pid}/comm`, "utf8").catch(() => "postgres");
  return command.trim() === "postgres";
}

/** A loopback port that the system picks, or the preferred one if it is free. */
async function freePort(preferred: number): Promise<number> {
  const listening = createServer();
  try {
    return await new Promise<number>((resolve, reject) => {
      listening.once("error", reject);
      listening.listen(preferred, "127.0.0.1", () => {
        const address = listening.address();
        resolve(typeof address === "object" && address ? address.port : 0);
      });
    });
  } catch (error) {
    if (preferred === 0) throw error;
    return await freePort(0);
  } finally {
    listening.close();
  }
}

/** The server appends through a file it was handed, so the log is cut between two runs. */
async function trimLog(file: string): Promise<void> {
  if ((await sizeOf(file)) > LOG_LIMIT_BYTES) await writeFile(file, await readEnd(file, 0, LOG_KEPT_BYTES));
}

async function logTail(dataDir: string, from: number): Promise<string> {
  return await readEnd(join(dataDir, "server.log"), from, TAIL_BYTES);
}

/** A full disk has no room for the server's own words about it. */
async function whyNoLog(dataDir: string): Promise<string> {
  const { bavail, bsize } = await statfs(dataDir);
  const free = bavail * bsize;
  return free < LOG_LIMIT_BYTES ? `No space left on device: ${free} bytes in ${dataDir}` : "";
}

/** What a file holds after `from`, at most its last `limit` bytes. */
async function readEnd(file: string, from: number, limit: number): Promise<string> {
  const size = await sizeOf(file);
  const start = Math.max(from, size - limit);
  if (size <= start) return "";
  const handle = await open(file);
  try {
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(size - start), 0, size - start, start);
    return buffer.toString("utf8", 0, bytesRead);
  } finally {
    await handle.close();
  }
}

async function sizeOf(file: string): Promise<number> {
  return stat(file).then(
    ({ size }) => size,
    () => 0,
  );
}
