// What every delivery store must do, races included. A store passes when a test runs this on the real thing.
import { describe, it } from "vitest";
import { claimsConformance } from "./claims.conformance.ts";
import type { CreateStore } from "./conformingStore.ts";
import { checkAgainstModel } from "./deliveryStoreModel.conformance.ts";
import { dispatchingConformance } from "./dispatching.conformance.ts";

/** Defines the tests. */
export function deliveryStoreConformance(create: CreateStore): void {
  describe("dispatching", () => dispatchingConformance(create));
  describe("claims", () => claimsConformance(create));

  it("keeps its promises whatever comes in whatever order, twice over", async () => {
    await checkAgainstModel(create);
  });
}
