import { createHash, randomUUID } from "node:crypto";
import { open, readFile, rename, rm, writeFile } from "node:fs/promises";
import { basename } from "node:path";
import { isContractId, isStartLedger } from "../config/contract.ts";
import { readContractCode } from "../source/contractCode.ts";
import { type NetworkOption, resolveNetwork } from "../source/networks.ts";
import { readContractMeta, readContractSpec } from "../xdr/spec.ts";
import { customSection, InvalidWasmError } from "../xdr/wasm.ts";
import { type ContractToWrite, contractsSource, FIRST_LINE, IMPORTS } from "./contractsSource.ts";
import { constantName, isConstantName, nameGiver } from "./names.ts";
import { type LeftOutEvent, readableEvents } from "./readableEvents.ts";

export interface CodegenOptions {
  /** `C…`, or `name=C…`, each with `@ledger`, `@latest` or `@oldest` behind it where it is not to start at the latest. */
  readonly contracts?: readonly string[];
  /** Paths of wasm files, or `name=path`: only the events are written, for contracts that the code is not yet one of. */
  readonly wasmFiles?: readonly string[];
  /** Events that are written in their raw form, by their names, for contracts whose code has no event specs. */
  readonly rawEvents?: readonly string[];
  /** Where to write; nothing is written where it is left out. */
  readonly out?: string;
  /** Where the contracts are; needed for `contracts`. */
  readonly network?: NetworkOption;
  /** One url of a Stellar RPC node, or several (a list, or one text with commas): the next is asked when one fails. */
  readonly urls?: string | readonly string[] | undefined;
  readonly signal?: AbortSignal;
}

export interface CodegenResult {
  /** The whole file. The same code on the chain gives the same text. */
  readonly source: string;
  /** Whether the file was written: not, where it was as it should be. */
  readonly written: boolean;
  /** Events that no handler can be given, with the reason: the rest of a sentence. */
  readonly leftOut: readonly (LeftOutEvent & { readonly contract: string })[];
}

/** The code describes no event that a handler could be given: it is older than event specs, or has none. */
export class NoEventSpecsError extends Error {
  override readonly name = "NoEventSpecsError";

  constructor(contract: string, sdkVersion: string | undefined, leftOut: readonly LeftOutEvent[]) {
    const built =
      sdkVersion === undefined ? "" : ` It was built with version ${sdkVersion.slice(0, 40)} of the SDK.`;
    const first = leftOut[0] ? ` ${leftOut[0].event} ${leftOut[0].why}.` : "";
    super(
      `The code of ${contract} has no event specs that can be used (SEP-48; the Rust SDK writes them since version ` +
        `23).${built}${first} Name its events to have them in raw form: --event transfer. Or declare their shapes by ` +
        "hand in defineContract.",
    );
  }
}

/** The file that was to be written is there and was not generated: it may be the work of a person. */
export class FileNotGeneratedError extends Error {
  override readonly name = "FileNotGeneratedError";

  constructor(path: string) {
    super(
      `${path} was not written by codegen and is left as it is. Choose another name, or remove it first.`,
    );
  }
}

/** Contracts and files of one run, at the most. */
const MAX_INPUTS = 100;
/** The largest wasm file that is read, in bytes: the network takes 128 KiB. */
const MAX_WASM_BYTES = 4 * 1024 * 1024;

/**
 * Reads the interfaces of contracts, from the network or from wasm files, and writes TypeScript that declares them
 * with the types of their events. Nothing is written unless everything could be read, and no file that was not
 * generated is overwritten. Throws a `TypeError` for input that cannot be used, {@link NoEventSpecsError},
 * {@link FileNotGeneratedError}, `InvalidWasmError`, `GarbledSectionError`, `UnknownContractError`, and what a source
 * throws.
 */
