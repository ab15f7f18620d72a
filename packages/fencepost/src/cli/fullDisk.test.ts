// Commands that write files, on disks that are full.
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { createPoolProject, type TestFolder } from "../__tests__/support/cliProject.ts";
import { type IngestBench, openIngest } from "../__tests__/support/ingest.ts";
import { lockAssets, POOL_CONTRACT } from "../__tests__/support/pools.ts";
import { noSmallDisks, type SmallDisks, startSmallDisks } from "../__tests__/support/smallDisks.ts";
import { specSection, wasmModule } from "../xdr/__tests__/specEntries.ts";
import { codegen } from "./codegenCommand.ts";
import { DiskFullError } from "./errors.ts";
import { exportFile } from "./exportCommand.ts";
import { init } from "./initCommand.ts";

const PAGE = 4096;
const why = await noSmallDisks();

describe.skipIf(why !== undefined)("on a full disk", () => {
  let small: SmallDisks<"exported" | "generated" | "project">;
  let bench: IngestBench;
  let project: TestFolder;

  beforeAll(async () => {
    small = await startSmallDisks({ exported: 4 * PAGE, generated: PAGE, project: 3 * PAGE });
    bench = await openIngest();
    project = await createPoolProject(bench.rpc.url);
    vi.stubEnv("DATABASE_URL", bench.database.url);
    vi.stubEnv("STELLAR_RPC_URL", "http://127.0.0.1:9"); // nobody listens
  });
  afterAll(async () => {
    vi.unstubAllEnvs();
    await project.remove();
    await bench.close();
    await small.close();
  });

  async function expectNamed(command: Promise<void>, path: string, folder: string): Promise<void> {
    const error = await command.catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(DiskFullError);
    expect((error as Error).message).toMatch(
      /cannot be written: ENOSPC: .*\. Nothing of it is left\. Free some space/,
    );
    expect((error as Error).message).toContain(path);
    const left = await readdir(folder, { recursive: true, withFileTypes: true });
    expect(left.filter((entry) => entry.isFile())).toEqual([]);
  }

  it("export names the file, and leaves none", async () => {
    lockAssets(bench.chain, 100);
    await bench.watch([{ contractId: POOL_CONTRACT, startLedger: 1 }]);
    await bench.catchUp(await bench.lead());
    const { folder } = small.disks.exported;
    const out = join(folder, "events.ndjson");
    await expectNamed(exportFile({ config: join(project.path, "fencepost.config.ts"), out }), out, folder);
  });

  it("codegen names the file, and leaves none", async () => {
    const events = Array.from({ length: 40 }, (_, i) => ({
      name: `event_${i}`,
      doc: "",
      prefix: [`event_${i}`],
      topics: [],
      format: "single" as const,
      data: [{ name: "amount", doc: "", type: "i128" as const }],
    }));
    await project.write("pool.wasm", wasmModule(["contractspecv0", specSection({ types: [], events })]));
    const { folder } = small.disks.generated;
    const out = join(folder, "contracts.ts");
    const options = {
      config: join(project.path, "fencepost.config.ts"),
      wasm: [`pool=${project.path}/pool.wasm`],
      out,
    };
    await expectNamed(codegen(options), out, folder);
  });

  it("init names the folder, and leaves no part of a project", async () => {
    const { folder } = small.disks.project;
    const dir = join(folder, "app");
    await expectNamed(init(POOL_CONTRACT, { network: "testnet", dir, version: "0.0.0" }), dir, folder);
  });
});
