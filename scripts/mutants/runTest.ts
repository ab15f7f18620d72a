import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A test by its file, from the root of the tree, and its full name or a part of it. */
export interface TestName {
  readonly file: string;
  readonly name: string;
}

export interface TestRun {
  readonly passed: readonly string[];
  readonly failed: readonly string[];
}

interface Report {
  readonly testResults: readonly {
    readonly assertionResults: readonly { readonly status: string; readonly fullName: string }[];
  }[];
}

/** A test that does not end by then counts as failed: a guard may be what ends it. In milliseconds. */
const LIMIT_MS = 300_000;

/** Runs the tests of one name in a tree. Throws where none of that name ran. */
export async function runTest(root: string, { file, name }: TestName): Promise<TestRun> {
  const [packages = "", workspace = "", ...rest] = file.split("/");
  const folder = await mkdtemp(join(tmpdir(), "fencepost-report-"));
  const output = join(folder, "report.json");
  try {
    const pattern = name.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const args = ["run", rest.join("/"), "-t", pattern, "--reporter=json", `--outputFile=${output}`];
    const ended = await run(join(root, "node_modules/.bin/vitest"), args, join(root, packages, workspace));
    if (!ended) return { passed: [], failed: [`${name} (no end within ${LIMIT_MS} ms)`] };
    const report = JSON.parse(await readFile(output, "utf8")) as Report;
    const results = report.testResults.flatMap((result) => result.assertionResults);
    const named = (status: string) => results.filter((r) => r.status === status).map((r) => r.fullName);
    const [passed, failed] = [named("passed"), named("failed")];
    if (passed.length + failed.length === 0)
      throw new Error(`No test named ${JSON.stringify(name)} ran in ${file}.`);
    return { passed, failed };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** False where the process had to be ended. */
function run(command: string, args: readonly string[], cwd: string): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { cwd, stdio: "ignore" });
    const limit = setTimeout(() => child.kill("SIGTERM"), LIMIT_MS);
    child.once("error", reject);
    child.once("exit", (_code, signal) => {
      clearTimeout(limit);
      resolve(signal === null);
    });
  });
}
