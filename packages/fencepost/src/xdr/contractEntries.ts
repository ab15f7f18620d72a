import type { xdr } from "@stellar/stellar-sdk/base";

/** What runs as a contract: code of a hash, the built-in contract of an asset, or code that another entry names. */
type Executable =
  | { readonly kind: "wasm"; readonly hash: string }
  /** `native` or `CODE:G…`; null where the contract does not say. */
  | { readonly kind: "asset"; readonly asset: string | null }
  /** The key of the entry that holds the hash (CAP-85). */
  | { readonly kind: "reference"; readonly key: string };

/** The ledger entries of contracts: keys to ask for, and what is in the answers, as base64 XDR. Reading throws. */
export interface ContractEntries {
  /** Throws a `TypeError` for a contract id that cannot be. */
  instanceKey(contractId: string): string;
  codeKey(hash: string): string;
  executable(instance: string): Executable;
  referencedHash(entry: string): string;
  code(entry: string): Uint8Array;
}

/** Loads the SDK once and returns what builds and reads ledger entries of contracts. */
export async function loadContractEntries(): Promise<ContractEntries> {
  const { Address, StrKey, xdr } = await import("@stellar/stellar-sdk/base");

  function dataKey(contract: xdr.ScAddress, key: xdr.ScVal): string {
    const durability = xdr.ContractDataDurability.persistent;
    return xdr.LedgerKey.contractData(new xdr.LedgerKeyContractData({ contract, key, durability })).toXdr(
      "base64",
    );
  }

  function dataValue(entry: string): xdr.ScVal {
    const data = xdr.LedgerEntryData.fromXdr(entry, "base64");
    if (data.type !== "contractData") throw new Error(`it is an entry of ${data.type}`);
    return data.value.val;
  }

  return {
    instanceKey(contractId) {
      if (!StrKey.isValidContract(contractId)) {
        throw new TypeError(`${contractId} is no contract id: its check digits are wrong.`);
      }
      return dataKey(new Address(contractId).toScAddress(), xdr.ScVal.scvLedgerKeyContractInstance());
    },
    codeKey: (hash) =>
      xdr.LedgerKey.contractCode(new xdr.LedgerKeyContractCode({ hash: Buffer.from(hash, "hex") })).toXdr(
        "base64",
      ),
    executable(entry) {
      const instance = dataValue(entry);
      if (instance.type !== "scvContractInstance") throw new Error(`it holds ${instance.type}`);
      const { executable, storage } = instance.value;
      switch (executable.type) {
        case "contractExecutableWasm":
          return { kind: "wasm", hash: executable.value.toString() };
        case "contractExecutableStellarAsset":
          return { kind: "asset", asset: assetName(storage ?? []) };
        case "contractExecutableExternalRef": {
          const { executableOwner, tag } = executable.value;
          return { kind: "reference", key: dataKey(executableOwner, xdr.ScVal.scvExecutableTag(tag)) };
        }
      }
    },
    referencedHash(entry) {
      const hash = dataValue(entry);
      if (hash.type !== "scvBytes") throw new Error(`it holds ${hash.type}`);
      return Buffer.from(hash.value.value).toString("hex");
    },
    code(entry) {
      const data = xdr.LedgerEntryData.fromXdr(entry, "base64");
      if (data.type !== "contractCode") throw new Error(`it is an entry of ${data.type}`);
      return data.value.code;
    },
  };
}

/** The name in the metadata that the built-in contract keeps of its asset. */
function assetName(storage: readonly xdr.ScMapEntry[]): string | null {
  const metadata = storage.find(({ key }) => key.type === "scvSymbol" && key.sym.toString() === "METADATA");
  if (metadata?.val.type !== "scvMap") return null;
  const name = metadata.val.value?.find(
    ({ key }) => key.type === "scvSymbol" && key.sym.toString() === "name",
  );
  return name?.val.type === "scvString" ? name.val.str.toString() : null;
}
