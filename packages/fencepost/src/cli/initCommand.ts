import { existsSync } from "node:fs";
import { mkdir, open, readFile, rm } from "node:fs/promises";
import { findPackageJSON } from "node:module";
import { basename, dirname, join, relative, resolve } from "node:path";
import { stellarRpc } from "../source/stellarRpc.ts";
import { FilesExistError, InvalidContractIdError, namingPath } from "./errors.ts";
import { print } from "./print.ts";
import { projectFiles } from "./projectFiles.ts";
import { type Samples, sampleEvents } from "./sampleEvents.ts";

/** The contract of the native asset, which has events in every ledger. */
const NATIVE_ASSET = {
  testnet: "CDLZFC3SYJYDZT7K67VZ75HPJVIEUVNIXF47ZG2FB2RMQQVU2HHGCYSC",
  pubnet: "CAS3J7GYLGXMF6TDJBBYYSE3HQ6BBSMLNUQ34T6TZMYMW2EVH34XOWMA",
};
/** The node that the Stellar Development Foundation runs; for pubnet it runs none. */
const PUBLIC_RPC = { testnet: "https://soroban-testnet.stellar.org", pubnet: "" };
/** How long the node may take to show events of the contract, in milliseconds. */
const SAMPLE_MS = 10_000;

/** `fencepost init`: writes a project that runs, with the events that the contract emitted lately. */
export async function init(
  contractId: string | undefined,
  options: { readonly network: "testnet" | "pubnet"; readonly dir: string; readonly version: string },
): Promise<void> {
  const { network, dir, version } = options;
  const id = contractId ?? NATIVE_ASSET[network];
  if (!/^C[A-Z2-7]{55}$/.test(id)) throw new InvalidContractIdError(id);
  const folder = resolve(dir);
  const rpcUrl = process.env["STELLAR_RPC_URL"] || PUBLIC_RPC[network];
  const project = {
    name:
      basename(folder)
        .toLowerCase()
        .replaceAll(/[^a-z0-9-]+/g, "-")
        .replace(/^-+/, "") || "fencepost-project",
    network,
    contractId: id,
    rpcUrl,
    versions: { fencepost: version, drizzle: await drizzleVersion() },
  };
  const existing = Object.keys(projectFiles({ ...project, samples: undefined })).filter((file) =>
    existsSync(join(folder, file)),
  );
  if (existing.length > 0) throw new FilesExistError(folder, existing);

  const { samples, note } = await tryToSample(id, network, rpcUrl);
  const files = projectFiles({ ...project, samples });
  await namingPath(folder, () => writeAll(folder, files));
  const enter = relative(process.cwd(), folder);
  print(
    `Wrote ${Object.keys(files).join(", ")} to ${folder}.`,
    note,
    ...(rpcUrl === "" ? ["First set STELLAR_RPC_URL in .env to a node of pubnet."] : []),
    "Next:",
    `  ${enter === "" ? "" : `cd ${enter} && `}npm install`,
    "  npx fencepost dev",
  );
}

/** All of the files, or none: half a project would be in the way of the next try. */
async function writeAll(folder: string, files: Readonly<Record<string, string>>): Promise<void> {
  const begun: string[] = [];
  try {
    for (const [file, text] of Object.entries(files)) {
      const path = join(folder, file);
      await mkdir(dirname(path), { recursive: true });
      const handle = await open(path, "wx");
      begun.push(path);
      try {
        await handle.writeFile(text);
      } finally {
        await handle.close();
      }
    }
  } catch (error) {
    for (const path of begun) await rm(path, { force: true });
    throw error;
  }
}

async function tryToSample(
  contractId: string,
  network: "testnet" | "pubnet",
  urls: string,
): Promise<{ readonly samples: Samples | undefined; readonly note: string }> {
  const example = "contracts.ts has an example event: put in the contract's own.";
  if (urls === "") return { samples: undefined, note: example };
  try {
    const source = stellarRpc({ network, urls });
    const samples = await sampleEvents(source, contractId, AbortSignal.timeout(SAMPLE_MS));
    if (!samples) return { samples, note: `The contract emitted no events lately. ${example}` };
    return {
      samples,
      note: `contracts.ts has the events: ${samples.events.map(({ name }) => name).join(", ")}.`,
    };
  } catch (error) {
    return {
      samples: undefined,
      note: `The node could not be asked (${(error as Error).message}) ${example}`,
    };
  }
}

/** Drizzle's types fit together only in one version: that of Fencepost itself. */
async function drizzleVersion(): Promise<string> {
  const manifest = findPackageJSON("..", import.meta.url) ?? "";
  const { dependencies } = JSON.parse(await readFile(manifest, "utf8")) as {
    dependencies: Record<string, string>;
  };
  return dependencies["drizzle-orm"] ?? "latest";
}
