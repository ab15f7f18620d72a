import { createHash } from "node:crypto";
import { formatRpcId, parseRpcId } from "@fencepost/token";

/** One event as `getEvents` serves it: `topic` is absent when there is none, `contractId` is "" when there is none. */
export interface EventRow {
  readonly type: "contract" | "system";
  readonly ledger: number;
  readonly ledgerClosedAt: string;
  readonly contractId: string;
  readonly id: string;
  readonly operationIndex: number;
  readonly transactionIndex: number;
  readonly txHash: string;
  readonly inSuccessfulContractCall?: boolean;
  readonly topic?: readonly string[];
  readonly value: string;
}

/** An event that a test wants in the next ledger. Values are base64 ScVals, or garbage on purpose. */
export interface EventSpec {
  /** C… address; absent for an event of no contract. */
  readonly contract?: string;
  readonly type?: "contract" | "system";
  /** Any number; none gives a row without `topic`. */
  readonly topics?: readonly string[];
  readonly value: string;
  /** 1-based transaction in the ledger; default 1. */
  readonly tx?: number;
  /** 0-based operation in the transaction; default 0. Only for `operation` events. */
  readonly op?: number;
  /**
   * Where in the ledger it is emitted; default `operation`. `fee` stands before all transactions,
   * `afterTransaction` after its own, `afterAll` after all of them (fee refunds).
   */
  readonly place?: "fee" | "operation" | "afterTransaction" | "afterAll";
  /** True when the transaction failed: only its fee events remain on a real chain. */
  readonly failed?: boolean;
}

export interface Ledger {
  readonly sequence: number;
  /** 64 hex digits. */
  readonly hash: string;
  readonly previousHash: string;
  /** Unix seconds. */
  readonly closedAt: number;
  /** In the order of their ids. */
  readonly rows: () => readonly EventRow[];
}

export interface ChainOptions {
  /** Default: the testnet's. */
  readonly passphrase?: string;
  readonly protocolVersion?: number;
  /** Sequence of the first ledger; default 1. */
  readonly firstLedger?: number;
  /**
   * Unix seconds at which ledger 0 closed. Default 2025-12-17 17:00 UTC, the testnet reset of epoch 20251217; for
   * another `life` half a year later, since two lives of one chain cannot be at the same time.
   */
  readonly startTime?: number;
  /** Default 5. */
  readonly secondsPerLedger?: number;
  /** How many ledgers a node keeps; default 120,960. */
  readonly retention?: number;
  /** Tells two lives of one network apart: it goes into the ledger hashes, not into ids or transaction hashes. */
  readonly life?: string;
}

/** A chain of ledgers that close only when told. Everything in it follows from what it was told. */
export interface Chain {
  readonly passphrase: string;
  readonly protocolVersion: number;
  /** How many ledgers a node keeps. */
  readonly retention: number;
  /** Sequence of the first ledger ever. */
  readonly first: number;
  /** Sequence of the last closed ledger; `first - 1` when none has closed. */
  readonly latest: number;
  /** The oldest ledger that a node whose last ledger is `latest` still has. */
  oldestAt(latest: number): number;
  /** Closes a ledger with these events. `closedAt` is in unix seconds; default: the last one plus a ledger's time. */
  close(ledger?: { readonly events?: readonly EventSpec[]; readonly closedAt?: number }): Ledger;
  /** Closes a ledger whose rows are given as recorded, to be served unchanged. */
  closeRecorded(ledger: {
    readonly rows: readonly EventRow[];
    readonly hash?: string;
    readonly closedAt?: number;
  }): Ledger;
  /** Closes many ledgers at once; `rowsOf` is called whenever a ledger is read, so it must be a pure function. */
  closeMany(count: number, rowsOf?: (sequence: number, closedAt: number) => readonly EventRow[]): void;
  /** Keeps this many ledgers from now on: moves the oldest up (or back). */
  retain(ledgers: number): void;
  /** A closed ledger, also one that a node no longer has. */
  ledger(sequence: number): Ledger | undefined;
  /** Every event ever, in order: the truth that a test compares with. */
  events(): Generator<EventRow>;
}

/** Thrown when a ledger cannot close as asked: ids out of order, time going back, too many ledgers. */
export class ChainError extends Error {
  override readonly name = "ChainError";
}

export const TESTNET_PASSPHRASE = "Test SDF Network ; September 2015";
export const PUBNET_PASSPHRASE = "Public Global Stellar Network ; September 2015";

const TESTNET_RESET = Date.UTC(2025, 11, 17, 17) / 1000;
const NEXT_RESET = Date.UTC(2026, 5, 17, 17) / 1000;
const MAX_LEDGERS = 1_000_000;
const AFTER_TRANSACTION_OP = 4_095;
const AFTER_ALL_TX = 1_048_575;

