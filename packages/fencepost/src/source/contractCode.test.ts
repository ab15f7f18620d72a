import { PUBNET_PASSPHRASE, scv, TESTNET_PASSPHRASE } from "@fencepost/simulator";
import { afterEach, describe, expect, test } from "vitest";
import {
  assetContract,
  type LedgerEntriesNode,
  type NodeContents,
  referringContract,
  startLedgerEntriesNode,
  wasmContract,
} from "../xdr/__tests__/ledgerEntriesNode.ts";
import { wasmModule } from "../xdr/__tests__/specEntries.ts";
import { type ContractCodeRequest, readContractCode, UnknownContractError } from "./contractCode.ts";
import { RpcResponseError, SourceUnavailableError, WrongNetworkError } from "./errors.ts";
import { resolveNetwork } from "./networks.ts";

const id = scv.contractId;
const wasm = wasmModule(["a", Uint8Array.of(1)]);
const code = { kind: "wasm", wasm: Uint8Array.from(wasm), hash: expect.stringMatching(/^[0-9a-f]{64}$/) };
const entries = new Map([
  ...wasmContract(id("pool"), wasm),
  ...referringContract(id("refers"), id("owner"), wasm),
  assetContract(id("usdc"), `USDC:${scv.accountId("issuer")}`),
  assetContract(id("mute"), null),
]);

const nodes: LedgerEntriesNode[] = [];
afterEach(async () => {
  for (const node of nodes.splice(0)) await node.close();
});

async function start(contents: Partial<NodeContents> = {}): Promise<LedgerEntriesNode> {
  const node = await startLedgerEntriesNode({ entries, ...contents });
  nodes.push(node);
  return node;
}

function read(
  contractIds: readonly string[],
  asked: readonly LedgerEntriesNode[],
  more: Partial<ContractCodeRequest> = {},
) {
  return readContractCode({
    contractIds,
    network: resolveNetwork("testnet"),
    urls: asked.map(({ url }) => url),
    signal: new AbortController().signal,
    ...more,
  });
}

test("the code of each contract, in the order asked for, and of an asset its name", async () => {
  const node = await start();
  const all = [id("usdc"), id("pool"), id("mute"), id("refers")];
  expect(await read(all, [node])).toEqual([
    { kind: "asset", asset: `USDC:${scv.accountId("issuer")}` },
    code,
    { kind: "asset", asset: null },
    code,
  ]);
});

test("code that several contracts run is asked for once, and in calls of a bounded size", async () => {
  const many = Array.from({ length: 45 }, (_, i) => i);
  const contents = new Map(
    many.flatMap((i) => wasmContract(id(`c${i}`), wasmModule(["a", Uint8Array.of(i >> 1)]))),
  );
  const node = await start({ entries: contents });
  const codes = await read(
    many.map((i) => id(`c${i}`)),
    [node],
  );
  expect(codes.map((each) => each.kind === "wasm" && each.wasm.at(-1))).toEqual(many.map((i) => i >> 1));
  expect(node.asked).toEqual([45, 20, 3]);
});

test("a contract that the network does not have is named", async () => {
  const node = await start();
  const reading = read([id("pool"), id("nobody")], [node]);
  await expect(reading).rejects.toThrow(UnknownContractError);
  await expect(reading).rejects.toThrow(`The instance of the contract ${id("nobody")} is not on testnet.`);
});

test("a contract whose code, or the reference to it, has been archived is named", async () => {
  const [instance] = wasmContract(id("pool"), wasm);
  const [refers, reference] = referringContract(id("refers"), id("owner"), wasm);
  const node = await start({ entries: new Map([instance!, refers!]) });
  await expect(read([id("pool")], [node])).rejects.toThrow(`The code of the contract ${id("pool")} is not`);
  await expect(read([id("refers")], [node])).rejects.toThrow("The code reference of the contract");
  const known = await start({ entries: new Map([refers!, reference!]) });
  await expect(read([id("refers")], [known])).rejects.toThrow("The code of the contract");
});

test("an id with wrong check digits is refused before anything is asked", async () => {
  const node = await start();
  const wrong = `${id("pool").slice(0, -1)}${id("pool").endsWith("A") ? "B" : "A"}`;
  await expect(read([wrong], [node])).rejects.toThrow(TypeError);
  await expect(read([wrong], [node])).rejects.toThrow(
    `${wrong} is no contract id: its check digits are wrong.`,
  );
  expect(node.asked).toEqual([]);
});

test("a node of another network is refused", async () => {
  const network = { ...resolveNetwork("testnet"), passphrase: PUBNET_PASSPHRASE };
  const reading = read([id("pool")], [await start()], { network });
  await expect(reading).rejects.toThrow(WrongNetworkError);
  await expect(reading).rejects.toThrow(TESTNET_PASSPHRASE);
});

describe("a node that does not answer as it should:", () => {
  const [[poolKey]] = wasmContract(id("pool"), wasm) as [[string, string]];
  const answer = (result: unknown) => ({ result });
  const [, [codeKey]] = wasmContract(id("pool"), wasm) as unknown as [unknown, [string, string]];
  const [, [, otherCode]] = wasmContract(id("pool"), wasmModule()) as unknown as [unknown, [string, string]];
  const [, [, asset]] = [0, assetContract(id("usdc"), null)] as const;

  test.each<[string, NonNullable<NodeContents["instead"]>, unknown, RegExp]>([
    ["HTTP 503", [503], SourceUnavailableError, /HTTP 503/],
    [
      "an error of its own",
      [{ error: { code: -32603, message: "DB is empty" } }],
      RpcResponseError,
      /DB is empty/,
    ],
    ["no entries", [answer({ latestLedger: 5 })], SourceUnavailableError, /no list of entries/],
    [
      "no XDR",
      [answer({ entries: [{ key: poolKey, xdr: "AAAA" }] })],
      SourceUnavailableError,
      /cannot be used/,
    ],
    [
      "an entry of another kind",
      [answer({ entries: [{ key: poolKey, xdr: otherCode }] })],
      SourceUnavailableError,
      /an entry of contractCode/,
    ],
    [
      "code of another hash",
      [
        answer({ entries: [{ key: poolKey, xdr: entries.get(poolKey) }] }),
        answer({ entries: [{ key: codeKey, xdr: otherCode }] }),
      ],
      SourceUnavailableError,
      /it has the hash [0-9a-f]{64}, which was not asked for/,
    ],
    [
      "an entry that nobody asked for",
      [answer({ entries: [null, { key: "AAAA", xdr: asset }] })],
      UnknownContractError,
      /The instance/,
    ],
  ])("%s is a named error, and another node is asked", async (_, instead, kind, message) => {
    const bad = await start({ instead: [...instead, ...instead] });
    const reading = read([id("pool")], [bad]);
    await expect(reading).rejects.toThrow(kind as typeof Error);
    await expect(reading.catch((error: Error) => error.message)).resolves.toMatch(message);
    expect(await read([id("pool")], [bad, await start()])).toEqual([code]);
  });

  test("an abort ends it at once, whatever other nodes there are", async () => {
    const [node, other] = [await start(), await start()];
    const signal = AbortSignal.abort(new Error("enough"));
    await expect(read([id("pool")], [node, other], { signal })).rejects.toThrow("enough");
    expect(other.asked).toEqual([]);
  });
});
