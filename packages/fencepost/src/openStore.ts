import type { Config } from "./config/config.ts";
import type { DeliveryStore } from "./store/deliveryStore.ts";
import type { Database } from "./store/postgres/database.ts";
import { postgresStore } from "./store/postgres/postgresStore.ts";
import { openRedisStore } from "./store/redis/openRedisStore.ts";
import { relayedStore } from "./store/redis/relayedStore.ts";
import { type Seal, sealedSecrets } from "./store/sealedSecrets.ts";

/** Where webhooks and deliveries of an installation live. */
export interface OpenedStore {
  readonly store: DeliveryStore<never>;
  close(): Promise<void>;
}

export interface OpenStoreOptions {
  readonly database: Database;
  readonly config: Pick<Config, "deliveries">;
  /** Secrets are read and written through it; as they are stored unless given. */
  readonly seal?: Seal;
  readonly retryScheduleMs?: readonly number[];
}

/**
 * Opens the store that the config names. Throws `EvictionPolicyError` and `RedisVersionError` for a Redis that cannot
 * be used, and what its client throws where it cannot connect.
 */
export async function openStore({
  database,
  config,
  seal,
  retryScheduleMs,
}: OpenStoreOptions): Promise<OpenedStore> {
  const sealed = (store: DeliveryStore<never>) => (seal ? sealedSecrets(store, seal) : store);
  const schedule = retryScheduleMs ? { retryScheduleMs } : {};
  if (config.deliveries === "postgres") {
    return { store: sealed(postgresStore(database, schedule)), close: async () => {} };
  }
  const urls = config.deliveries.redis.split(",");
  const [url = ""] = urls;
  const redis = await openRedisStore(urls.length === 1 ? { url } : { urls }, schedule);
  return { store: sealed(relayedStore(database, redis)), close: redis.close };
}
