// What every delivery store must do, races included. A store passes when a test runs this on the real thing.
import { describe, it } from "vitest";
import { claimsConformance } from "./claims.conformance.ts";
import type { CreateStore } from "./conformingStore.ts";
import { countsConformance } from "./counts.conformance.ts";
import { deliveriesConformance } from "./deliveries.conformance.ts";
import { checkAgainstModel, SEQUENCES } from "./deliveryStoreModel.conformance.ts";
import { dispatchingConformance } from "./dispatching.conformance.ts";
import { replayConformance } from "./replay.conformance.ts";
import { strictOrderConformance } from "./strictOrder.conformance.ts";
import { upkeepConformance } from "./upkeep.conformance.ts";
import { webhooksConformance } from "./webhooks.conformance.ts";

/** Defines the tests. */
export function deliveryStoreConformance(create: CreateStore): void {
  describe("webhooks", () => webhooksConformance(create));
  describe("dispatching", () => dispatchingConformance(create));
  describe("claims", () => claimsConformance(create));
  describe("strict order", () => strictOrderConformance(create));
  describe("deliveries", () => deliveriesConformance(create));
  describe("replay", () => replayConformance(create));
  describe("counts", () => countsConformance(create));
  describe("upkeep", () => upkeepConformance(create));

  it("keeps its promises whatever comes in whatever order, twice over", {
    timeout: 60_000 + SEQUENCES * 3_000,
  }, async () => {
    await checkAgainstModel(create);
  });
}