/** Starts a chain with no ledger closed. */
export function startChain(options: ChainOptions = {}): Chain {
  const {
    passphrase = TESTNET_PASSPHRASE,
    protocolVersion = 26,
    firstLedger: first = 1,
    life = "",
    startTime = life === "" ? TESTNET_RESET : NEXT_RESET,
    secondsPerLedger = 5,
  } = options;
  let { retention = 120_960 } = options;
  const ledgers: Ledger[] = [];

  const latest = (): number => first + ledgers.length - 1;

  function append(
    rows: Ledger["rows"],
    content: string,
    given: { hash?: string; closedAt?: number },
  ): Ledger {
    const previous = ledgers.at(-1);
    const sequence = latest() + 1;
    const closedAt = given.closedAt ?? nextCloseTime();
    if (ledgers.length >= MAX_LEDGERS)
      throw new ChainError(`A simulated chain has at most ${MAX_LEDGERS} ledgers.`);
    if (previous && closedAt < previous.closedAt) {
      throw new ChainError(
        `Ledger ${sequence} cannot close at ${closedAt}: ledger ${previous.sequence} closed later.`,
      );
    }
    const previousHash = previous?.hash ?? sha256(`genesis ${passphrase} ${life}`);
    const hash = given.hash ?? sha256(`${previousHash} ${sequence} ${closedAt} ${content}`);
    const ledger = { sequence, hash, previousHash, closedAt, rows };
    ledgers.push(ledger);
    return ledger;
  }

  function nextCloseTime(): number {
    return (ledgers.at(-1)?.closedAt ?? startTime + (first - 1) * secondsPerLedger) + secondsPerLedger;
  }

  return {
    passphrase,
    protocolVersion,
    first,
    get retention() {
      return retention;
    },
    get latest() {
      return latest();
    },
    oldestAt: (last) => Math.max(first, last - retention + 1),
    close({ events = [], closedAt = nextCloseTime() } = {}) {
      const rows = rowsOfEvents(passphrase, latest() + 1, closedAt, events);
      return append(() => rows, JSON.stringify(rows), { closedAt });
    },
    closeRecorded({ rows, ...given }) {
      checkRows(latest() + 1, rows);
      return append(() => rows, JSON.stringify(rows), given);
    },
    closeMany(count, rowsOf = () => []) {
      for (let i = 0; i < count; i++) {
        const sequence = latest() + 1;
        const closedAt = nextCloseTime();
        append(() => rowsOf(sequence, closedAt), "", { closedAt });
      }
    },
    retain(count) {
      retention = count;
    },
    ledger: (sequence) => ledgers[sequence - first],
    *events() {
      for (const ledger of ledgers) yield* ledger.rows();
    },
  };
}

/** The hash of a transaction, 64 hex digits. It recurs after a reset of the network, as real ones can. */
export function transactionHash(passphrase: string, ledger: number, tx: number): string {
  return sha256(`transaction ${passphrase} ${ledger} ${tx}`);
}

/** Unix seconds as a node writes them: without fractions. */
export function isoTime(seconds: number): string {
  return `${new Date(seconds * 1000).toISOString().slice(0, 19)}Z`;
}

/** Gives each event its id by the rule of RPC v23 and later, and sorts by it. */
function rowsOfEvents(
  passphrase: string,
  ledger: number,
  closedAt: number,
  events: readonly EventSpec[],
): EventRow[] {
  const counts = new Map<string, number>();
  const rows = events.map((spec): EventRow => {
    const [tx, op] = placeOf(spec);
    const event = counts.get(`${tx} ${op}`) ?? 0;
    counts.set(`${tx} ${op}`, event + 1);
    return {
      type: spec.type ?? "contract",
      ledger,
      ledgerClosedAt: isoTime(closedAt),
      contractId: spec.contract ?? "",
      id: formatRpcId({ ledger, tx, op, event }),
      operationIndex: op,
      transactionIndex: tx,
      txHash: transactionHash(passphrase, ledger, spec.tx ?? 1),
      inSuccessfulContractCall: spec.failed !== true,
      ...(spec.topics?.length ? { topic: spec.topics } : {}),
      value: spec.value,
    };
  });
  return rows.sort((a, b) => (a.id < b.id ? -1 : 1));
}

function placeOf({ place = "operation", tx = 1, op = 0 }: EventSpec): [tx: number, op: number] {
  if (tx < 1 || tx >= AFTER_ALL_TX || op < 0 || op >= AFTER_TRANSACTION_OP) {
    throw new ChainError(
      `Transaction ${tx} or operation ${op} does not exist: they count from 1 and from 0.`,
    );
  }
  switch (place) {
    case "fee":
      return [0, 0];
    case "operation":
      return [tx, op];
    case "afterTransaction":
      return [tx, AFTER_TRANSACTION_OP];
    case "afterAll":
      return [AFTER_ALL_TX, 0];
  }
}

function checkRows(sequence: number, rows: readonly EventRow[]): void {
  let last = "";
  for (const { id } of rows) {
    if (id <= last)
      throw new ChainError(`The rows of ledger ${sequence} are not in order: ${id} follows ${last}.`);
    if (parseRpcId(id).ledger !== sequence) throw new ChainError(`Row ${id} is not of ledger ${sequence}.`);
    last = id;
  }
}

function sha256(text: string): string {
  return createHash("sha256").update(text).digest("hex");
}
