// Emits what is published: for each package JavaScript and declarations in dist/, with a package.json of its own.
// Then packs it all, and installs and uses it in an empty folder.
import { cp, glob, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";
import { checkPackages } from "./checkPackages.ts";

const root = fileURLToPath(new URL("..", import.meta.url));
/** In the order in which they depend on each other. */
const PACKAGES = ["token", "receiver", "simulator", "fencepost"];

interface Manifest {
  readonly name: string;
  readonly exports: Readonly<Record<string, string>>;
  readonly bin?: Readonly<Record<string, string>>;
}

async function buildPackage(folder: string): Promise<string> {
  const source = JSON.parse(await readFile(join(folder, "package.json"), "utf8")) as Manifest;
  const out = join(folder, "dist");
  await rm(out, { recursive: true, force: true });
  const entries = [...Object.values(source.exports), ...Object.values(source.bin ?? {})];
  emit(
    entries.map((entry) => join(folder, entry)),
    join(folder, "src"),
    out,
  );
  for await (const file of glob("src/**/*.sql", { cwd: folder })) {
    const copy = join(out, file.slice("src/".length));
    await mkdir(dirname(copy), { recursive: true });
    await cp(join(folder, file), copy);
  }
  for await (const file of glob("openapi.json", { cwd: folder }))
    await cp(join(folder, file), join(out, file));
  await writeFile(join(out, "package.json"), `${JSON.stringify(published(source), null, 2)}\n`);
  await cp(join(root, "LICENSE"), join(out, "LICENSE"));
  const readme = source.name === "fencepost" ? root : folder;
  await cp(join(readme, "README.md"), join(out, "README.md"));
  await refuseMachinePaths(out);
  return out;
}

/** Only what the entries reach is emitted: no test, and nothing that only tests use. */
function emit(entries: readonly string[], rootDir: string, outDir: string): void {
  const base = ts.readConfigFile(join(root, "tsconfig.base.json"), ts.sys.readFile);
  const { options } = ts.parseJsonConfigFileContent(base.config, ts.sys, root, {
    rootDir,
    outDir,
    declaration: true,
    noEmitOnError: true,
  });
  const program = ts.createProgram({ rootNames: entries, options });
  const { diagnostics } = program.emit();
  const problems = [...ts.getPreEmitDiagnostics(program), ...diagnostics];
  if (problems.length === 0) return;
  throw new Error(
    ts.formatDiagnostics(problems, {
      getCanonicalFileName: (file) => file,
      getCurrentDirectory: () => root,
      getNewLine: () => "\n",
    }),
  );
}

/** The manifest beside the JavaScript: its paths point there, and what only the repository needs is left out. */
function published(source: Manifest): object {
  const {
    exports,
    bin,
    files: _,
    devDependencies: __,
    ...rest
  } = source as Manifest & Record<string, unknown>;
  const emitted = (path: string, extension: string): string =>
    path.replace("./src/", "./").replace(/\.ts$/, extension);
  const mapped = Object.entries(exports).map(([name, path]) => [
    name,
    { types: emitted(path, ".d.ts"), default: emitted(path, ".js") },
  ]);
  const commands = Object.entries(bin ?? {}).map(([name, path]) => [name, emitted(path, ".js")]);
  return {
    ...rest,
    exports: Object.fromEntries(mapped),
    ...(bin && { bin: Object.fromEntries(commands) }),
  };
}

async function refuseMachinePaths(folder: string): Promise<void> {
  for await (const file of glob("**/*.{js,ts,json}", { cwd: folder })) {
    const text = await readFile(join(folder, file), "utf8");
    if (text.includes(root)) throw new Error(`${join(folder, file)} holds a path of this machine.`);
  }
}

const built: string[] = [];
for (const name of PACKAGES) {
  console.log(`building packages/${name}/dist`);
  built.push(await buildPackage(join(root, "packages", name)));
}
await checkPackages(root, built);
