import { describe, expect, test } from "vitest";
import { LakeConfigError } from "./errors.ts";
import { batchOf, checkLayout, EXTENSIONS, keyOf, parseConfig, partitionOf, startOfName } from "./layout.ts";

const examples = { ledgersPerBatch: 2, batchesPerPartition: 8 };
const publicLake = { ledgersPerBatch: 1, batchesPerPartition: 64_000 };

test.each([
  [2, examples, "FFFFFFFF--0-15/FFFFFFFD--2-3"],
  [15, examples, "FFFFFFFF--0-15/FFFFFFF1--14-15"],
  [19, examples, "FFFFFFEF--16-31/FFFFFFED--18-19"],
  [2, { ledgersPerBatch: 1, batchesPerPartition: 1 }, "FFFFFFFD--2"],
  [53_312_000, publicLake, "FCD285FF--53312000-53375999/FCD285FF--53312000"],
  [70, { ledgersPerBatch: 64, batchesPerPartition: 1 }, "FFFFFFBF--64-127"],
])("ledger %i of a lake with %j is in the object %s", (ledger, layout, key) => {
  expect(keyOf(ledger, layout)).toBe(key);
});

test("a name in a listing tells its first ledger, and any other name is none", () => {
  const batch = (name: string) => startOfName(name, (ledger) => batchOf(ledger, examples), EXTENSIONS);
  expect(batch("FFFFFFFD--2-3.xdr.zst")).toBe(2);
  expect(batch("FFFFFFFD--2-3.xdr.zstd")).toBe(2);
  for (const other of [
    ".config.json",
    "FFFFFFFD--2-3.xdr.zst.tmp",
    "FFFFFFFD--2.xdr.zst",
    "FFFFFFFC--3-4.xdr.zst",
    "FFFFFFFE--2-3.xdr.zst",
    "fffffffd--2-3.xdr.zst",
    "00000000--99999999999-0.xdr.zst",
    "",
  ]) {
    expect(batch(other)).toBeNull();
  }
  const partition = (name: string) => startOfName(name, (ledger) => partitionOf(ledger, examples), [""]);
  expect(partition("FFFFFFEF--16-31")).toBe(16);
  expect(partition("FFFFFFEF--16-32")).toBeNull();
});

describe("the config of a lake", () => {
  const config = { networkPassphrase: "N", version: "1.0", compression: "zstd", ...examples };

  test("tells its network and its layout", () => {
    expect(parseConfig(JSON.stringify(config), "x")).toEqual({ passphrase: "N", layout: examples });
  });

  test("may be of a draft of the standard: without a version, and with the path of its ledgers", () => {
    const draft = { ...config, version: undefined, ledgersPath: "/stellar/pubnet/ledgers" };
    for (const where of ["s3://bucket/stellar/pubnet/ledgers", "/mnt/stellar/pubnet/ledgers/"]) {
      expect(parseConfig(JSON.stringify(draft), where).layout).toEqual(examples);
    }
    const newer = { ...config, version: "1.1", ledgersPath: "/", more: true };
    expect(parseConfig(JSON.stringify(newer), "s3://bucket/").layout).toEqual(examples);
  });

  test.each<[string, object | string, RegExp]>([
    ["no JSON", "<html>", /not JSON/],
    ["no object", "null", /names no networkPassphrase/],
    ["no passphrase", { ...config, networkPassphrase: undefined }, /names no networkPassphrase/],
    ["another compression", { ...config, compression: "lz4" }, /compression is "lz4"/],
    ["a later version", { ...config, version: "2.0" }, /version is "2.0", not "1.0"/],
    ["a version that is no text", { ...config, version: 1 }, /version is 1, not "1.0"/],
    ["an empty version", { ...config, version: "" }, /version is "", not "1.0"/],
    [
      "ledgers elsewhere",
      { ...config, ledgersPath: "/pubnet/ledgers" },
      /ledgers are in "\/pubnet\/ledgers": give that folder/,
    ],
    [
      "ledgers in a folder whose name ends like this one's",
      { ...config, ledgersPath: "ake" },
      /ledgers are in "ake"/,
    ],
    ["a path that is none", { ...config, ledgersPath: 7 }, /ledgersPath is 7/],
    ["no batch size", { ...config, ledgersPerBatch: undefined }, /ledgersPerBatch is undefined/],
    ["a batch of nothing", { ...config, ledgersPerBatch: 0 }, /ledgersPerBatch is 0/],
    ["half a batch", { ...config, batchesPerPartition: 1.5 }, /batchesPerPartition is 1.5/],
    ["a text as size", { ...config, batchesPerPartition: "8" }, /batchesPerPartition is "8"/],
  ])("with %s is refused by name", (_, content, reason) => {
    const text = typeof content === "string" ? content : JSON.stringify(content);
    expect(() => parseConfig(text, "s3://b/lake")).toThrow(LakeConfigError);
    expect(() => parseConfig(text, "s3://b/lake")).toThrow(reason);
  });

  test("given by hand is checked in the same way", () => {
    expect(checkLayout(examples, "x")).toEqual(examples);
    expect(() => checkLayout({ ledgersPerBatch: 1, batchesPerPartition: -1 }, "x")).toThrow(LakeConfigError);
  });
});
