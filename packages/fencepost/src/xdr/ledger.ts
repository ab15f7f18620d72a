// Reads the events of a few contracts out of ledgers, and moves over everything else.
import { formatRpcId, InvalidTokenError } from "@fencepost/token";
import type { SourceEvent } from "../source/source.ts";
import {
  type Cursor,
  compileSkip,
  cursorOf,
  type FieldReaders,
  InvalidXdrError,
  readInt32,
  readLength,
  type Skip,
} from "./skip.ts";

/** What a ledger says of itself in its header. */
export interface LedgerFacts {
  readonly sequence: number;
  /** 64 hex digits. */
  readonly hash: string;
  /** The hash of the ledger before it. */
  readonly previousHash: string;
  /** ISO time of its close, as `getEvents` writes it. */
  readonly closedAt: string;
  readonly protocolVersion: number;
}

interface LedgerWithEvents extends LedgerFacts {
  /** In chain order, with the fields that `getEvents` gives them, byte for byte. */
  readonly events: readonly SourceEvent[];
}

/** A `LedgerCloseMetaBatch`, as it says of itself: nothing in it is compared with anything else. */
export interface LedgerBatch {
  readonly startSequence: number;
  readonly endSequence: number;
  readonly ledgers: readonly LedgerWithEvents[];
}

/** Reads the XDR of a batch. Throws {@link InvalidXdrError} for bytes that are not one, from end to end. */
export type ReadBatch = (xdr: Buffer) => LedgerBatch;

export interface LedgerReader {
  /** Reads contract and system events of these contracts. Throws for a text that is no C… address. */
  forContracts(contractIds: readonly string[]): ReadBatch;
}

/** The transaction of events after all of them, and the operation of events after one transaction. */
const AFTER_ALL_TX = 1_048_575;
const AFTER_TRANSACTION_OP = 4_095;

/** By the number of a ContractEventType. */
const EVENT_TYPES = ["system", "contract"] as const;

/** Where the parts of a ContractEvent of a contract stand, in bytes from its beginning. */
const EVENT_PARTS = { hasContract: 4, contract: 8, type: 40, topicCount: 48 } as const;

/** The last second whose year has four digits. */
const MAX_CLOSE_TIME = 253_402_300_799n;

const UNLIMITED = 2 ** 32 - 1;

/** What is being read. */
interface Reading extends Mutable<LedgerBatch> {
  readonly contracts: ContractIndex;
  readonly ledgers: OpenLedger[];
}

/** A ledger while it is read. */
interface OpenLedger extends Mutable<LedgerFacts> {
  readonly events: SourceEvent[];
  readonly beforeAll: Place;
  readonly afterAll: Place;
  /** Transactions begun: the number of the current one, from 1. */
  tx: number;
  txHash: string;
  /** Operations of it that are done: the number of the current one, from 0. */
  op: number;
}

/** Where events stand that are counted together. */
interface Place {
  readonly tx: number;
  readonly op: number;
  /** Index of the next event here. */
  next: number;
  /** What the ids of its events have in common, once one is needed. */
  idStart?: string;
}

type Mutable<T> = { -readonly [field in keyof T]: T[field] };

let loading: Promise<LedgerReader> | undefined;

/** Loads the SDK once and returns a reader of ledgers. */
export function loadLedgerReader(): Promise<LedgerReader> {
  loading ??= import("@stellar/stellar-sdk/base").then(({ xdr, StrKey }) => {
    const types: EventSkips = {
      event: compileSkip(xdr.ContractEvent.schema),
      stage: compileSkip(xdr.TransactionEventStage.schema),
      value: compileSkip(xdr.ScVal.schema),
    };
    let reading: Reading;
    const skipBatch = compileSkip(
      xdr.LedgerCloseMetaBatch.schema,
      fieldReaders(types, () => reading),
    );
    return {
      forContracts(contractIds) {
        const contracts = indexContracts(contractIds, StrKey.decodeContract);
        return (bytes) => {
          reading = { startSequence: 0, endSequence: 0, ledgers: [], contracts };
          return readWhole(bytes, skipBatch, reading);
        };
      },
    };
  });
  return loading;
}

function readWhole(bytes: Buffer, skipBatch: Skip, reading: Reading): LedgerBatch {
  const c = cursorOf(bytes);
  try {
    skipBatch(c);
  } catch (error) {
    if (error instanceof RangeError) throw endsEarly(bytes);
    if (error instanceof InvalidTokenError) throw new InvalidXdrError(error.message);
    throw error;
  }
  if (c.at > bytes.length) throw endsEarly(bytes);
  if (c.at < bytes.length) throw new InvalidXdrError(`${bytes.length - c.at} bytes follow its end.`);
  const { startSequence, endSequence } = reading;
  return { startSequence, endSequence, ledgers: reading.ledgers.map(closeLedger) };
}

function endsEarly({ length }: Buffer): InvalidXdrError {
  return new InvalidXdrError(`It ends after ${length} bytes, in the middle of a value.`);
}

function closeLedger(ledger: OpenLedger): LedgerWithEvents {
  const { sequence, hash, previousHash, closedAt, protocolVersion, events } = ledger;
  // Fees come with their transactions, but stand before all of them.
  events.sort((a, b) => (a.id < b.id ? -1 : 1));
  return { sequence, hash, previousHash, closedAt, protocolVersion, events };
}

interface EventSkips {
  readonly event: Skip;
  readonly stage: Skip;
  readonly value: Skip;
}

