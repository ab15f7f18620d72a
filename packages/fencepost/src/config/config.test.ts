import { scv } from "@fencepost/simulator";
import { expect, test } from "vitest";
import { z } from "zod";
import { stellarRpc } from "../source/stellarRpc.ts";
import { DuplicateMessageTypeError, defineConfig, watchedContracts } from "./config.ts";
import { defineContract, defineProducer, discoveredBy } from "./contract.ts";
import { defineProjection } from "./projection.ts";

const source = stellarRpc({ network: "testnet", urls: "http://127.0.0.1:1" });
const schema = z.object({});

function contract(name: string, startLedger: number | "latest" = 1) {
  return defineContract({ id: scv.contractId(name), startLedger, events: { moved: schema } });
}

function projection(name: string, messages: readonly string[] = [], contracts = [contract("pool")]) {
  return defineProjection({
    name,
    version: 1,
    contracts: Object.fromEntries(contracts.map((value, i) => [`c${i}`, value])),
    tables: {},
    messages: Object.fromEntries(messages.map((type) => [type, schema])),
    on: {},
  });
}

test("fills in what is not given", () => {
  const projections = [projection("a")];
  const filled = {
    kind: "config",
    source,
    sources: {},
    projections,
    onGap: "stop",
    leaseMs: 10_000,
    deliveries: "postgres",
    deliver: {},
    retentionMs: 2_592_000_000,
    secondOpinion: null,
    http: null,
  };
  expect(defineConfig({ source, projections })).toEqual(filled);
  const unset = { source, projections, onGap: undefined, leaseMs: undefined };
  expect(defineConfig(unset as never)).toEqual(filled);
});

test("has no source where every projection follows a producer, and needs one where another does not", () => {
  const billing = defineProducer({ stream: "billing", events: { paid: schema } });
  const producers = defineProjection({ name: "b", version: 1, contracts: { billing }, tables: {}, on: {} });
  expect(defineConfig({ projections: [producers] })).toMatchObject({ source: null, sources: {} });
  expect(defineConfig({ source, projections: [producers, projection("a")] }).source).toBe(source);
  const mixed = () => defineConfig({ projections: [producers, projection("a")] });
  expect(mixed).toThrow(/^source is missing: use source: stellarRpc.* The projection a follows a chain\./);
  const named = () => defineConfig({ sources: { lake: source }, projections: [producers] });
  expect(named).toThrow(/sources is given without source/);
  const unused = () => defineConfig({ source, projections: [producers] });
  expect(unused).toThrow(/source is given, but no projection watches a contract: leave it out/);
});

test("refuses a message type that two projections declare, and names both", () => {
  const projections = [projection("a", ["x", "pool.locked"]), projection("b", ["y", "pool.locked"])];
  expect(() => defineConfig({ source, projections })).toThrow(DuplicateMessageTypeError);
  expect(() => defineConfig({ source, projections })).toThrow(/"pool.locked" .* projections a and b/);
});

test.each<[string, object, RegExp]>([
  ["no source", { source: undefined }, /source is missing/],
  ["a named source that is none", { sources: { lake: undefined } }, /sources\.lake is no source/],
  [
    "a named source of another network",
    { sources: { lake: stellarRpc({ network: "pubnet", urls: "http://localhost" }) } },
    /sources\.lake is of another chain/,
  ],
  ["no projections", { projections: [] }, /projections is empty/],
  ["missing projections", { projections: undefined }, /projections is empty/],
  ["two projections of one name", { projections: [projection("a"), projection("a")] }, /named a/],
  ["an option that there is not", { onGaps: "continue" }, /^onGaps is no option: use source, .* onGap, /],
  ["a lease too short for any commit", { leaseMs: 999 }, /leaseMs is 999/],
  ["a lease that nobody would wait for", { leaseMs: 600_001 }, /leaseMs is 600001/],
  ["a lease that is no number", { leaseMs: Number.NaN }, /leaseMs is NaN/],
  [
    "a second opinion with no second provider",
    { audit: { secondOpinion: { ledgers: 10 } } },
    /needs a source with several providers/,
  ],
  [
    "a second opinion of no ledgers",
    { audit: { secondOpinion: { ledgers: 0 } } },
    /ledgers is 0: use a whole number from 1/,
  ],
  [
    "second opinions without a pause",
    { audit: { secondOpinion: { ledgers: 10, everyMs: 0 } } },
    /everyMs is 0: use a second to a day/,
  ],
  ["another answer to a gap", { onGap: "ignore" }, /onGap is "ignore": use "stop" or "continue"/],
])("refuses %s", (_, wrong, message) => {
  const define = () => defineConfig({ source, projections: [projection("a")], ...wrong } as never);
  expect(define).toThrow(TypeError);
  expect(define).toThrow(message);
});

