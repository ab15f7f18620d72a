import { gunzipSync } from "node:zlib";
import { PUBNET_PASSPHRASE, scv } from "@fencepost/simulator";
import { Asset } from "@stellar/stellar-sdk/base";
import { describe, expect, test } from "vitest";
import { recordedFile } from "./__tests__/specEntries.ts";
import { assetEvents, cap67Amount } from "./assetEvents.ts";
import { loadDecoder } from "./decode.ts";
import { textOf } from "./eventReader.ts";
import type { ScValue } from "./scValue.ts";

const decoder = await loadDecoder();
const issuer = scv.accountId("issuer");
const alice = scv.accountId("alice");
const pool = "LA7QYNF7SOWQ3GLR2BGMZEHXAVIRZA4KVWLTJJFC7MGXUA74P7UJUPJN";
const balance = "BAAD6DBUX6J22DMZOHIEZTEQ64CVCHEDRKWZONFEUL5Q26QD7R76RGR4TU";
const muxed = "MA7QYNF7SOWQ3GLR2BGMZEHXAVIRZA4KVWLTJJFC7MGXUA74P7UJVAAAAAAAAAAAAAJLK";
const asset = `USDC:${issuer}`;

type AssetEvent = keyof typeof assetEvents;

const read = (name: AssetEvent, topics: readonly string[], value: string) =>
  assetEvents[name].read({
    topics: [scv.sym(name), ...topics].map((topic) => decoder.decode(topic)),
    value: decoder.decode(value),
  });

describe("the data of CAP-67", () => {
  test.each<[string, string, ReturnType<typeof cap67Amount>]>([
    ["a number alone", scv.i128(-5n), { amount: -5n, to_muxed_id: null }],
    [
      "the id of a muxed account",
      scv.struct({ amount: scv.i128(5n), to_muxed_id: scv.u64(2n ** 64n - 1n) }),
      { amount: 5n, to_muxed_id: 2n ** 64n - 1n },
    ],
    [
      "a text as memo",
      scv.struct({ amount: scv.i128(5n), to_muxed_id: scv.str("invoice 7") }),
      { amount: 5n, to_muxed_id: "invoice 7" },
    ],
    [
      "a memo that is no text",
      scv.struct({ amount: scv.i128(5n), to_muxed_id: scv.str(Uint8Array.of(0xff)) }),
      { amount: 5n, to_muxed_id: Uint8Array.of(0xff) },
    ],
    [
      "a hash as memo",
      scv.struct({ amount: scv.i128(5n), to_muxed_id: scv.bytes(new Uint8Array(32)) }),
      { amount: 5n, to_muxed_id: new Uint8Array(32) },
    ],
  ])("may be %s", (_, value, expected) => {
    expect(cap67Amount(decoder.decode(value))).toEqual(expected);
  });

  test.each<[string, string]>([
    ["another number", scv.u128(5n)],
    ["a map without an id", scv.struct({ amount: scv.i128(5n) })],
    ["a map with more", scv.struct({ amount: scv.i128(5n), to_muxed_id: scv.u64(1n), more: scv.u32(1) })],
    ["an amount of another width", scv.struct({ amount: scv.i64(5n), to_muxed_id: scv.u64(1n) })],
    ["an id of another type", scv.struct({ amount: scv.i128(5n), to_muxed_id: scv.u32(1) })],
    ["a list", scv.vec([scv.i128(5n)])],
  ])("is not %s", (_, value) => {
    expect(cap67Amount(decoder.decode(value))).toBe(null);
  });
});

test.each<[AssetEvent, readonly string[], string, object]>([
  [
    "transfer",
    [scv.address(alice), scv.address(pool), scv.str(asset)],
    scv.i128(5n),
    { from: alice, to: pool, asset, amount: 5n, to_muxed_id: null },
  ],
  [
    "transfer",
    [scv.address(balance), scv.address(muxed), scv.str("native")],
    scv.struct({ amount: scv.i128(5n), to_muxed_id: scv.u64(7n) }),
    { from: balance, to: muxed, asset: "native", amount: 5n, to_muxed_id: 7n },
  ],
  [
    "mint",
    [scv.address(alice), scv.str(asset)],
    scv.struct({ amount: scv.i128(5n), to_muxed_id: scv.u64(7n) }),
    { to: alice, asset, amount: 5n, to_muxed_id: 7n },
  ],
  ["burn", [scv.address(alice), scv.str(asset)], scv.i128(5n), { from: alice, asset, amount: 5n }],
  ["clawback", [scv.address(alice), scv.str(asset)], scv.i128(5n), { from: alice, asset, amount: 5n }],
  [
    "approve",
    [scv.address(alice), scv.address(pool), scv.str(asset)],
    scv.vec([scv.i128(5n), scv.u32(900)]),
    { from: alice, spender: pool, asset, amount: 5n, live_until_ledger: 900 },
  ],
  [
    "set_authorized",
    [scv.address(alice), scv.str(asset)],
    scv.bool(false),
    { id: alice, asset, authorized: false },
  ],
  [
    "set_admin",
    [scv.address(issuer), scv.str(asset)],
    scv.address(alice),
    { admin: issuer, asset, new_admin: alice },
  ],
  ["fee", [scv.address(alice)], scv.i128(-100n), { from: alice, amount: -100n }],
])("a %s reads with its addresses, its asset and its value", (name, topics, value, data) => {
  expect(read(name, topics, value)).toEqual({ data });
});

