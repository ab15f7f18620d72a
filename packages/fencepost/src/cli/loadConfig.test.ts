import { rm } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, expect, it } from "vitest";
import { createTestFolder, type TestFolder } from "../__tests__/support/cliProject.ts";
import { stellarRpc } from "../index.ts";
import { loadConfig } from "./loadConfig.ts";

const folders: TestFolder[] = [];
afterEach(async () => {
  for (const folder of folders.splice(0)) await folder.remove();
});

async function startFolder(
  files: Readonly<Record<string, string>>,
): Promise<TestFolder & { config: string }> {
  const folder = await createTestFolder();
  folders.push(folder);
  for (const [file, text] of Object.entries(files)) await folder.write(file, text);
  return { ...folder, config: join(folder.path, "fencepost.config.ts") };
}

const CONTRACT = "CAS3J7GYLGXMF6TDJBBYYSE3HQ6BBSMLNUQ34T6TZMYMW2EVH34XOWMA";
const FILES = {
  "fencepost.config.ts": `
    import { defineConfig, stellarRpc } from "fencepost";
    import { one } from "./projections/one";
    import { two } from "@/projections/two.js";
    export default defineConfig({
      source: stellarRpc({ network: "testnet", urls: "http://127.0.0.1:9" }),
      projections: [one, two],
    });
    export const rpc: typeof stellarRpc = stellarRpc;
    globalThis.seenByTest = { stellarRpc };
  `,
  "contracts.ts": `
    import { defineContract } from "fencepost";
    import { z } from "zod";
    enum Habit { OfUsers = "transfer" }
    export const contract = defineContract({
      id: "${CONTRACT}", startLedger: 1, events: { [Habit.OfUsers]: z.object({ amount: z.bigint() }) },
    });
  `,
  "projections/one.ts": projection("one"),
  "projections/two.ts": projection("two"),
  "tsconfig.json": '{ "compilerOptions": { "paths": { "@/*": ["./*"] } } }',
};

function projection(name: string): string {
  return `
    import { defineProjection } from "fencepost";
    import { contract } from "../contracts";
    export const ${name} = defineProjection({ name: "${name}", version: 1, contracts: { contract }, tables: {}, on: {} });
  `;
}

it("loads TypeScript in its users' habits, once a module, on the very fencepost that loads it", async () => {
  const { path, config } = await startFolder(FILES);
  const loaded = await loadConfig(config);
  expect(loaded.config.kind).toBe("config");
  const [one, two] = loaded.config.projections;
  expect(one?.contracts["contract"]).toBe(two?.contracts["contract"]);
  expect((globalThis as unknown as { seenByTest: object }).seenByTest).toEqual({ stellarRpc });
  expect([...loaded.files].sort()).toEqual([
    join(path, "contracts.ts"),
    config,
    join(path, "projections/one.ts"),
    join(path, "projections/two.ts"),
  ]);
});

it("reads every file anew on each call", async () => {
  const folder = await startFolder(FILES);
  await loadConfig(folder.config);
  await folder.write("projections/one.ts", projection("one").replace("version: 1", "version: 2"));
  const { config } = await loadConfig(folder.config);
  expect(config.projections.map(({ version }) => version)).toEqual([2, 1]);
});

it("names a file that is not there, an export that is no config, and what it is", async () => {
  const folder = await startFolder({ "fencepost.config.ts": "export const config = 1;" });
  await expect(loadConfig(folder.config)).rejects.toMatchObject({
    name: "InvalidConfigError",
    message: expect.stringMatching(/^The default export of fencepost\.config\.ts is .*, and not a config\./),
  });
  await folder.write("fencepost.config.ts", "export default undefined;");
  await expect(loadConfig(folder.config)).rejects.toMatchObject({ name: "InvalidConfigError" });
  await rm(folder.config);
  await expect(loadConfig(folder.config)).rejects.toMatchObject({ name: "ConfigNotFoundError" });
});

it("shows what a module threw and where in the user's files, without the frames of others", async () => {
  const folder = await startFolder({
    ...FILES,
    "contracts.ts": `import { defineContract } from "fencepost";\n\nexport const contract = defineContract({ id: "C1" });`,
  });
  await expect(loadConfig(folder.config)).rejects.toMatchObject({
    name: "ConfigFailedError",
    message: expect.stringMatching(
      /^fencepost\.config\.ts threw TypeError: A contract id is C and 55 of A-Z 2-7, but this is "C1"\.\n +at \S*contracts\.ts:3:\d+(\n +at async \S*\/(one|fencepost\.config)\.ts:\d+:\d+)+$/,
    ),
  });
});

it("names a syntax error and an import that cannot be found", async () => {
  const folder = await startFolder({ ...FILES, "projections/one.ts": "export const one = {" });
  await expect(loadConfig(folder.config)).rejects.toMatchObject({
    name: "ConfigFailedError",
    message: expect.stringContaining("projections/one.ts"),
  });
  await folder.write("projections/one.ts", 'import "./nowhere";');
  await expect(loadConfig(folder.config)).rejects.toMatchObject({
    name: "ConfigFailedError",
    message: expect.stringMatching(/Cannot find module '\.\/nowhere'/),
  });
});