/** The fields that are read on the way through a batch, in their order on the wire. */
function fieldReaders(types: EventSkips, reading: () => Reading): FieldReaders {
  const current = (): OpenLedger => {
    const ledger = reading().ledgers.at(-1);
    if (!ledger) throw new InvalidXdrError("It has a transaction before a ledger header.");
    return ledger;
  };

  return {
    "LedgerCloseMetaBatch.startSequence": (c) => {
      reading().startSequence = readInt32(c);
    },
    "LedgerCloseMetaBatch.endSequence": (c) => {
      reading().endSequence = readInt32(c);
    },
    "LedgerHeaderHistoryEntry.hash": (c) => {
      reading().ledgers.push({
        sequence: 0,
        hash: readHex(c),
        previousHash: "",
        closedAt: "",
        protocolVersion: 0,
        events: [],
        beforeAll: { tx: 0, op: 0, next: 0 },
        afterAll: { tx: AFTER_ALL_TX, op: 0, next: 0 },
        tx: 0,
        txHash: "",
        op: 0,
      });
    },
    "LedgerHeader.ledgerVersion": (c) => {
      current().protocolVersion = readInt32(c);
    },
    "LedgerHeader.previousLedgerHash": (c) => {
      current().previousHash = readHex(c);
    },
    "StellarValue.closeTime": (c) => {
      const seconds = c.view.getBigUint64(c.at);
      if (seconds > MAX_CLOSE_TIME) throw new InvalidXdrError(`It has a ledger closed at ${seconds}.`);
      c.at += 8;
      current().closedAt = `${new Date(Number(seconds) * 1000).toISOString().slice(0, 19)}Z`;
    },
    "LedgerHeader.ledgerSeq": (c) => {
      const sequence = readInt32(c);
      if (sequence < 0) throw new InvalidXdrError(`It has a ledger ${sequence >>> 0}.`);
      current().sequence = sequence;
    },
    "TransactionResultPair.transactionHash": (c) => {
      const ledger = current();
      ledger.tx++;
      ledger.txHash = readHex(c);
      ledger.op = 0;
    },
    "OperationMetaV2.events": (c) => readOperation(c),
    // Until protocol 22 a transaction with events had one operation.
    "SorobanTransactionMeta.events": (c) => readOperation(c),
    "TransactionMetaV4.events": (c) => {
      const ledger = current();
      const { beforeAll, afterAll, tx } = ledger;
      const stages = [beforeAll, { tx, op: AFTER_TRANSACTION_OP, next: 0 }, afterAll];
      for (let left = readLength(c, UNLIMITED); left > 0; left--) {
        const stage = c.view.getInt32(c.at);
        types.stage(c); // refuses any other
        readEvent(c, ledger, stages[stage] ?? beforeAll);
      }
    },
  };

  function readOperation(c: Cursor): void {
    const ledger = current();
    const place = { tx: ledger.tx, op: ledger.op++, next: 0 };
    for (let left = readLength(c, UNLIMITED); left > 0; left--) readEvent(c, ledger, place);
  }

  /** Contracts are told apart before anything is made of an event: most events are of others. */
  function readEvent(c: Cursor, ledger: OpenLedger, place: Place): void {
    const event = place.next++;
    const start = c.at;
    types.event(c);
    const end = c.at;
    if (c.view.getInt32(start + EVENT_PARTS.hasContract) === 0) return;
    const contractId = reading().contracts(c.bytes, start + EVENT_PARTS.contract);
    const type = EVENT_TYPES[c.view.getInt32(start + EVENT_PARTS.type)];
    if (!contractId || !type) return;
    const readValue = (): string => {
      const from = c.at;
      types.value(c);
      return c.bytes.toString("base64", from, c.at);
    };
    c.at = start + EVENT_PARTS.topicCount;
    const topics = Array.from({ length: readInt32(c) }, readValue);
    const value = readValue();
    c.at = end;
    const { sequence, closedAt, txHash } = ledger;
    ledger.events.push({
      id: eventId(sequence, place, event),
      type,
      ledger: sequence,
      closedAt,
      contractId,
      txHash,
      topics,
      value,
    });
  }
}

/** Made from its two halves: to make it anew for each event took as long as reading the event. */
function eventId(ledger: number, place: Place, event: number): string {
  place.idStart ??= formatRpcId({ ledger, tx: place.tx, op: place.op, event: 0 }).slice(0, -10);
  return `${place.idStart}${event.toString().padStart(10, "0")}`;
}

function readHex(c: Cursor): string {
  c.at += 32;
  return c.bytes.toString("hex", c.at - 32, c.at);
}

/** The contract whose 32 bytes stand at a place, if it is one of those asked for. */
type ContractIndex = (bytes: Buffer, at: number) => string | undefined;

function indexContracts(
  contractIds: readonly string[],
  decode: (contractId: string) => Uint8Array,
): ContractIndex {
  const byStart = new Map<number, { readonly raw: Buffer; readonly contractId: string }[]>();
  for (const contractId of contractIds) {
    const raw = Buffer.from(decode(contractId));
    const start = raw.readUInt32BE();
    byStart.set(start, [...(byStart.get(start) ?? []), { raw, contractId }]);
  }
  return (bytes, at) =>
    byStart.get(bytes.readUInt32BE(at))?.find(({ raw }) => bytes.compare(raw, 0, 32, at, at + 32) === 0)
      ?.contractId;
}
