import { scv } from "@fencepost/simulator";
import { expect, test } from "vitest";
import { z } from "zod";
import { defineContract } from "./contract.ts";
import { defineProjection } from "./projection.ts";

const schema = z.object({ amount: z.bigint() });
const pool = defineContract({ id: scv.contractId("pool"), startLedger: 1, events: { locked: schema } });
const other = defineContract({ id: scv.contractId("other"), startLedger: 1, events: { locked: schema } });
const input = { name: "pools", version: 1, contracts: { pool }, tables: {}, on: {} };

test("a projection without messages declares none", () => {
  expect(defineProjection(input)).toEqual({ kind: "projection", messages: {}, ...input });
});

test.each(["p", "pools_2", "a".repeat(48)])("may be named %s", (name) => {
  expect(defineProjection({ ...input, name }).name).toBe(name);
});

test.each(["", "Pools", "2pools", "pools-a", "pools_v2", "a".repeat(49), "public", "fencepost", "pg_pools"])(
  "refuses the name %j, which cannot be a schema of its own",
  (name) => {
    expect(() => defineProjection({ ...input, name })).toThrow(TypeError);
    expect(() => defineProjection({ ...input, name })).toThrow(`The projection name "${name}" cannot be`);
  },
);

test.each([0, -1, 1.5, Number.NaN, 1_000_001])("refuses the version %s", (version) => {
  expect(() => defineProjection({ ...input, version })).toThrow(TypeError);
  expect(() => defineProjection({ ...input, version })).toThrow(`version of projection pools is ${version}`);
});

const noop = () => {};
test.each<[string, object, RegExp]>([
  [
    "a handler for an event that is not declared",
    { on: { "pool:lockd": noop } },
    /handles "pool:lockd", but no/,
  ],
  ["a handler for a contract that is not declared", { on: { "pol:locked": noop } }, /handles "pol:locked"/],
  ["a handler for what every object has", { on: { "pool:toString": noop } }, /handles "pool:toString"/],
  ["a handler key without a contract", { on: { locked: noop } }, /handles "locked"/],
  [
    "a handler that is no function",
    { on: { "pool:locked": "noop" } },
    /handler "pool:locked" .* not a function/,
  ],
  [
    "a contract name with a colon",
    { contracts: { "a:b": pool } },
    /calls a contract "a:b": leave out the colon/,
  ],
  [
    "one contract under two names: both handlers would run for one event",
    { contracts: { pool, again: pool, other } },
    /contract C\S+ twice, as pool and as again/,
  ],
  ["a message type that cannot be", { messages: { "pool locked": schema } }, /message type "pool locked"/],
  ["an empty part in a message type", { messages: { "pool..locked": schema } }, /"pool..locked"/],
  [
    "a message without a schema",
    { messages: { "pool.locked": {} } },
    /pool.locked of projection pools has no/,
  ],
])("refuses %s", (_, wrong, message) => {
  const define = () => defineProjection({ ...input, ...wrong } as never);
  expect(define).toThrow(TypeError);
  expect(define).toThrow(message);
});
