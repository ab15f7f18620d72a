// Commands about sources and contracts, run in this process on a project whose stream is stepped by hand; that the
// command line reaches them is tested with a process at the end.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { type RpcServer, startChain, startRpc } from "@fencepost/simulator";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from "vitest";
import { runCli } from "../__tests__/support/cliProcess.ts";
import { createPoolProject, type TestFolder } from "../__tests__/support/cliProject.ts";
import { type IngestBench, openIngest } from "../__tests__/support/ingest.ts";
import { lockAssets, POOL_CONTRACT } from "../__tests__/support/pools.ts";
import { ExportRangeError } from "../export/exportEvents.ts";
import { StreamMismatchError } from "../ingest/errors.ts";
import { specSection, wasmModule } from "../xdr/__tests__/specEntries.ts";
import { auditRange } from "./auditCommand.ts";
import { codegen } from "./codegenCommand.ts";
import { UnknownSourceError } from "./errors.ts";
import { exportFile } from "./exportCommand.ts";
import { progressLine } from "./progressLine.ts";
import { backfillRange, beginNextEpoch, describeProgress, listGaps } from "./sourcesCommand.ts";

/** The day on which simulated chains begin. */
const NEXT_EPOCH = "20260617";

let bench: IngestBench;
let second: RpcServer;
let project: TestFolder;
let config: { config: string };

/** The config of a project, with a second source, in an epoch. */
const configText = (epoch: string): string => `
import { defineConfig, stellarRpc } from "fencepost";
import { activity } from "./projections/activity.ts";
const network = { name: "testnet", passphrase: "Test SDF Network ; September 2015", epoch: "${epoch}" };
export default defineConfig({
  source: stellarRpc({ network, urls: "${bench.rpc.url}" }),
  sources: { second: stellarRpc({ network, urls: "${second.url}" }) },
  projections: [activity],
});
`;

beforeAll(async () => {
  bench = await openIngest();
  second = await startRpc({ chain: bench.chain });
  project = await createPoolProject(bench.rpc.url);
  await project.write("fencepost.config.ts", configText("20251217"));
  config = { config: join(project.path, "fencepost.config.ts") };
  vi.stubEnv("DATABASE_URL", bench.database.url);
});
afterAll(async () => {
  vi.unstubAllEnvs();
  await second.close();
  await bench.close();
  await project.remove();
});

const SIGNALS = ["SIGINT", "SIGTERM"] as const;
const listenersBefore = SIGNALS.flatMap((signal) => process.listeners(signal));
process.setMaxListeners(50);

let printed: string;
beforeEach(() => {
  printed = "";
  const keep = (text: unknown): boolean => {
    printed += String(text);
    return true;
  };
  vi.spyOn(process.stdout, "write").mockImplementation(keep);
  vi.spyOn(process.stderr, "write").mockImplementation(keep);
});
afterEach(() => {
  vi.restoreAllMocks();
  // Each command listens for its end, as a process of its own does.
  for (const signal of SIGNALS) {
    for (const listener of process.listeners(signal)) {
      if (!listenersBefore.includes(listener)) process.off(signal, listener);
    }
  }
});

/** What a command prints. */
async function output(command: Promise<void>): Promise<string> {
  printed = "";
  await command;
  return printed;
}

