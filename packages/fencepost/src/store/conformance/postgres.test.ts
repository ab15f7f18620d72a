import { afterAll, beforeAll } from "vitest";
import {
  type ConformingPostgres,
  openConformingPostgres,
} from "../../__tests__/support/conformingPostgres.ts";
import { deliveryStoreConformance } from "./deliveryStore.conformance.ts";

let postgres: ConformingPostgres;
beforeAll(async () => {
  postgres = await openConformingPostgres();
});
afterAll(() => postgres.close());

deliveryStoreConformance((options) => postgres.create(options));