export async function runCodegen(options: CodegenOptions): Promise<CodegenResult> {
  const { contracts = [], wasmFiles = [], rawEvents = [], out } = options;
  if (contracts.length + wasmFiles.length === 0) throw new TypeError("Name a contract or a wasm file.");
  if (contracts.length + wasmFiles.length > MAX_INPUTS) {
    throw new TypeError(`More than ${MAX_INPUTS} contracts and files: write several files.`);
  }
  for (const name of rawEvents) {
    if (name === "" || name.length > 65) {
      throw new TypeError(
        `${JSON.stringify(name.slice(0, 80))} is no name of an event: use 1 to 65 characters.`,
      );
    }
  }
  const asked = contracts.map(readContractArgument);
  const files = wasmFiles.map(readFileArgument);
  const ids = asked.map(({ id }) => id);
  const twice = ids.find((id, i) => ids.indexOf(id) !== i);
  if (twice !== undefined) throw new TypeError(`The contract ${twice} is named twice.`);

  const read: ReadContract[] = [
    ...(await readFromNetwork(asked, options)),
    ...(await Promise.all(files.map(readFromFile))),
  ];
  const names = constantNames(read);
  const toWrite: ContractToWrite[] = [];
  const leftOut: (LeftOutEvent & { contract: string })[] = [];
  for (const [i, { label, origin, code, watched }] of read.entries()) {
    const name = names[i] ?? "";
    const events = "asset" in code ? ({ kind: "asset" } as const) : await eventsOf(code, label, rawEvents);
    if (events.kind === "specs") leftOut.push(...events.leftOut.map((each) => ({ ...each, contract: name })));
    toWrite.push({ name, watched, origin, events });
  }
  const source = contractsSource(toWrite);
  return { source, written: out !== undefined && (await writeGenerated(out, source)), leftOut };
}

interface ReadContract {
  /** The name that was asked for, or a text to make one of. */
  readonly asked: string | null;
  readonly suggested: string;
  /** What errors call it. */
  readonly label: string;
  readonly origin: string;
  readonly watched: ContractToWrite["watched"];
  readonly code: { readonly hash: string; readonly wasm: Uint8Array } | { readonly asset: string | null };
}

interface ContractArgument {
  readonly asked: string | null;
  readonly id: string;
  readonly startLedger: number | "latest" | "oldest";
}

async function readFromNetwork(
  contracts: readonly ContractArgument[],
  { network, urls, signal = new AbortController().signal }: CodegenOptions,
): Promise<ReadContract[]> {
  if (contracts.length === 0) return [];
  if (network === undefined)
    throw new TypeError('network is missing: use "pubnet", "testnet" or a network of your own.');
  const resolved = resolveNetwork(network);
  const { stream } = resolved.chain;
  const contractIds = contracts.map(({ id }) => id);
  const codes = await readContractCode({ contractIds, network: resolved, urls: readUrls(urls), signal });
  return contracts.flatMap(({ asked, id, startLedger }, i) => {
    const code = codes[i];
    if (!code) return [];
    const asset = code.kind === "asset" ? (code.asset ?? "a Stellar asset") : null;
    return {
      asked,
      suggested: asset?.split(":")[0] ?? `contract${id.slice(-4)}`,
      label: id,
      origin:
        code.kind === "wasm"
          ? `wasm ${code.hash}, on ${stream}`
          : `the built-in contract of ${asset}, on ${stream}`,
      watched: { id, startLedger },
      code: code.kind === "wasm" ? code : { asset },
    };
  });
}

function readUrls(urls: CodegenOptions["urls"]): readonly string[] {
  const list = (typeof urls === "string" ? urls.split(",") : (urls ?? [])).map((url) => url.trim());
  const given = list.filter((url) => url !== "");
  if (given.length === 0) throw new TypeError("There is no url of a node to ask: set STELLAR_RPC_URL.");
  for (const [i, url] of given.entries()) {
    // Not the text itself: an API key may stand in it.
    if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol)) {
      throw new TypeError(`Number ${i + 1} of the urls is not an http or https url.`);
    }
  }
  return given;
}

async function readFromFile({ asked, path }: { asked: string | null; path: string }): Promise<ReadContract> {
  const wasm = await readWasmFile(path);
  const hash = createHash("sha256").update(wasm).digest("hex");
  const name = basename(path);
  return {
    asked,
    suggested: name.replace(/\.wasm$/, ""),
    label: name,
    origin: `wasm ${hash}, from ${name}`,
    watched: null,
    code: { hash, wasm },
  };
}

