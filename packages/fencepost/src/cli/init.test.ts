import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { scv, startChain, startRpc } from "@fencepost/simulator";
import { afterEach, expect, it, vi } from "vitest";
import { runCli, startCli } from "../__tests__/support/cliProcess.ts";
import { createTestFolder, type TestFolder } from "../__tests__/support/cliProject.ts";
import { lockAssets, POOL_CONTRACT } from "../__tests__/support/pools.ts";
import { createTestDatabase } from "../__tests__/support/testDatabase.ts";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import { openDatabase } from "../index.ts";
import { projectFiles } from "./projectFiles.ts";
import { type Samples, shapesOf } from "./sampleEvents.ts";

vi.setConfig({ testTimeout: 180_000 });

const NOBODY_LISTENS = "http://127.0.0.1:9";
const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function startFolder(): Promise<TestFolder> {
  const folder = await createTestFolder();
  closing.push(folder.remove);
  return folder;
}

it("writes a project with the contract's own events, which runs as it is", async () => {
  const chain = startChain();
  const [from, to] = [scv.address(scv.accountId("from")), scv.address(scv.accountId("to"))];
  lockAssets(chain, 3);
  chain.close({
    events: [
      { contract: POOL_CONTRACT, topics: [scv.sym("transfer"), from, to], value: scv.i128(7n) },
      { contract: POOL_CONTRACT, topics: [scv.sym("not a name")], value: scv.i128(1n) },
    ],
  });
  const rpc = await startRpc({ chain });
  closing.push(rpc.close);
  const folder = await startFolder();
  const env = { STELLAR_RPC_URL: rpc.url };
  const init = await runCli(["init", POOL_CONTRACT, "--dir", "app"], { cwd: folder.path, env });
  expect(init).toMatchObject({ code: 0, stderr: "" });
  expect(init.stdout).toMatch(
    /\ncontracts\.ts has the events: assets_locked, transfer\.\nNext:\n {2}cd app && npm install\n {2}npx fencepost dev\n$/,
  );

  const testDatabase = await createTestDatabase();
  closing.push(testDatabase.drop);
  const database = openDatabase(testDatabase.url);
  closing.push(database.close);
  // No STELLAR_RPC_URL here: it is in the .env that init wrote.
  const dev = startCli(["dev"], { cwd: join(folder.path, "app"), env: { DATABASE_URL: testDatabase.url } });
  closing.push(() => dev.stop("SIGKILL"));
  await dev.waitFor(/fencepost is running: testnet, activity v1/);
  const read = async () =>
    (await database.query("SELECT name, ledger, data FROM activity.events ORDER BY token")).rows;
  await waitUntil(async () => (await read()).length === 4, {
    what: "every event has its row",
    timeoutMs: 40_000,
  });
  const rows = await read();
  expect(rows[0]).toEqual({ name: "assets_locked", ledger: 1, data: { amount: "1", pool_id: "pool 1" } });
  expect(rows[3]).toEqual({
    name: "transfer",
    ledger: 2,
    data: { topic1: scv.accountId("from"), topic2: scv.accountId("to"), value: "7" },
  });
  const messages = await database.query("SELECT type FROM fencepost.messages ORDER BY token");
  expect(messages.rows.map(({ type }) => type)).toEqual([
    ...Array.from({ length: 3 }, () => "contract.assets_locked"),
    "contract.transfer",
  ]);
});

it("without a node that answers, writes an example and says so", async () => {
  const folder = await startFolder();
  const { code, stdout } = await runCli(["init", "--network", "pubnet"], { cwd: folder.path });
  expect(code).toBe(0);
  expect(stdout).toContain("contracts.ts has an example event: put in the contract's own.\n");
  expect(stdout).toMatch(
    /First set STELLAR_RPC_URL in \.env .*\nNext:\n {2}npm install\n {2}npx fencepost dev\n$/,
  );
  expect(await readFile(join(folder.path, "contracts.ts"), "utf8")).toContain('startLedger: "latest"');

  const other = await startFolder();
  const env = { STELLAR_RPC_URL: NOBODY_LISTENS };
  const asked = await runCli(["init", POOL_CONTRACT], { cwd: other.path, env });
  expect(asked.code).toBe(0);
  expect(asked.stdout).toMatch(
    /\nThe node could not be asked \(http:\/\/127\.0\.0\.1:9 .*\) contracts\.ts has an example/,
  );
});

