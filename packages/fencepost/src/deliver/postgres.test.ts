import { afterAll, beforeAll, describe } from "vitest";
import { type ConformingPostgres, openConformingPostgres } from "../__tests__/support/conformingPostgres.ts";
import { deliverConformance } from "./deliver.conformance.ts";
import { doubtsConformance } from "./doubts.conformance.ts";

let postgres: ConformingPostgres;
beforeAll(async () => {
  postgres = await openConformingPostgres();
});
afterAll(() => postgres.close());

describe("delivering", () => deliverConformance((options) => postgres.create(options)));
describe("doubts", () => doubtsConformance((options) => postgres.create(options)));
