import { execFileSync } from "node:child_process";
import { cp, mkdir, mkdtemp, readdir, readlink, rm, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";

/** A copy of the working tree that may be changed; its packages refer to each other, not to the original. */
export interface TreeCopy {
  readonly root: string;
  remove(): Promise<void>;
}

/** Copies what git tracks, as it is in the working tree, and links what is installed. */
export async function copyTree(original: string): Promise<TreeCopy> {
  const root = await mkdtemp(join(tmpdir(), "fencepost-mutants-"));
  const files = execFileSync("git", ["ls-files", "-z"], { cwd: original, encoding: "utf8" }).split("\0");
  for (const file of files.filter((name) => name !== "")) {
    await mkdir(dirname(join(root, file)), { recursive: true });
    await cp(join(original, file), join(root, file));
  }
  await linkModules(join(original, "node_modules"), join(root, "node_modules"));
  for (const workspace of files.filter((name) => /^(packages|examples)\/[^/]+\/package\.json$/.test(name))) {
    const own = join(dirname(workspace), "node_modules");
    await linkModules(join(original, own), join(root, own));
  }
  return { root, remove: () => rm(root, { recursive: true, force: true }) };
}

/** Links each installed package. The links of the workspace are relative, so a copy of them stays inside the copy. */
async function linkModules(from: string, to: string): Promise<void> {
  const entries = await readdir(from, { withFileTypes: true }).catch(() => []);
  if (entries.length === 0) return;
  await mkdir(to, { recursive: true });
  for (const entry of entries) {
    const [source, target] = [join(from, entry.name), join(to, entry.name)];
    if (entry.isSymbolicLink()) await symlink(await readlink(source), target);
    else if (entry.name.startsWith("@")) await linkModules(source, target);
    else if (!entry.name.startsWith(".vite")) await symlink(source, target);
  }
}
