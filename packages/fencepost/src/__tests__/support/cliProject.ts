import { chmod, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { projectFiles } from "../../cli/projectFiles.ts";
import { POOL_CONTRACT } from "./pools.ts";

const NODE_MODULES = fileURLToPath(new URL("../../../../../node_modules", import.meta.url));

export interface TestFolder {
  readonly path: string;
  write(file: string, text: string | Uint8Array): Promise<void>;
  remove(): Promise<void>;
}

/** A folder outside the repository in which `fencepost` and its dependencies are installed. */
export async function createTestFolder(): Promise<TestFolder> {
  const path = await mkdtemp(join(tmpdir(), "fencepost-test-project-"));
  await chmod(path, 0o755); // as root the embedded server runs as another user, who must get in
  await symlink(NODE_MODULES, join(path, "node_modules"));
  return {
    path,
    async write(file, text) {
      await mkdir(dirname(join(path, file)), { recursive: true });
      await writeFile(join(path, file), text);
    },
    remove: () => rm(path, { recursive: true, force: true }),
  };
}

/** The project that `init` writes for the contract of pools, with the node in its `.env`. */
export async function createPoolProject(rpcUrl: string): Promise<TestFolder> {
  const folder = await createTestFolder();
  const files = projectFiles({
    name: "pools",
    network: "testnet",
    contractId: POOL_CONTRACT,
    rpcUrl,
    versions: { fencepost: "0.0.0", drizzle: "0.0.0" },
    samples: {
      fromLedger: 1,
      events: [{ name: "assets_locked", topics: [], value: { pool_id: "z.string()", amount: "z.bigint()" } }],
    },
  });
  for (const [file, text] of Object.entries(files)) await folder.write(file, text);
  return folder;
}