it("a gap is listed, filled from a named source, healed, exported and audited; a reset network goes on in its next epoch", async () => {
  const { chain, rpc } = bench;
  expect(await output(listGaps({ ...config, json: false }))).toBe(
    "There are no gaps, and there were none.\n",
  );
  lockAssets(chain, 3, { perLedger: 1 });
  await bench.watch([{ contractId: POOL_CONTRACT, startLedger: 1 }]);
  await bench.catchUp(await bench.lead());
  lockAssets(chain, 7, { perLedger: 1 });
  chain.retain(3);
  await bench.catchUp(await bench.lead(), { onGap: "continue" });
  expect(await output(listGaps({ ...config, json: false }))).toMatch(
    /^stream +epoch +ledgers +found +state\ntestnet +20251217 +4 to 7 .* MISSING, the stream went on .*\nFill them with: fencepost backfill --from 4 --to 7\nFrom another source .*: add --source <name>\n$/,
  );

  chain.retain(100);
  const range = { from: 1, to: 10, json: false };
  await expect(backfillRange({ ...config, ...range, source: "lake" })).rejects.toThrow(UnknownSourceError);
  await expect(backfillRange({ ...config, ...range, source: "lake" })).rejects.toThrow("There is: second.");
  const asked = second.requests.length;
  const done = await output(backfillRange({ ...config, ...range, source: "second" }));
  expect(done).toMatch(/ledger 10 of 10 \(100 %\), 10 events, 4 new, .* ledgers\/s, 0 s left/);
  expect(done).toContain(
    "ledgers 1 to 10 are read: 10 events, 4 of them new.\n4 ledgers are missing no more.\n",
  );
  expect(second.requests.length).toBeGreaterThan(asked);
  expect(JSON.parse(await output(listGaps({ ...config, json: true })))).toMatchObject({
    gaps: [{ stream: "testnet", fromLedger: 4, throughLedger: 7, healedAt: expect.any(String) }],
  });
  printed = "";
  await backfillRange({ ...config, ...range, json: true });
  expect(JSON.parse(printed.slice(printed.indexOf("{")))).toEqual({
    fromLedger: 1,
    throughLedger: 10,
    events: 10,
    stored: 0,
    healed: 0,
  });

  const out = join(project.path, "events.ndjson");
  expect(await output(exportFile({ ...config, out, from: 2, to: 9 }))).toBe(
    `${out}: 8 events of ledgers 2 to 9.\n`,
  );
  expect((await readFile(out, "utf8")).split("\n")).toHaveLength(8 + 3); // a header, an end, and a line's end
  await expect(exportFile({ ...config, out })).rejects.toThrow(
    `${out} cannot be written (EEXIST): it is there already, and nothing is overwritten. Name another file.`,
  );
  await expect(exportFile({ ...config, out: join(project.path, "no/such.ndjson") })).rejects.toThrow(
    /such\.ndjson cannot be written \(ENOENT\): its folder is not there\. Make it/,
  );
  const none = join(project.path, "none.ndjson");
  await expect(exportFile({ ...config, out: none, from: 2, to: 99 })).rejects.toThrow(ExportRangeError);
  await expect(readFile(none)).rejects.toThrow("ENOENT");

  const audited = { ...config, from: 1, to: 10, rerun: false, json: false };
  expect(await output(auditRange(audited))).toMatch(
    /events: 10 agree\n(.*\n)*Not proven: .* --rerun .*\nNo differences\.\n$/,
  );
  expect(process.exitCode).toBeUndefined();
  await expect(auditRange({ ...audited, provider: 2 })).rejects.toThrow("has one provider only");
  await bench.database.query("DELETE FROM fencepost.events WHERE ledger = 5");
  expect(await output(auditRange({ ...audited, source: "second" }))).toMatch(
    /events: 9 agree\n {2}missing: the source has it: testnet-20251217-0000000005-.*\n(.*\n)*DIFFERENCES: 1\n$/,
  );
  expect(process.exitCode).toBe(1);
  process.exitCode = undefined;
  expect(JSON.parse(await output(auditRange({ ...audited, json: true })))).toMatchObject({ differences: 1 });
  process.exitCode = undefined;

  await expect(beginNextEpoch(config)).rejects.toThrow(StreamMismatchError);
  rpc.node.chain = startChain({ life: "second" });
  lockAssets(rpc.node.chain, 5, { perLedger: 1 });
  await project.write("fencepost.config.ts", configText(NEXT_EPOCH));
  expect(await output(beginNextEpoch(config))).toBe(
    `testnet goes on in epoch ${NEXT_EPOCH}, from ledger 1.\nWhat is stored of epoch 20251217 stays.\n`,
  );
  await project.write("fencepost.config.ts", configText("20251217"));
});

