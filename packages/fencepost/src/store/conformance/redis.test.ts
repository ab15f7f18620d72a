// Deliveries in Redis, behind the outbox of an engine in PostgreSQL.
import { afterAll, beforeAll, describe } from "vitest";
import { type ConformingRedis, openConformingRedis } from "../../__tests__/support/conformingRedis.ts";
import { hasRedis } from "../../__tests__/support/redisServer.ts";
import { deliveryStoreConformance } from "./deliveryStore.conformance.ts";

describe.skipIf(!hasRedis).each(["server", "cluster"] as const)("on a %s of Redis", (kind) => {
  let redis: ConformingRedis;
  beforeAll(async () => {
    redis = await openConformingRedis(kind);
  });
  afterAll(() => redis.close());
  deliveryStoreConformance((options) => redis.create(options));
});
