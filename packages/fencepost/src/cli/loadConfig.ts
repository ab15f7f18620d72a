import { existsSync } from "node:fs";
import { basename, sep } from "node:path";
import { createJiti } from "jiti";
import type { Config } from "../config/config.ts";
import type { Source } from "../source/source.ts";
import {
  ConfigFailedError,
  ConfigNotFoundError,
  InvalidConfigError,
  NoSourceError,
  UnknownSourceError,
} from "./errors.ts";

export interface LoadedConfig {
  readonly config: Config;
  /** The config and the user's own modules that it imports. */
  readonly files: readonly string[];
}

/**
 * Loads a config, a TypeScript module, with everything that it imports; each call reads the user's files anew. Its
 * `import "fencepost"` is this very program. Throws {@link ConfigNotFoundError}, {@link ConfigFailedError} with the
 * user's own stack, or {@link InvalidConfigError}.
 */
export async function loadConfig(path: string): Promise<LoadedConfig> {
  if (!existsSync(path)) throw new ConfigNotFoundError(path);
  const fencepost = await import("../index.ts"); // here, so that commands without a config start at once
  let exported: unknown;
  let files: readonly string[];
  try {
    const jiti = createJiti(path, { fsCache: false, tsconfigPaths: true, virtualModules: { fencepost } });
    for (const file of userModules(jiti.cache)) delete jiti.cache[file];
    exported = await jiti.import(path, { default: true });
    files = userModules(jiti.cache);
  } catch (error) {
    throw new ConfigFailedError(basename(path), error);
  }
  if ((exported as { kind?: unknown } | null)?.kind !== "config") {
    throw new InvalidConfigError(basename(path), exported);
  }
  return { config: exported as Config, files };
}

/** For commands about ledgers. Throws {@link NoSourceError}. */
export function requireSource({ source }: Config): Source {
  if (!source) throw new NoSourceError();
  return source;
}

/** One of the config's `sources` by name; its source without one. Throws {@link UnknownSourceError} and {@link NoSourceError}. */
export function sourceNamed(config: Config, name: string | undefined): Source {
  if (name === undefined) return requireSource(config);
  const source = config.sources[name];
  if (!source) throw new UnknownSourceError(name, Object.keys(config.sources));
  return source;
}

function userModules(cache: object): readonly string[] {
  return Object.keys(cache).filter((file) => !file.includes(`${sep}node_modules${sep}`));
}