describe("codegen", () => {
  const wasm = wasmModule([
    "contractspecv0",
    specSection({
      types: [],
      events: [
        {
          name: "deposit",
          doc: "",
          prefix: ["deposit"],
          topics: [],
          format: "single",
          data: [{ name: "amount", doc: "", type: "i128" }],
        },
        { name: "bare", doc: "", prefix: [], topics: [], format: "vec", data: [] },
      ],
    }),
  ]);

  it("writes what a wasm file describes, tells what it leaves out, and writes a file that is right no second time", async () => {
    const path = join(project.path, "pool.wasm");
    await project.write("pool.wasm", wasm);
    const out = join(project.path, "generated.ts");
    const options = { ...config, wasm: [`vault=${path}`], out };
    expect(await output(codegen(options))).toMatch(/generated\.ts is written\.\nleft out of vault: bare /);
    const text = await readFile(out, "utf8");
    expect(text).toContain("export const vaultEvents = {");
    expect(await output(codegen(options))).toContain("generated.ts is as it should be.");
    expect(await output(codegen({ ...config, wasm: [`vault=${path}`] }))).toContain(text);
  });

  it("names a place where nothing can be written, and what to do", async () => {
    await project.write("pool.wasm", wasm);
    const options = { ...config, wasm: [`vault=${join(project.path, "pool.wasm")}`] };
    for (const [place, code] of [
      ["no/such/contracts.ts", "ENOENT"],
      ["pool.wasm/contracts.ts", "ENOTDIR"],
      [".", "EISDIR"],
    ] as const) {
      const out = join(project.path, place);
      await expect(codegen({ ...options, out })).rejects.toMatchObject({
        name: "CannotWriteError",
        message: expect.stringMatching(new RegExp(`^.* cannot be written \\(${code}\\): .* [Nn]ame a`)),
      });
    }
  });

  it("asks the config for the network, and says which url is missing", async () => {
    const contract = [`pool=${POOL_CONTRACT}`];
    vi.stubEnv("STELLAR_RPC_URL", "");
    await expect(codegen({ ...config, contract })).rejects.toThrow("set STELLAR_RPC_URL");
    await expect(codegen({ ...config, contract, network: "pubnet", rpc: bench.rpc.url })).rejects.toThrow(
      /serves the network/,
    );
  });
});

describe("the progress of a backfill", () => {
  const progress = { fromLedger: 101, throughLedger: 300, ledger: 150, events: 20, stored: 3, healed: 0 };

  it.each([
    [2.25, 66_667, "ledger 150 of 300 (25 %), 20 events, 3 new, 2.3 ledgers/s, 67 s left"],
    [1_234.5, 5_900_000, "ledger 150 of 300 (25 %), 20 events, 3 new, 1235 ledgers/s, 99 min left"],
    [50, 7_260_000, "ledger 150 of 300 (25 %), 20 events, 3 new, 50 ledgers/s, 2 h 1 min left"],
  ])("is told with its rate and the time left (%d a second)", (ledgersPerSecond, msLeft, line) => {
    expect(describeProgress({ ...progress, ledgersPerSecond, msLeft })).toBe(line);
  });

  it("is one line that changes on a terminal, and a line every ten seconds elsewhere", () => {
    const shown = (isTTY: boolean): string => {
      let text = "";
      let now = 0;
      const write = (chunk: unknown): boolean => {
        text += String(chunk);
        return true;
      };
      const line = progressLine({ isTTY, write }, () => now);
      for (const [ledger, at] of [
        [110, 0],
        [120, 9_999],
        [130, 10_000],
      ] as const) {
        now = at;
        line.show(describeProgress({ ...progress, ledger, ledgersPerSecond: 10, msLeft: 1_000 }));
      }
      line.end();
      return text;
    };
    expect(shown(true).split("\r\u001b[K")).toHaveLength(4);
    expect(shown(true)).toMatch(/left\n$/);
    expect(shown(false).match(/ledger \d+/g)).toEqual(["ledger 110", "ledger 130"]);
  });
});

it("the command line reaches them, and refuses what is no ledger", async () => {
  const cli = (...args: readonly string[]) =>
    runCli(args, { cwd: project.path, env: { DATABASE_URL: bench.database.url } });
  const listed = await cli("gaps", "--json");
  expect(listed).toMatchObject({ code: 0, stderr: "" });
  expect(JSON.parse(listed.stdout)).toHaveProperty("gaps");
  const wrong = await cli("backfill", "--from", "1.5", "--to", "9");
  expect(wrong.code).toBe(1);
  expect(wrong.stderr).toContain("Use a ledger number from 1.");
  const unknown = await cli("backfill", "--from", "1", "--to", "9", "--source", "lake");
  expect(unknown).toMatchObject({ code: 1, stderr: expect.stringContaining("UnknownSourceError") });
}, 120_000);
