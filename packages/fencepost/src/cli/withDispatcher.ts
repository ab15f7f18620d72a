import type { Config } from "../config/config.ts";
import { createDispatcher, type Dispatcher } from "../dispatcher.ts";
import { createLog } from "../observe/log.ts";
import { openStore } from "../openStore.ts";
import { readSecretsKeys } from "../store/sealedSecrets.ts";
import { loadConfig } from "./loadConfig.ts";
import { type DatabasePlace, withProjectDatabase } from "./project.ts";
import { secretsKey } from "./secretsKey.ts";

export interface AskOptions {
  readonly config: string;
  /** Take http urls for a database that is not the embedded one. */
  readonly allowInsecure?: boolean;
}

export interface Asked {
  readonly dispatcher: Dispatcher<never>;
  readonly config: Config;
  readonly place: DatabasePlace;
}

/**
 * Runs `work` with a dispatcher on the store that the project's config names. It sends nothing: a running `dev` or
 * `start` does.
 */
export async function withDispatcher<T>(options: AskOptions, work: (asked: Asked) => Promise<T>): Promise<T> {
  return withProjectDatabase(options.config, async ({ database, place }, project) => {
    const { config } = await loadConfig(project.configPath);
    const { store, close } = await openStore({ database, config, seal: readSecretsKeys(secretsKey()) });
    const dispatcher = createDispatcher<never>({
      store,
      log: createLog("silent"),
      allowNetworks: config.deliver.allowNetworks ?? [],
      allowInsecure: options.allowInsecure === true || place.kind === "embedded",
    });
    try {
      return await work({ dispatcher, config, place });
    } finally {
      await dispatcher.stop();
      await close();
    }
  });
}
