// A file of recorded rows: one header line, the events in chain order, one line that ends it. All of them JSON.
import { parseRpcId, type StreamEpoch } from "@fencepost/token";
import type { SourceEvent } from "../source.ts";

/** What a file is of, and for what it is complete. */
export interface ReplayHeader {
  readonly format: typeof FORMAT;
  readonly stream: string;
  readonly epoch: string;
  readonly passphrase: string;
  readonly fromLedger: number;
  readonly throughLedger: number;
  /** Every event of these is in the file, each from its start ledger on. By id. */
  readonly contracts: readonly { readonly id: string; readonly startLedger: number }[];
  /** Ledgers in the range whose events were missing when it was written. */
  readonly gaps: readonly { readonly fromLedger: number; readonly throughLedger: number }[];
}

const FORMAT = "fencepost.events.v1";

/** A line, and so an event, has as many bytes at the most. */
export const MAX_LINE_BYTES = 4 * 1_024 * 1_024;

export function headerLine(header: Omit<ReplayHeader, "format">): string {
  const { stream, epoch, passphrase, fromLedger, throughLedger, contracts, gaps } = header;
  const fields = { stream, epoch, passphrase, fromLedger, throughLedger, contracts, gaps };
  return `${JSON.stringify({ format: FORMAT, ...fields })}\n`;
}

export function eventLine(event: SourceEvent): string {
  const { id, type, ledger, closedAt, contractId, txHash, topics, value } = event;
  return `${JSON.stringify({ id, type, ledger, closedAt, contractId, txHash, topics, value })}\n`;
}

/** Without it a file was cut off, at whatever line it ends. */
export function endLine(events: number): string {
  return `${JSON.stringify({ end: true, events })}\n`;
}

type Parsed<T> = T | { readonly fault: string };

export function parseHeader(line: string): Parsed<ReplayHeader> {
  const header = parseObject(line);
  if (!header) return { fault: "it is not a JSON object" };
  if (header["format"] !== FORMAT) return { fault: `its format is not ${FORMAT}` };
  const isRange = (range: unknown): boolean => {
    const { fromLedger, throughLedger } = (range ?? {}) as Partial<ReplayHeader>;
    return isLedger(fromLedger) && isLedger(throughLedger) && fromLedger <= throughLedger;
  };
  const { stream, epoch, passphrase, contracts, gaps } = header as Partial<ReplayHeader>;
  const texts = [stream, epoch, passphrase];
  if (!texts.every((text) => typeof text === "string")) return { fault: "it names no network" };
  if (!isRange(header)) return { fault: "its ledgers are no range" };
  if (!Array.isArray(gaps) || !gaps.every(isRange)) return { fault: "its gaps are no list of ranges" };
  const isContract = (contract: ReplayHeader["contracts"][number]): boolean =>
    typeof contract?.id === "string" && isLedger(contract.startLedger);
  if (!Array.isArray(contracts) || !contracts.every(isContract))
    return { fault: "its contracts are no list" };
  return header as unknown as ReplayHeader;
}

/** One line after the header: an event, or how many there were. */
export function parseLine(
  line: string,
): Parsed<SourceEvent | { readonly end: true; readonly events: number }> {
  const row = parseObject(line);
  if (!row) return { fault: "it is not a JSON object" };
  if (row["end"] === true && Number.isInteger(row["events"])) {
    return { end: true, events: Number(row["events"]) };
  }
  const { id, type, ledger, closedAt, contractId, txHash, topics, value } = row as Partial<SourceEvent>;
  if (type !== "contract" && type !== "system") return { fault: "its type is neither contract nor system" };
  if (typeof id !== "string" || !isLedger(ledger) || ledgerOf(id) !== ledger) {
    return { fault: "its id is none of its ledger" };
  }
  if (typeof closedAt !== "string" || Number.isNaN(Date.parse(closedAt)))
    return { fault: "closedAt is no time" };
  if (contractId !== null && typeof contractId !== "string") return { fault: "contractId is no text" };
  if (typeof txHash !== "string") return { fault: "txHash is no text" };
  if (!Array.isArray(topics) || !topics.every(isBase64)) return { fault: "topics is no list of base64" };
  if (!isBase64(value)) return { fault: "value is not base64" };
  return { id, type, ledger, closedAt, contractId, txHash, topics, value };
}

export function chainOf({ stream, epoch }: StreamEpoch): string {
  return `${stream}-${epoch}`;
}

function parseObject(line: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(line);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? { ...value } : undefined;
  } catch {
    return undefined;
  }
}

function ledgerOf(id: string): number | undefined {
  try {
    return parseRpcId(id).ledger;
  } catch {
    return undefined;
  }
}

function isLedger(value: unknown): value is number {
  return Number.isInteger(value) && Number(value) >= 0 && Number(value) <= 2_147_483_647;
}

function isBase64(value: unknown): value is string {
  return typeof value === "string" && value.length % 4 === 0 && /^[A-Za-z0-9+/]*={0,2}$/.test(value);
}
