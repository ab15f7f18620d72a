import { join } from "node:path";
import { afterEach, it } from "vitest";
import { createTestFolder, type TestFolder } from "../__tests__/support/cliProject.ts";
import { type SourceWatch, watchSources } from "./sourceWatch.ts";

const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function startFolder(): Promise<TestFolder> {
  const folder = await createTestFolder();
  closing.push(folder.remove);
  return folder;
}

async function startWatch(folder: TestFolder): Promise<SourceWatch> {
  const sources = await watchSources(folder.path, (error) => {
    throw error;
  });
  closing.push(sources.close);
  return sources;
}

const never = new AbortController().signal;

it("tells a save in a folder below, and one that came while nobody waited", async () => {
  const folder = await startFolder();
  await folder.write("deep/er/a.ts", "1");
  const sources = await startWatch(folder);
  const first = sources.changed(never);
  await folder.write("deep/er/a.ts", "2");
  await first;
  await folder.write("deep/er/a.ts", "3");
  await sources.changed(never);
});

it("follows a folder that is made later, and the files that came with it", async () => {
  const folder = await startFolder();
  const sources = await startWatch(folder);
  const made = sources.changed(never);
  await folder.write("lib/a.ts", "1");
  await made;
  const saved = sources.changed(never);
  await folder.write("lib/a.ts", "2");
  await saved;
});

it("follows modules outside of its folder once it is told of them", async () => {
  const [folder, shared] = [await startFolder(), await startFolder()];
  await shared.write("shared.ts", "1");
  const sources = await startWatch(folder);
  sources.alsoFolderOf([join(shared.path, "shared.ts")]);
  const saved = sources.changed(never);
  await shared.write("shared.ts", "2");
  await saved;
});

it("ends the wait when it is aborted", async () => {
  const sources = await startWatch(await startFolder());
  const stopping = new AbortController();
  const waiting = sources.changed(stopping.signal);
  stopping.abort();
  await waiting;
});
