// Small questions to a node, beside getEvents for the watched contracts.
import { RpcResponseError, SourceUnavailableError } from "./errors.ts";
import { asCloseTime, parseHead } from "./eventsPage.ts";
import type { LedgerRef, SourceHead } from "./source.ts";

/** Calls a method of the node that is asked. */
export type Call = (method: string, params?: object) => Promise<unknown>;

/** Whether a node emits the events of classic operations and fees. */
export type ClassicEvents = "on" | "off" | "unknown";

/**
 * Hash and close time of a ledger. A node that does not offer `getLedgers` tells the close time at the ledger's
 * first event. null: the node does not have the ledger, or it cannot be told.
 */
export async function readLedger(call: Call, sequence: number): Promise<LedgerRef | null> {
  let result: unknown;
  try {
    result = await call("getLedgers", { startLedger: sequence, pagination: { limit: 1 } });
  } catch (error) {
    if (isOutside(error)) return null;
    if (!isNotOffered(error)) throw error;
    return readLedgerOfEvent(call, sequence);
  }
  const [ledger] = listOf(result, "ledgers");
  return ledger?.["sequence"] === sequence
    ? refOf(sequence, ledger["hash"], ledger["ledgerCloseTime"])
    : null;
}

async function readLedgerOfEvent(call: Call, sequence: number): Promise<LedgerRef | null> {
  try {
    const range = { startLedger: sequence, endLedger: sequence + 1, pagination: { limit: 1 } };
    const [event] = listOf(await call("getEvents", range), "events");
    if (event?.["ledger"] !== sequence) return null;
    return refOf(sequence, null, Math.floor(Date.parse(String(event["ledgerClosedAt"])) / 1000));
  } catch (error) {
    if (isOutside(error)) return null;
    throw error;
  }
}

/** The newest ledger, asked for by itself; null where the node does not tell it. */
export async function readNewestLedger(call: Call): Promise<LedgerRef | null> {
  try {
    const { id, sequence, closeTime } = (await call("getLatestLedger")) as Record<string, unknown>;
    if (typeof sequence !== "number") return null;
    return refOf(sequence, id, closeTime) ?? (await readLedger(call, sequence));
  } catch (error) {
    if (isNotOffered(error)) return null;
    throw error;
  }
}

/** The node's range with its close times, which its refusal of a ledger does not tell. */
export async function readHeadAt(
  call: Call,
  { latestLedger, oldestLedger }: SourceHead,
): Promise<SourceHead> {
  try {
    const range = { startLedger: latestLedger, endLedger: latestLedger + 1, pagination: { limit: 1 } };
    return parseHead(await call("getEvents", range));
  } catch (error) {
    if (isOutside(error)) return { latestLedger, oldestLedger };
    throw error;
  }
}

/** The symbol `fee`: since protocol 23 each transaction has such an event, where classic events are emitted. */
const FEE_TOPIC = "AAAADwAAAANmZWUA";
/** Ledgers that are looked back over: on a quiet network most are empty. */
const PROBED_LEDGERS = 100;

/** Finds out by fee events whether a node emits classic events; unknown where nothing has happened lately. */
export async function probeClassicEvents(call: Call): Promise<ClassicEvents> {
  const { latestLedger, oldestLedger } = parseHead(await call("getHealth"));
  const startLedger = Math.max(oldestLedger, latestLedger - PROBED_LEDGERS + 1);
  const range = { startLedger, endLedger: latestLedger + 1, pagination: { limit: 1 } };
  const has = async (filter: object): Promise<boolean> =>
    listOf(await call("getEvents", { ...range, filters: [filter] }), "events").length > 0;
  if (await has({ type: "contract", topics: [[FEE_TOPIC, "**"]] })) return "on";
  return (await has({ type: "contract" })) ? "off" : "unknown";
}

function refOf(ledger: number, hash: unknown, closeTime: unknown): LedgerRef | null {
  const closedAt = asCloseTime(closeTime);
  if (closedAt === undefined) return null;
  return { ledger, hash: typeof hash === "string" && /^[0-9a-f]{64}$/.test(hash) ? hash : null, closedAt };
}

function listOf(result: unknown, field: string): readonly Record<string, unknown>[] {
  const list = (result as Record<string, unknown> | null)?.[field];
  if (!Array.isArray(list)) throw new SourceUnavailableError(`The node's answer has no list of ${field}.`);
  return list as Record<string, unknown>[];
}

/** "start ledger (N) must be between …", "startLedger must be within the ledger range: …" */
function isOutside(error: unknown): boolean {
  return (
    error instanceof RpcResponseError &&
    (error.code === -32600 || error.code === -32602) &&
    /must be (between|within)/.test(error.message)
  );
}

/** A method that the node does not know, or that the provider does not let through. */
function isNotOffered(error: unknown): boolean {
  if (error instanceof SourceUnavailableError) return NOT_OFFERED.has(error.status ?? 0);
  return error instanceof RpcResponseError && error.code === -32601;
}

const NOT_OFFERED: ReadonlySet<number> = new Set([401, 403, 404, 405, 501]);
