import { type EventReader, textOf } from "./eventReader.ts";
import type { DecodedEvent, ScValue } from "./scValue.ts";

/** The data of a transfer or a mint of CAP-67. */
export interface Cap67Amount {
  readonly amount: bigint;
  /**
   * What tells the holders of one address apart: the id of a muxed account, or the memo of a payment, which is a
   * number, a text (bytes where it is not UTF-8) or a hash. null where there is none.
   */
  readonly to_muxed_id: bigint | string | Uint8Array | null;
}

/**
 * Reads data that is an i128, or a map of `amount` and `to_muxed_id`, as CAP-67 has it for transfers and mints of
 * every token that follows it. null for data of any other form.
 */
export function cap67Amount(value: ScValue): Cap67Amount | null {
  if (value.type === "i128") return { amount: value.value, to_muxed_id: null };
  if (value.type !== "map" || value.value.length !== 2) return null;
  const entry = (name: string): ScValue | undefined =>
    value.value.find(([key]) => key.type === "symbol" && key.value === name)?.[1];
  const amount = entry("amount");
  const id = entry("to_muxed_id");
  const identifies = id?.type === "u64" || id?.type === "string" || id?.type === "bytes";
  if (amount?.type !== "i128" || !identifies) return null;
  return { amount: amount.value, to_muxed_id: id.value };
}

/** `native`, or the code and issuer of a classic asset: `USDC:G…` (SEP-11). */
interface OfAsset {
  readonly asset: string;
}

/** Addresses of classic operations may be accounts (G), contracts (C), claimable balances (B) and pools (L). */
export interface AssetTransfer extends Cap67Amount, OfAsset {
  readonly from: string;
  readonly to: string;
}
export interface AssetMint extends Cap67Amount, OfAsset {
  readonly to: string;
}
export interface AssetBurn extends OfAsset {
  readonly from: string;
  readonly amount: bigint;
}
export interface AssetAuthorization extends OfAsset {
  readonly id: string;
  readonly authorized: boolean;
}
export interface AssetApproval extends OfAsset {
  readonly from: string;
  readonly spender: string;
  readonly amount: bigint;
  readonly live_until_ledger: number;
}
export interface AssetAdmin extends OfAsset {
  readonly admin: string;
  readonly new_admin: string;
}
/** Of the native asset only. Negative where a part of the fee is given back. */
export interface AssetFee {
  readonly from: string;
  readonly amount: bigint;
}

/**
 * What the built-in contract of a Stellar asset emits since protocol 23 (CAP-67), also for classic operations: a
 * contract without code, and so without specs.
 *
 * @example
 * export const usdc = defineContract({ id: "C…", startLedger: "latest", events: assetEvents });
 */
export const assetEvents = {
  transfer: assetEvent<AssetTransfer>(["from", "to"], cap67Amount),
  mint: assetEvent<AssetMint>(["to"], cap67Amount),
  burn: assetEvent<AssetBurn>(["from"], amountOf),
  clawback: assetEvent<AssetBurn>(["from"], amountOf),
  approve: assetEvent<AssetApproval>(["from", "spender"], (value) => {
    const [amount, live, ...more] = value.type === "vec" ? value.value : [];
    if (amount?.type !== "i128" || live?.type !== "u32" || more.length > 0) return null;
    return { amount: amount.value, live_until_ledger: live.value };
  }),
  set_authorized: assetEvent<AssetAuthorization>(["id"], (value) =>
    value.type === "bool" ? { authorized: value.value } : null,
  ),
  set_admin: assetEvent<AssetAdmin>(["admin"], (value) =>
    value.type === "address" ? { new_admin: value.value } : null,
  ),
  fee: {
    read: (event) => readParts<AssetFee>(event, ["from"], false, amountOf),
  },
} satisfies { readonly [name: string]: EventReader<unknown> };

function assetEvent<Data extends OfAsset>(
  addresses: readonly (keyof Data & string)[],
  readValue: (value: ScValue) => object | null,
): EventReader<Data> {
  return { read: (event) => readParts<Data>(event, addresses, true, readValue) };
}

/** The name, an address for each of these, the asset where it is named, and the value. */
function readParts<Data>(
  { topics, value }: DecodedEvent,
  addresses: readonly string[],
  namesAsset: boolean,
  readValue: (value: ScValue) => object | null,
): { readonly data: Data } | { readonly misfit: string } {
  const wanted = 1 + addresses.length + (namesAsset ? 1 : 0);
  if (topics.length !== wanted) return { misfit: `has ${topics.length} topics instead of ${wanted}` };
  const fields: { [name: string]: string } = {};
  for (const [i, name] of addresses.entries()) {
    const topic = topics[i + 1];
    if (topic?.type !== "address") return { misfit: `topic ${i + 2} (${name}) is no address` };
    fields[name] = topic.value;
  }
  const asset = namesAsset ? textOf(topics.at(-1)) : "";
  if (asset === null) return { misfit: `topic ${wanted} is no asset` };
  const data = readValue(value);
  if (!data) return { misfit: `its value is a ${value.type} that the event cannot have` };
  // The fields are those of the interface that the table above names for the event.
  return { data: { ...fields, ...data, ...(namesAsset && { asset }) } as Data };
}

function amountOf(value: ScValue): { readonly amount: bigint } | null {
  return value.type === "i128" ? { amount: value.value } : null;
}