async function readWasmFile(path: string): Promise<Uint8Array> {
  try {
    const file = await open(path);
    try {
      const { size } = await file.stat();
      if (size <= MAX_WASM_BYTES) return await file.readFile();
    } finally {
      await file.close();
    }
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    throw new InvalidWasmError(path, `cannot be read: ${code ?? message}.`, { cause: error });
  }
  throw new InvalidWasmError(path, `has more than ${MAX_WASM_BYTES} bytes, which no contract has.`);
}

/** The events that the code describes; without any, those that were named, in raw form. */
async function eventsOf(
  { hash, wasm }: { readonly hash: string; readonly wasm: Uint8Array },
  label: string,
  rawEvents: readonly string[],
): Promise<Exclude<ContractToWrite["events"], { kind: "asset" }>> {
  const section = customSection(wasm, "contractspecv0", label);
  const readable = readableEvents(await readContractSpec(section ?? new Uint8Array(), label));
  if (readable.events.size > 0) return { kind: "specs", hash, ...readable };
  if (rawEvents.length > 0) return { kind: "raw", names: [...new Set(rawEvents)] };
  const meta = customSection(wasm, "contractmetav0", label);
  const sdkVersion = meta ? (await readContractMeta(meta, label)).get("rssdkver") : undefined;
  throw new NoEventSpecsError(label, sdkVersion, readable.leftOut);
}

function constantNames(contracts: readonly ReadContract[]): readonly string[] {
  const asked = contracts.flatMap((contract) => (contract.asked === null ? [] : [contract.asked]));
  const twice = asked.find((name, i) => asked.indexOf(name) !== i);
  if (twice !== undefined) throw new TypeError(`Two contracts are to be called ${twice}.`);
  const give = nameGiver([...asked, ...IMPORTS]);
  return contracts.map(({ asked, suggested }) => asked ?? give(constantName(suggested)));
}

/** `name=C…@start`, where name and start may be left out. */
function readContractArgument(text: string): ContractArgument {
  const [, asked = null, id = "", start = "latest"] = /^(?:([^=@]*)=)?([^=@]*)(?:@(.*))?$/.exec(text) ?? [];
  if (!isContractId(id)) {
    throw new TypeError(
      `${JSON.stringify(text)} is no contract: use C and 55 of A-Z 2-7, with name= before it and @ledger, @latest or ` +
        "@oldest behind it where wanted.",
    );
  }
  const startLedger = /^\d+$/.test(start) ? Number(start) : start;
  if (!isStartLedger(startLedger)) {
    throw new TypeError(`${JSON.stringify(text)} starts at ${start}: use a ledger number, latest or oldest.`);
  }
  return { asked: checkedName(asked), id, startLedger };
}

function readFileArgument(text: string): { asked: string | null; path: string } {
  const at = text.indexOf("=");
  if (text === "") throw new TypeError("The path of a wasm file is empty.");
  return { asked: checkedName(at < 0 ? null : text.slice(0, at)), path: text.slice(at + 1) };
}

function checkedName(name: string | null): string | null {
  if (name === null || (isConstantName(name) && !IMPORTS.includes(name))) return name;
  throw new TypeError(
    `A contract cannot be called ${JSON.stringify(name)}: use a name as lendingPool, letters and digits that begin ` +
      "with a small letter and are no word of the language.",
  );
}

/** Writes the file whole or not at all. False where it is there already, as it should be. */
async function writeGenerated(path: string, source: string): Promise<boolean> {
  const before = await readFile(path, "utf8").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return null;
    throw error;
  });
  if (before === source) return false;
  if (before !== null && !before.startsWith(FIRST_LINE)) throw new FileNotGeneratedError(path);
  const part = `${path}.${randomUUID()}.part`;
  try {
    await writeFile(part, source, { flag: "wx" });
    await rename(part, path);
  } catch (error) {
    await rm(part, { force: true });
    throw error;
  }
  return true;
}
