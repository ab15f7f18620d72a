import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { never } from "../../__tests__/support/windows.ts";
import { SourceUnavailableError } from "../errors.ts";
import { chainWithLake, opened } from "./__tests__/support/lakes.ts";
import { listedEdges, probedEdges } from "./edges.ts";
import { openObjects } from "./objects.ts";
import { folderStorage } from "./storage.ts";

const open = opened();
afterEach(open.closeAll);

const layout = { ledgersPerBatch: 1, batchesPerPartition: 10 };

async function lakeThrough(ledger: number) {
  const folder = await open.folder();
  await chainWithLake(folder, ledger, layout);
  const storage = folderStorage(folder);
  return { folder, storage, objects: openObjects(storage, layout) };
}

test("a partition without objects is passed over", async () => {
  const { folder, storage, objects } = await lakeThrough(35);
  await mkdir(join(folder, "FFFFFFD7--40-49"));
  const edges = listedEdges(storage.list!, "it", layout, objects);
  expect(await edges.newest(2, 99, never)).toBe(35);
});

test("a folder with more names than are read tells nothing about what is missing", async () => {
  const { objects } = await lakeThrough(1);
  const list = async (_: string, most: number) =>
    Array.from({ length: Math.min(most, 300_000) }, () => "name");
  const edges = listedEdges(list, "it", layout, objects);
  await expect(edges.oldest(never)).rejects.toThrow(SourceUnavailableError);
  await expect(edges.endOfHole(5, never)).rejects.toThrow(/200000 names or more/);
});

test("the end is found from any ledger that is there, or beyond one that is not", async () => {
  const { objects } = await lakeThrough(77);
  const edges = probedEdges("it", layout, objects, 2);
  for (const known of [2, 3, 40, 76, 77]) {
    for (const wanted of [2, known, 50, 77, 78, 200])
      expect(await edges.newest(known, wanted, never)).toBe(77);
  }
});

test("a hole that nothing can be found behind is told as far as it was looked at", async () => {
  const { objects } = await lakeThrough(9);
  expect(await probedEdges("it", layout, objects, 2).endOfHole(10, never)).toBe(266);
});