test.each<[string, AssetEvent, readonly string[], string, RegExp]>([
  [
    "a burn with the admin of before protocol 23",
    "clawback",
    [scv.address(issuer), scv.address(alice), scv.str(asset)],
    scv.i128(5n),
    /has 4 topics instead of 3/,
  ],
  [
    "a transfer without its asset",
    "transfer",
    [scv.address(alice), scv.address(pool)],
    scv.i128(5n),
    /3 topics/,
  ],
  [
    "a topic that is no address",
    "burn",
    [scv.str("alice"), scv.str(asset)],
    scv.i128(5n),
    /topic 2 \(from\)/,
  ],
  ["an asset that is no text", "burn", [scv.address(alice), scv.u32(1)], scv.i128(5n), /topic 3 is no asset/],
  [
    "a burn with a muxed id",
    "burn",
    [scv.address(alice), scv.str(asset)],
    scv.struct({ amount: scv.i128(5n), to_muxed_id: scv.u64(1n) }),
    /a map that/,
  ],
  [
    "an authorization that is a number",
    "set_authorized",
    [scv.address(alice), scv.str(asset)],
    scv.u32(1),
    /u32/,
  ],
  [
    "an approval with more",
    "approve",
    [scv.address(alice), scv.address(pool), scv.str(asset)],
    scv.vec([scv.i128(5n), scv.u32(1), scv.u32(2)]),
    /vec/,
  ],
  [
    "a fee with an asset",
    "fee",
    [scv.address(alice), scv.str("native")],
    scv.i128(5n),
    /3 topics instead of 2/,
  ],
])("%s is a misfit that says why", (_, name, topics, value, why) => {
  expect(read(name, topics, value)).toEqual({ misfit: expect.stringMatching(why) });
});

describe.each(["63092988", "63092990"])("the recorded ledger %s of mainnet", (ledger) => {
  interface Row {
    readonly contractId: string;
    readonly topic: readonly string[];
    readonly value: string;
  }
  const file = recordedFile(`getEvents-${ledger}.json.gz`);

  test.skipIf(!file)("has no event of an asset's contract that does not read", () => {
    const { events } = JSON.parse(gunzipSync(file ?? "").toString("utf8")) as { events: Row[] };
    const counts: Record<string, number> = {};
    for (const row of events) {
      const event = {
        topics: row.topic.map((topic) => decoder.decode(topic)),
        value: decoder.decode(row.value),
      };
      const name = textOf(event.topics[0]) as AssetEvent;
      const named = name === "fee" ? "native" : assetNamed(event.topics.at(-1));
      // Others may emit what looks alike: only the contract of the asset itself is believed.
      if (!Object.hasOwn(assetEvents, name) || named === null || contractOf(named) !== row.contractId)
        continue;
      expect(assetEvents[name].read(event), JSON.stringify(row)).toEqual({ data: expect.any(Object) });
      counts[name] = (counts[name] ?? 0) + 1;
    }
    expect(counts).toMatchObject({ fee: expect.any(Number), transfer: expect.any(Number) });
    expect(Object.values(counts).reduce((sum, count) => sum + count)).toBeGreaterThan(400);
  });

  function assetNamed(topic: ScValue | undefined): string | null {
    return topic?.type === "string" && /^native$|^\w{1,12}:G[A-Z2-7]{55}$/.test(String(topic.value))
      ? String(topic.value)
      : null;
  }

  function contractOf(name: string): string {
    const [code = "", by] = name.split(":");
    return (by === undefined ? Asset.native() : new Asset(code, by)).contractId(PUBNET_PASSPHRASE);
  }
});
