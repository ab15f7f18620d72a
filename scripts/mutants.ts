// npm run mutants [-- --only <part of a guard's name>] [-- --reduced]
// Removes each guard in turn, by a patch in a copy of the tree, and requires the test named for it to fail.
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { type Guard, guards } from "./mutants/guards.ts";
import { runTest } from "./mutants/runTest.ts";
import { copyTree } from "./mutants/treeCopy.ts";

const { values: options } = parseArgs({ options: { only: { type: "string", default: "" } } });
const chosen = guards.filter((guard) => guard.guard.includes(options.only));

const copy = await copyTree(fileURLToPath(new URL("..", import.meta.url)));
let survivors = 0;
try {
  for (const guard of chosen) {
    const verdict = await attack(guard);
    if (verdict !== "caught") survivors++;
    process.stdout.write(
      `${verdict.padEnd(10)} ${guard.guard}\n           ${guard.test.file}: ${guard.test.name}\n`,
    );
  }
} finally {
  await copy.remove();
}
process.stdout.write(`${chosen.length - survivors} guards caught, ${survivors} not\n`);
process.exitCode = survivors === 0 && chosen.length > 0 ? 0 : 1;

/** Runs the test as it is, which must pass, and without the guard, which must fail. */
async function attack({ patches, test }: Guard): Promise<"caught" | "survived" | "broken"> {
  if ((await runTest(copy.root, test)).failed.length > 0) return "broken";
  const originals = await Promise.all(
    patches.map(async (patch) => ({ ...patch, text: await readFile(join(copy.root, patch.file), "utf8") })),
  );
  // Several patches may be of one file: each is applied to what the one before it left.
  const changed = new Map(originals.map(({ file, text }) => [file, text]));
  for (const { file, find, replace } of patches) {
    const text = changed.get(file) ?? "";
    if (!text.includes(find)) throw new Error(`${file} does not have ${JSON.stringify(find)}.`);
    changed.set(
      file,
      text.replace(find, () => replace),
    );
  }
  try {
    for (const [file, text] of changed) await writeFile(join(copy.root, file), text);
    return (await runTest(copy.root, test)).failed.length > 0 ? "caught" : "survived";
  } finally {
    for (const { file, text } of originals) await writeFile(join(copy.root, file), text);
  }
}