it("overwrites nothing, and takes nothing but a contract's address", async () => {
  const folder = await startFolder();
  await folder.write("README.md", "mine");
  const { code, stderr } = await runCli(["init", POOL_CONTRACT], { cwd: folder.path });
  expect(code).toBe(1);
  expect(stderr).toMatch(/^error: FilesExistError: .* has README\.md already, and init overwrites nothing\./);
  expect(await readFile(join(folder.path, "README.md"), "utf8")).toBe("mine");
  await expect(readFile(join(folder.path, "package.json"))).rejects.toMatchObject({ code: "ENOENT" });
  const wrong = await runCli(["init", "GABC"], { cwd: folder.path });
  expect(wrong).toMatchObject({ code: 1, stderr: expect.stringMatching(/^error: InvalidContractIdError: /) });
});

const PROJECT = {
  name: "app",
  network: "testnet",
  contractId: POOL_CONTRACT,
  rpcUrl: "",
  versions: { fencepost: "1", drizzle: "1" },
} as const;

it("writes projects that type-check: with events of every shape, and with the example", async () => {
  const folder = await startFolder();
  const samples: Samples = {
    fromLedger: 7,
    events: [
      { name: "plain", topics: [], value: { amount: "z.bigint()", note: "z.string().optional()" } },
      { name: "delete", topics: ["z.string()", "z.unknown()"], value: "z.bigint()" },
      { name: "nothing", topics: [], value: "z.null()" },
      { name: "mixed", topics: ["z.number()"], value: { flag: "z.boolean()" } },
    ],
  };
  for (const [name, given] of Object.entries({ own: samples, example: undefined })) {
    for (const [file, text] of Object.entries(projectFiles({ ...PROJECT, samples: given }))) {
      await folder.write(`${name}/${file}`, text);
    }
  }
  const tsconfig = JSON.parse(await readFile(join(folder.path, "own/tsconfig.json"), "utf8"));
  await folder.write("tsconfig.json", JSON.stringify({ ...tsconfig, include: ["own", "example"] }));
  const tsc = join(folder.path, "node_modules/typescript/bin/tsc");
  const checked = await promisify(execFile)(process.execPath, [tsc, "-p", "."], { cwd: folder.path }).catch(
    (error: { stdout: string }) => error,
  );
  expect(checked.stdout.split("\n").filter((line) => /^(own|example)\//.test(line))).toEqual([]);
});

it("pins what its projects use to what the tests here run with", async () => {
  const versions = async (file: string) => JSON.parse(await readFile(new URL(file, import.meta.url), "utf8"));
  const own = await versions("../../package.json");
  const root = await versions("../../../../package.json");
  const written = JSON.parse(projectFiles({ ...PROJECT, samples: undefined })["package.json"] ?? "");
  expect(written.dependencies.zod).toBe(own.dependencies.zod);
  expect(written.devDependencies).toEqual({
    "@types/node": root.devDependencies["@types/node"],
    typescript: root.devDependencies.typescript,
  });
});

it("gives parts that differ between events of a name a type that fits them all", () => {
  const amount = (value: bigint) => ({ type: "i128", value }) as const;
  const field = (name: string) => ({ type: "symbol", value: name }) as const;
  const map = (...pairs: [string, ReturnType<typeof amount> | ReturnType<typeof field>][]) =>
    ({ type: "map", value: pairs.map(([name, value]) => [field(name), value] as const) }) as const;
  const event = (
    name: string,
    topics: ReturnType<typeof field>[],
    value: ReturnType<typeof map | typeof amount>,
  ) => ({
    name,
    topics: [field(name), ...topics],
    value,
  });
  expect(
    shapesOf([
      event("a", [field("x"), field("y")], map(["n", amount(1n)], ["m", field("z")])),
      event("a", [field("x")], map(["n", amount(2n)], ["m", amount(1n)], ["late", amount(1n)])),
      event("b", [], amount(1n)),
      event("b", [], map(["n", amount(1n)])),
    ]),
  ).toEqual([
    {
      name: "a",
      topics: ["z.string()"],
      value: { n: "z.bigint()", m: "z.unknown()", late: "z.bigint().optional()" },
    },
    { name: "b", topics: [], value: "z.unknown()" },
  ]);
});
