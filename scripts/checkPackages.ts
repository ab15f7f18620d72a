// What a user gets: the packed packages, installed in an empty folder with plain npm, imported, type-checked and run.
import { execFile } from "node:child_process";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

const NAMES = ["@fencepost/token", "@fencepost/receiver", "@fencepost/simulator", "fencepost"];

/** Fails, by its types, where a package has none or lost them on the way. */
const USES_TYPES = `
import { createReceiver } from "@fencepost/receiver";
import { startRpc } from "@fencepost/simulator";
import { type FencingToken, ledgerToken } from "@fencepost/token";
import { stellarRpc } from "fencepost";

const token: FencingToken = ledgerToken({ stream: "testnet", epoch: "20251217", ledger: 1, tx: 1, op: 0, event: 0 });
// @ts-expect-error a token is a text
const n: number = token;
// @ts-expect-error a node needs a chain
startRpc({});
// @ts-expect-error a receiver needs secrets
createReceiver({});
// @ts-expect-error there is no such network
stellarRpc({ network: "moon", urls: "https://x" });
export { n };
`;

/** Packs the built packages, and throws unless they install, import, type-check and run outside of the repository. */
export async function checkPackages(root: string, built: readonly string[]): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), "fencepost-packages-"));
  try {
    console.log("packing");
    for (const dist of built) await run("npm", ["pack", "--pack-destination", folder], dist);
    const tarballs = (await readdir(folder)).map((file) => `./${file}`);

    console.log("installing in an empty folder");
    await writeFile(join(folder, "package.json"), '{ "private": true, "type": "module" }');
    // The packages of a new project beside Fencepost. Optional ones are the binaries of PostgreSQL: not needed here.
    const { devDependencies: tools } = await manifest(root);
    const beside = [`zod@${tools["zod"]}`, `@types/node@${tools["@types/node"]}`];
    const quiet = [
      "--no-audit",
      "--no-fund",
      "--no-update-notifier",
      "--prefer-offline",
      "--ignore-scripts",
      "--omit=optional",
    ];
    await run("npm", ["install", ...quiet, ...tarballs, ...beside], folder);

    console.log("importing");
    const script = NAMES.map(
      (name) => `if (Object.keys(await import("${name}")).length === 0) throw new Error("${name} is empty");`,
    );
    await run(process.execPath, ["--input-type=module", "--eval", script.join("\n")], folder);

    console.log("running fencepost");
    const bin = join(folder, "node_modules/.bin/fencepost");
    const help = await run(process.execPath, [bin, "--help"], folder);
    if (!help.includes("Usage: fencepost")) throw new Error(`fencepost --help wrote:\n${help}`);
    const migrations = join("store/postgres/migrations");
    const shipped = await readdir(join(folder, "node_modules/fencepost", migrations));
    const expected = await readdir(join(root, "packages/fencepost/src", migrations));
    if (shipped.join() !== expected.join())
      throw new Error(`Of the migrations these are shipped: ${shipped.join()}`);

    console.log("type-checking a new project");
    await run(process.execPath, [bin, "init", "--network", "pubnet", "--dir", "project"], folder);
    await writeFile(join(folder, "project/uses-types.ts"), USES_TYPES);
    await run(process.execPath, [join(root, "node_modules/typescript/bin/tsc"), "-p", "project"], folder);
    console.log(`${NAMES.length} packages install, import, type-check and run`);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function manifest(
  folder: string,
): Promise<{ readonly devDependencies: Readonly<Record<string, string>> }> {
  return JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
}

/** Runs a program to its end and returns its standard output. Throws with all that it wrote where it fails. */
async function run(command: string, args: readonly string[], cwd: string): Promise<string> {
  // Without what npm tells the scripts that it runs: it would steer the npm that is run here.
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("npm_")));
  delete env["STELLAR_RPC_URL"];
  try {
    return (await promisify(execFile)(command, args, { cwd, env, timeout: 600_000 })).stdout;
  } catch (error) {
    const { message, stdout = "", stderr = "" } = error as Error & { stdout?: string; stderr?: string };
    throw new Error([message, stdout, stderr].join("\n"), { cause: error });
  }
}
