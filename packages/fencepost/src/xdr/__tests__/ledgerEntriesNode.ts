// A Stellar RPC node that has ledger entries of contracts: real HTTP, entries encoded by the Stellar SDK.
import { createHash } from "node:crypto";
import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { TESTNET_PASSPHRASE } from "@fencepost/simulator";
import { Address, xdr } from "@stellar/stellar-sdk/base";

export interface LedgerEntriesNode {
  readonly url: string;
  /** The number of keys in each `getLedgerEntries` call so far. */
  readonly asked: readonly number[];
  close(): Promise<void>;
}

export interface NodeContents {
  readonly entries: ReadonlyMap<string, string>;
  /** Answers the next calls of `getLedgerEntries` in place of the node: a JSON-RPC answer, or an HTTP status. */
  readonly instead?: (({ readonly result: unknown } | { readonly error: object }) | number)[];
}

/** Starts a node of testnet on a free port of the loopback interface. */
export async function startLedgerEntriesNode({
  entries,
  instead = [],
}: NodeContents): Promise<LedgerEntriesNode> {
  const asked: number[] = [];

  function answer(method: string, params: { readonly keys: readonly string[] }): object | number {
    if (method === "getNetwork") return { result: { passphrase: TESTNET_PASSPHRASE } };
    if (method !== "getLedgerEntries")
      return { error: { code: -32601, message: `no such method "${method}"` } };
    asked.push(params.keys.length);
    const other = instead.shift();
    if (other !== undefined) return other;
    const found = params.keys.flatMap((key) => {
      const xdr = entries.get(key);
      return xdr === undefined ? [] : [{ key, xdr, lastModifiedLedgerSeq: 7 }];
    });
    return { result: { entries: found, latestLedger: 9 } };
  }

  const server = createServer((request, response) => {
    readJson(request).then(
      ({ id, method, params }) => {
        const content = answer(method, params);
        if (typeof content === "number") response.writeHead(content).end();
        else response.end(JSON.stringify({ jsonrpc: "2.0", id, ...content }));
      },
      (error: Error) => response.writeHead(500).end(error.message),
    );
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    asked,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

async function readJson(request: IncomingMessage) {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return JSON.parse(Buffer.concat(chunks).toString("utf8")) as {
    id: unknown;
    method: string;
    params: { keys: readonly string[] };
  };
}

export type Entry = readonly [key: string, xdr: string];

/** The entries of a contract that runs this code. */
export function wasmContract(contractId: string, wasm: Uint8Array): readonly Entry[] {
  const hash = createHash("sha256").update(wasm).digest();
  return [instance(contractId, xdr.ContractExecutable.contractExecutableWasm(hash)), codeEntry(wasm)];
}

/** The entry of the built-in contract of an asset, with the metadata that it keeps. */
export function assetContract(contractId: string, asset: string | null): Entry {
  const text = (value: string) => xdr.ScVal.scvString(value);
  const field = (name: string, val: xdr.ScVal) => new xdr.ScMapEntry({ key: xdr.ScVal.scvSymbol(name), val });
  const metadata = xdr.ScVal.scvMap([
    field("decimal", xdr.ScVal.scvU32(7)),
    field("name", text(asset ?? "")),
    field("symbol", text(asset?.split(":")[0] ?? "")),
  ]);
  return instance(
    contractId,
    xdr.ContractExecutable.contractExecutableStellarAsset(),
    asset === null ? null : [field("METADATA", metadata)],
  );
}

/** The entries of a contract whose code is named by an entry of another contract (CAP-85). */
export function referringContract(contractId: string, owner: string, wasm: Uint8Array): readonly Entry[] {
  const executableOwner = new Address(owner).toScAddress();
  const tag = "pool v1";
  const reference = new xdr.ContractExecutableExternalRef({ executableOwner, tag });
  const hash = createHash("sha256").update(wasm).digest();
  return [
    instance(contractId, xdr.ContractExecutable.contractExecutableExternalRef(reference)),
    dataEntry(executableOwner, xdr.ScVal.scvExecutableTag(tag), xdr.ScVal.scvBytes(hash)),
    codeEntry(wasm),
  ];
}

function instance(
  contractId: string,
  executable: xdr.ContractExecutable,
  storage: xdr.ScMapEntry[] | null = null,
): Entry {
  const value = xdr.ScVal.scvContractInstance(new xdr.ScContractInstance({ executable, storage }));
  return dataEntry(new Address(contractId).toScAddress(), xdr.ScVal.scvLedgerKeyContractInstance(), value);
}

function dataEntry(contract: xdr.ScAddress, key: xdr.ScVal, val: xdr.ScVal): Entry {
  const durability = xdr.ContractDataDurability.persistent;
  const ext = xdr.ExtensionPoint.v0();
  return [
    xdr.LedgerKey.contractData(new xdr.LedgerKeyContractData({ contract, key, durability })).toXdr("base64"),
    xdr.LedgerEntryData.contractData(
      new xdr.ContractDataEntry({ ext, contract, key, durability, val }),
    ).toXdr("base64"),
  ];
}

function codeEntry(wasm: Uint8Array): Entry {
  const hash = createHash("sha256").update(wasm).digest();
  const ext = xdr.ContractCodeEntryExt.v0();
  return [
    xdr.LedgerKey.contractCode(new xdr.LedgerKeyContractCode({ hash })).toXdr("base64"),
    xdr.LedgerEntryData.contractCode(new xdr.ContractCodeEntry({ ext, hash, code: wasm })).toXdr("base64"),
  ];
}
