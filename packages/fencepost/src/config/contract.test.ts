import { scv } from "@fencepost/simulator";
import { expect, test } from "vitest";
import { z } from "zod";
import { rawEvent } from "../xdr/eventReader.ts";
import { type ContractInput, defineContract, discoveredBy, type EventShapes } from "./contract.ts";

const ID = scv.contractId("pool");
const events = { locked: z.object({ amount: z.bigint() }) };

test("keeps id, start ledger and events, and nothing else", () => {
  const input = { id: ID, startLedger: 7, events, note: "for people" };
  expect(defineContract(input)).toEqual({ kind: "contract", id: ID, startLedger: 7, events });
});

test.each([1, 2_147_483_647, "latest", "oldest"] as const)("may start at %s", (startLedger) => {
  expect(defineContract({ id: ID, startLedger, events }).startLedger).toBe(startLedger);
});

test("takes a schema alone, or with names for topics and value", () => {
  const shape = { topics: ["from", "to"], value: "amount", schema: z.object({ amount: z.bigint() }) };
  expect(defineContract({ id: ID, startLedger: 1, events: { transfer: shape } }).events.transfer).toBe(shape);
});

test("takes an event that is read by a function of its own", () => {
  const swap = rawEvent();
  expect(defineContract({ id: ID, startLedger: 1, events: { "pool:swap": swap } }).events["pool:swap"]).toBe(
    swap,
  );
});

test("a contract may be declared again from another, with more events or another start", () => {
  const pool = defineContract({ id: ID, startLedger: 1, events });
  const more = defineContract({ ...pool, startLedger: 9, events: { ...pool.events, swap: rawEvent() } });
  expect(more).toMatchObject({ id: ID, startLedger: 9 });
  expect(Object.keys(more.events)).toEqual(["locked", "swap"]);
});

const schema = z.object({});
test.each<[string, Partial<Record<keyof ContractInput<EventShapes>, unknown>>, RegExp]>([
  ["an id that is no contract", { id: scv.accountId("alice") }, /contract id is C and 55 .*"G/],
  ["an id of the wrong length", { id: ID.slice(1) }, /contract id/],
  ["a missing id", { id: undefined }, /contract id .* undefined/],
  ["ledger 0", { startLedger: 0 }, /startLedger of C\S+ is 0: use a ledger number, "latest" or "oldest"/],
  ["a ledger beyond 31 bits", { startLedger: 2_147_483_648 }, /is 2147483648/],
  ["half a ledger", { startLedger: 1.5 }, /is 1.5/],
  ["another word", { startLedger: "newest" }, /is "newest"/],
  ["no events", { events: {} }, /declares no events/],
  ["missing events", { events: undefined }, /declares no events/],
  ["an event without a schema", { events: { locked: {} } }, /Event "locked" of C\S+ has no schema/],
  ["a reader that is no function", { events: { locked: { read: "it" } } }, /has no schema/],
  [
    "one name for two parts of an event",
    { events: { moved: { topics: ["who", "who"], schema } } },
    /two of who, who/,
  ],
  [
    "the name of a topic for the value",
    { events: { moved: { topics: ["who"], value: "who", schema } } },
    /two of who, who/,
  ],
])("refuses %s", (_, wrong, message) => {
  const define = () => defineContract({ id: ID, startLedger: 1, events, ...wrong } as never);
  expect(define).toThrow(TypeError);
  expect(define).toThrow(message);
});

const factory = defineContract({
  id: ID,
  startLedger: 1,
  events: { made: z.object({ pool: z.string(), pair: z.object({ share: z.string() }) }) },
});

test("a contract that is found is known by its factory, the event and the field, however the code names it", () => {
  const contract = defineContract({ id: discoveredBy(factory, "made", (e) => e.pool), events });
  expect(contract).toMatchObject({ kind: "contract", id: { rule: `${ID}/made/pool`, event: "made" } });
  expect(contract).not.toHaveProperty("startLedger");
  expect(discoveredBy(factory, "made", ({ pool }) => pool).rule).toBe(`${ID}/made/pool`);
  expect(discoveredBy(factory, "made", (e) => e.pair.share).rule).toBe(`${ID}/made/pair.share`);
});

test("what picks more than a field is known by its text", () => {
  const chosen = () => discoveredBy(factory, "made", (e) => (e.pool === "none" ? null : e.pool)).rule;
  const trimmed = discoveredBy(factory, "made", (e) => e.pool.trim()).rule;
  expect(chosen()).toMatch(/\/made\/[0-9a-f]{16}$/);
  expect(chosen()).toBe(chosen());
  expect(trimmed).toMatch(/\/made\/[0-9a-f]{16}$/);
  expect(trimmed).not.toBe(chosen());
});

test("a factory needs an id of its own, and declares the event", () => {
  const found = defineContract({ id: discoveredBy(factory, "made", (e) => e.pool), events });
  // biome-ignore lint/suspicious/noExplicitAny: what JavaScript may pass
  const unchecked = discoveredBy as (factory: any, event: string, pick: () => string) => unknown;
  expect(() => unchecked(found, "locked", () => ID)).toThrow(/a factory with an id of its own/);
  expect(() => unchecked(factory, "unmade", () => ID)).toThrow(/declares no event "unmade"/);
  expect(() => defineContract({ ...found, startLedger: 5 } as never)).toThrow(/leave startLedger out/);
});
