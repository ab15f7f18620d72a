// A folder with generated and other TypeScript, as a user has it: checked by the compiler, and run.
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import ts from "typescript";

const PACKAGE = fileURLToPath(new URL("./fencepost.ts", import.meta.url));
const BASE_CONFIG = fileURLToPath(new URL("../../../../../tsconfig.base.json", import.meta.url));

export interface Project {
  readonly path: (name: string) => string;
  write(name: string, content: string | Uint8Array): Promise<string>;
  /** What the compiler says of these files, at its strictest: a line each, that begins with the name of the file. */
  check(names: readonly string[]): string[];
  /** Runs a file and gives what it exports. */
  load(name: string): Promise<Record<string, unknown>>;
  remove(): Promise<void>;
}

export async function createProject(): Promise<Project> {
  const folder = await mkdtemp(join(tmpdir(), "fencepost-codegen-"));
  const path = (name: string): string => join(folder, name);
  await writeFile(path("package.json"), '{ "type": "module" }');
  return {
    path,
    async write(name, content) {
      await writeFile(path(name), content);
      return path(name);
    },
    check(names) {
      const { config } = ts.readConfigFile(BASE_CONFIG, ts.sys.readFile);
      const { options } = ts.convertCompilerOptionsFromJson(config.compilerOptions, folder);
      const program = ts.createProgram(names.map(path), {
        ...options,
        noEmit: true,
        paths: { fencepost: [PACKAGE] },
        typeRoots: [fileURLToPath(new URL("../../../../../node_modules/@types", import.meta.url))],
      });
      const diagnostics = ts.getPreEmitDiagnostics(program);
      return diagnostics.map(({ file, start, messageText }) => {
        const line = file ? file.getLineAndCharacterOfPosition(start ?? 0).line + 1 : 0;
        return `${file?.fileName.split("/").at(-1)}:${line} ${ts.flattenDiagnosticMessageText(messageText, "\n")}`;
      });
    },
    async load(name) {
      const source = await readFile(path(name), "utf8");
      const runnable = path(`${name.replace(/\.ts$/, "")}.run.ts`);
      await writeFile(runnable, source.replace('from "fencepost"', `from ${JSON.stringify(PACKAGE)}`));
      return import(pathToFileURL(runnable).href);
    },
    remove: () => rm(folder, { recursive: true }),
  };
}

/** Makes a map of the type that is wanted where it stands: the compiler takes none from what is in it. */
export const MAP_HELPER =
  "const map = <K, V>(pairs: NoInfer<readonly (readonly [K, V])[]>): ReadonlyMap<K, V> => new Map(pairs);";

/** A value as it is written in TypeScript, where {@link MAP_HELPER} is. */
export function sourceOf(value: unknown): string {
  if (typeof value === "bigint") return `${value}n`;
  if (value instanceof Uint8Array) return `Uint8Array.of(${[...value].join(", ")})`;
  if (value instanceof Map) return `map([${[...value].map((pair) => sourceOf(pair)).join(", ")}])`;
  if (Array.isArray(value)) return `[${value.map(sourceOf).join(", ")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  return `{ ${Object.entries(value)
    .map(([key, item]) => `[${JSON.stringify(key)}]: ${sourceOf(item)}`)
    .join(", ")} }`;
}
