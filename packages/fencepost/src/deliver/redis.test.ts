import { afterAll, beforeAll, describe } from "vitest";
import { type ConformingRedis, openConformingRedis } from "../__tests__/support/conformingRedis.ts";
import { hasRedis } from "../__tests__/support/redisServer.ts";
import { deliverConformance } from "./deliver.conformance.ts";
import { doubtsConformance } from "./doubts.conformance.ts";

describe.skipIf(!hasRedis)("over Redis", () => {
  let redis: ConformingRedis;
  beforeAll(async () => {
    redis = await openConformingRedis("server");
  });
  afterAll(() => redis.close());

  describe("delivering", () => deliverConformance((options) => redis.create(options)));
  describe("doubts", () => doubtsConformance((options) => redis.create(options)));
});