test("watches each contract once, whichever projections name it", () => {
  const projections = [
    projection("a", [], [contract("pool"), contract("claims", "latest")]),
    projection("b", [], [contract("pool")]),
  ];
  expect(watchedContracts(defineConfig({ source, projections }))).toEqual([
    { id: scv.contractId("pool"), startLedger: 1 },
    { id: scv.contractId("claims"), startLedger: "latest" },
  ]);
});

test("watches the factory of contracts that are found, which have no id yet", () => {
  const factory = contract("factory", 5);
  const events = { moved: schema };
  const found = defineContract({ id: discoveredBy(factory, "moved", () => ""), events });
  const projections = [
    defineProjection({ name: "a", version: 1, contracts: { found }, tables: {}, on: {} }),
    projection("b", [], [factory]),
  ];
  expect(watchedContracts(defineConfig({ source, projections }))).toEqual([
    { id: scv.contractId("factory"), startLedger: 5 },
  ]);
});

test("refuses two start ledgers for one contract", () => {
  const projections = [
    projection("a", [], [contract("pool", 1)]),
    projection("b", [], [contract("pool", 9)]),
  ];
  expect(() => watchedContracts(defineConfig({ source, projections }))).toThrow(/start ledgers 1 and 9/);
});

test("takes a Redis for the deliveries, and says how to write its url", () => {
  const projections = [projection("a")];
  const placed = (redis: string | undefined) => defineConfig({ source, projections, deliveries: { redis } });
  const nodes = "redis://10.0.0.1:6379,redis://10.0.0.2:6379";
  for (const redis of ["redis://127.0.0.1:6379", "rediss://user:password@redis.internal:6380/2", nodes]) {
    expect(placed(redis).deliveries).toEqual({ redis });
  }
  expect(() => placed(undefined)).toThrow("deliveries.redis is empty");
  for (const wrong of ["127.0.0.1:6379", "http://127.0.0.1", "redis://a,b"]) {
    expect(() => placed(wrong), wrong).toThrow("deliveries.redis is no url");
  }
});

test("serves HTTP only when told, on loopback unless told otherwise", () => {
  const projections = [projection("a")];
  const served = (http: { port: number; host?: string }) => defineConfig({ source, projections, http }).http;
  expect(served({ port: 4_000 })).toEqual({ port: 4_000, host: "127.0.0.1" });
  expect(served({ port: 0, host: "::" })).toEqual({ port: 0, host: "::" });
  for (const port of [-1, 65_536, 1.5, Number.NaN]) {
    expect(() => served({ port }), String(port)).toThrow("http.port is");
  }
});

test("refuses how deliveries are sent and kept where it makes no sense", () => {
  const projections = [projection("a")];
  const define = (more: object) => () => defineConfig({ source, projections, ...more });
  expect(define({ retentionMs: 1_000 })).toThrow("retentionMs is 1000");
  expect(define({ deliver: { timeoutMs: 0 } })).toThrow("deliver.timeoutMs is 0");
  expect(define({ deliver: { maxInFlight: 2.5 } })).toThrow("deliver.maxInFlight is 2.5");
  expect(define({ deliver: { allowNetworks: ["0.0.0.0/0"] } })).toThrow("allowNetworks");
  expect(define({ deliver: { timeoutMs: undefined, allowNetworks: ["10.20.0.0/16"] } })).not.toThrow();
});
