import { once } from "node:events";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { startScript } from "../../__tests__/support/scriptProcess.ts";
import { EmbeddedPostgresBusyError } from "./errors.ts";
import { withFolderLock } from "./folderLock.ts";

const WAIT_MS = 30_000;

describe("the lock of a folder", () => {
  let folder: string;
  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), "fencepost-lock-"));
  });
  afterEach(() => rm(folder, { recursive: true, force: true }));

  /** Runs `count` holders at once and returns the most that were ever inside together. */
  async function contend(count: number): Promise<number> {
    let inside = 0;
    let most = 0;
    const hold = async () => {
      most = Math.max(most, ++inside);
      await readdir(folder); // gives the others a turn
      inside--;
    };
    await Promise.all(Array.from({ length: count }, () => withFolderLock(folder, WAIT_MS, hold)));
    return most;
  }

  it("admits one of many at a time, and every one in the end", async () => {
    expect(await contend(20)).toBe(1);
    expect((await readdir(join(folder, "lock"))).length).toBe(1);
  });

  it("is free again after work that threw", async () => {
    const failing = withFolderLock(folder, WAIT_MS, () => Promise.reject(new Error("no luck")));
    await expect(failing).rejects.toThrow("no luck");
    expect(await withFolderLock(folder, WAIT_MS, async () => "mine")).toBe("mine");
  });

  it("of a holder that was killed is taken over by exactly one of those who wait", async () => {
    const holder = startScript(
      `import { withFolderLock } from ${JSON.stringify(new URL("./folderLock.ts", import.meta.url).href)};
       await withFolderLock(process.argv[1], 1_000, async () => {
         console.log("held");
         await new Promise((resolve) => setTimeout(resolve, 3_600_000));
       });`,
      [folder],
    );
    expect(await holder.nextLine()).toBe("held");
    await expect(withFolderLock(folder, 100, async () => {})).rejects.toThrow(EmbeddedPostgresBusyError);
    await expect(withFolderLock(folder, 100, async () => {})).rejects.toThrow(`Process ${holder.pid}`);

    const gone = once(holder.child, "exit");
    holder.child.kill("SIGKILL");
    await gone;
    expect(await contend(10)).toBe(1);
  });
});
