import { createHash } from "node:crypto";
import { type ContractEntries, loadContractEntries } from "../xdr/contractEntries.ts";
import { SourceUnavailableError, WrongNetworkError } from "./errors.ts";
import { callJsonRpc, originOf } from "./jsonRpc.ts";
import type { Network } from "./networks.ts";

/** What runs as a contract. */
export type ContractCode =
  | { readonly kind: "wasm"; readonly hash: string; readonly wasm: Uint8Array }
  /** The built-in contract of an asset, `native` or `CODE:G…`; null where it does not say which. */
  | { readonly kind: "asset"; readonly asset: string | null };

/** The network has no such contract, or none that is live: the entry of an archived one is not served. */
export class UnknownContractError extends Error {
  override readonly name = "UnknownContractError";
  readonly contractId: string;

  constructor(contractId: string, what: string, network: string) {
    super(
      `${what} of the contract ${contractId} is not on ${network}. Check the id and the network; if it has been ` +
        "archived, it must be restored first, or its wasm file given instead.",
    );
    this.contractId = contractId;
  }
}

export interface ContractCodeRequest {
  readonly contractIds: readonly string[];
  readonly network: Network;
  /** Nodes of the network: the next one is asked where one cannot give all of the answer. At least one. */
  readonly urls: readonly string[];
  readonly signal: AbortSignal;
}

/** Entries one `getLedgerEntries` call asks for: a node allows 200, and code has up to 128 KiB. */
const KEYS_PER_CALL = 200;
const CODES_PER_CALL = 20;
/** Total time for one call, in milliseconds. */
const TIMEOUT_MS = 15_000;

/**
 * The code of each contract, in the order asked for, as the ledger has it now. Throws {@link UnknownContractError},
 * `SourceUnavailableError`, `WrongNetworkError`, and a `TypeError` for what is no contract id.
 */
export async function readContractCode(request: ContractCodeRequest): Promise<readonly ContractCode[]> {
  const entries = await loadContractEntries();
  const keys = request.contractIds.map((id) => entries.instanceKey(id));
  let failure: unknown;
  for (const url of request.urls) {
    try {
      return await readFrom(url, keys, entries, request);
    } catch (error) {
      request.signal.throwIfAborted();
      failure = error;
    }
  }
  throw failure;
}

async function readFrom(
  url: string,
  instanceKeys: readonly string[],
  entries: ContractEntries,
  { contractIds, network, signal }: ContractCodeRequest,
): Promise<readonly ContractCode[]> {
  const call: Call = (method, params) =>
    callJsonRpc({ url, method, timeoutMs: TIMEOUT_MS, signal, ...(params && { params }) });
  const { passphrase } = (await call("getNetwork")) as { passphrase?: unknown };
  if (passphrase !== network.passphrase) {
    throw new WrongNetworkError(originOf(url), network.passphrase, String(passphrase));
  }

  const instances = await readEntries(call, instanceKeys, KEYS_PER_CALL, (entry) =>
    entries.executable(entry),
  );
  const executables = instanceKeys.map((key, i) => instances.get(key) ?? unknown(i, "The instance"));

  const references = executables.flatMap((found) => (found.kind === "reference" ? [found.key] : []));
  const referenced = await readEntries(call, references, KEYS_PER_CALL, (entry) =>
    entries.referencedHash(entry),
  );
  const hashes = executables.map((found, i) => {
    if (found.kind === "reference") return referenced.get(found.key) ?? unknown(i, "The code reference");
    return found.kind === "wasm" ? found.hash : null;
  });

  const codeKeys = hashes.flatMap((hash) => (hash === null ? [] : [entries.codeKey(hash)]));
  const codes = await readEntries(call, codeKeys, CODES_PER_CALL, (entry, key) =>
    codeOf(entries, entry, key),
  );
  return executables.map((found, i): ContractCode => {
    const hash = hashes[i] ?? "";
    if (found.kind === "asset") return found;
    return { kind: "wasm", hash, wasm: codes.get(entries.codeKey(hash)) ?? unknown(i, "The code") };
  });

  function unknown(i: number, what: string): never {
    throw new UnknownContractError(contractIds[i] ?? "", what, network.chain.stream);
  }
}

type Call = (method: string, params?: object) => Promise<unknown>;

/** The code in an entry, if it has the hash that was asked for. */
function codeOf(entries: ContractEntries, entry: string, key: string): Uint8Array {
  const code = entries.code(entry);
  const hash = createHash("sha256").update(code).digest("hex");
  if (entries.codeKey(hash) !== key) throw new Error(`it has the hash ${hash}, which was not asked for`);
  return code;
}

/** Asks for the entries of these keys, and reads those that there are. */
async function readEntries<T>(
  call: Call,
  keys: readonly string[],
  keysPerCall: number,
  read: (entry: string, key: string) => T,
): Promise<ReadonlyMap<string, T>> {
  const wanted = [...new Set(keys)];
  const found = new Map<string, T>();
  for (let i = 0; i < wanted.length; i += keysPerCall) {
    const some = wanted.slice(i, i + keysPerCall);
    const answer = (await call("getLedgerEntries", { keys: some })) as { entries?: unknown };
    if (!Array.isArray(answer.entries)) throw new SourceUnavailableError("The node gave no list of entries.");
    for (const entry of answer.entries as ({ key?: unknown; xdr?: unknown } | null)[]) {
      const key = some.find((each) => each === entry?.key);
      if (key === undefined) continue;
      try {
        found.set(key, read(String(entry?.xdr), key));
      } catch (error) {
        const why = (error as Error).message.slice(0, 200);
        throw new SourceUnavailableError(`The node gave a ledger entry that cannot be used: ${why}.`, {
          cause: error,
        });
      }
    }
  }
  return found;
}
