import { type ChildProcess, spawn } from "node:child_process";
import { chmod, mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { seededRandom } from "@fencepost/simulator";
import { afterEach, expect, test } from "vitest";
import { planActivity } from "./activity.ts";
import { CUSTOMER_TYPES } from "./customer.ts";

const DEMO = fileURLToPath(new URL("demo.ts", import.meta.url));
const SEED = 7;
const EVENTS = 120;

const cleanups: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean();
});

interface DemoProcess {
  readonly child: ChildProcess;
  /** Where it keeps what it makes. */
  readonly folder: string;
  readonly output: { text: string };
  readonly exit: Promise<number | null>;
}

async function startDemo(...args: readonly string[]): Promise<DemoProcess> {
  const folder = await mkdtemp(join(tmpdir(), "fencepost-demo-test-"));
  cleanups.push(() => rm(folder, { recursive: true, force: true }));
  await chmod(folder, 0o755); // as root its PostgreSQL runs as another user
  const child = spawn(process.execPath, [DEMO, ...args], {
    env: { ...process.env, TMPDIR: folder, NO_COLOR: "1" },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const output = { text: "" };
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding("utf8").on("data", (text: string) => {
      output.text += text;
    });
  }
  const exit = new Promise<number | null>((resolve) => child.once("close", resolve));
  cleanups.push(async () => {
    child.kill("SIGTERM"); // it ends what it started
    await exit;
  });
  return { child, folder, output, exit };
}

test("the demo loses nothing and repeats nothing with faults at every boundary and its worker killed", async () => {
  const demo = await startDemo("--json", "--seed", String(SEED), "--events", String(EVENTS));
  const code = await demo.exit;
  const { text } = demo.output;
  const report = JSON.parse(text.trimEnd().split("\n").at(-1) ?? "");

  // What the seed makes, counted here once more.
  const kinds = planActivity(seededRandom(SEED), EVENTS).flatMap((ledger) =>
    ledger.flat().map((e) => e.kind),
  );
  const types = kinds
    .filter((kind) => !/mint|created/.test(kind))
    .map((kind) => (kind === "token:transfer" ? "token.transferred" : kind.replace(":", ".")));
  const wanted = types.filter((type) => CUSTOMER_TYPES.includes(type));
  const clean = (count: number) => ({ count, twice: 0, lost: 0, wrong: 0 });

  expect(report, text).toMatchObject({
    seed: SEED,
    kept: true,
    chain: EVENTS,
    stored: clean(EVENTS),
    projected: clean(EVENTS),
    messages: clean(types.length),
    deliveries: { plain: clean(types.length), receiver: clean(wanted.length) },
    endpoints: { plain: { lost: 0, offRecord: 0 }, receiver: { lost: 0, offRecord: 0 } },
    effects: clean(wanted.length),
    problems: [],
  });
  expect(code).toBe(0);
  expect(wanted.length).toBeGreaterThan(10);
  for (const { promise, kept } of report.promises) expect(kept, promise).toBe(true);
  const { plain, receiver } = report.endpoints;
  // The kill had something to hit, the endpoints were no good, and a repeat has its reason on record.
  expect(report.killedAmid.plain).toBeGreaterThan(0);
  expect(report.killedAmid.receiver).toBeGreaterThan(0);
  expect(plain.refused).toBeGreaterThan(0);
  expect(plain.requests).toBeGreaterThanOrEqual(types.length + plain.refused);
  expect(plain.repeats).toBe(plain.repeatsAfterUnknown);
  expect(receiver.repeats).toBe(receiver.repeatsAfterUnknown);
  expect(report.trace).toContain("testnet-20251217-");
  expect(await readdir(demo.folder)).toEqual([]);
});

test("Ctrl-C ends everything that the demo started", async () => {
  const demo = await startDemo("--seed", String(SEED));
  const worker = await new Promise<number>((resolve, reject) => {
    demo.child.stdout?.on("data", () => {
      const pid = /Fencepost, process (\d+)/.exec(demo.output.text)?.[1];
      if (pid !== undefined) resolve(Number(pid));
    });
    void demo.exit.then(() => reject(new Error(`It ended too early:\n${demo.output.text}`)));
  });
  const [run = ""] = await readdir(demo.folder);
  const postmaster = await readFile(join(demo.folder, run, "postgres/data/postmaster.pid"), "utf8");
  const server = Number(postmaster.split("\n")[0]);
  expect([worker, server].map(isRunning)).toEqual([true, true]);

  demo.child.kill("SIGINT");

  expect(await demo.exit, demo.output.text).toBe(130);
  expect([worker, server].map(isRunning)).toEqual([false, false]);
  expect(await readdir(demo.folder)).toEqual([]);
});

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
