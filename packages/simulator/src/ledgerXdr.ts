// The XDR of a simulated ledger, encoded by the Stellar SDK, so that a decoder is tested against the real thing.
import { parseRpcId } from "@fencepost/token";
import { StrKey, xdr } from "@stellar/stellar-sdk/base";
import { type Chain, ChainError, type EventRow, type Ledger, transactionHash } from "./chain.ts";

/**
 * How a ledger is written down. The network writes 2 and 4 since protocol 23, and wrote 1 and 3 before it; until
 * protocol 19, when there were no contracts, it wrote 0.
 */
export interface LedgerForm {
  /** Version of `LedgerCloseMeta`; default 2. */
  readonly ledgerMeta?: 0 | 1 | 2;
  /** Version of `TransactionMeta`; default 4. In 3 only the first operation of a transaction has events. */
  readonly transactionMeta?: 3 | 4;
}

const AFTER_TRANSACTION_OP = 4_095;
const AFTER_ALL_TX = 1_048_575;
const ZERO_HASH = "00".repeat(32);
const MAX_TRANSACTIONS = 10_000;

/**
 * `LedgerCloseMeta` of one ledger: each transaction that has an event, and those before it. Diagnostic events
 * repeat the others, as on a node that keeps them. Throws {@link ChainError} for what no ledger holds: values
 * that are no ScVal, or fees that are not in the order of their transactions.
 */
export function ledgerXdr(chain: Chain, ledger: Ledger, form: LedgerForm = {}): Uint8Array {
  return ledgerMeta(chain, ledger, form).toXdr();
}

/** `LedgerCloseMetaBatch` of ledgers that follow each other, `start` to `end`. */
export function batchXdr(chain: Chain, start: number, end: number, form: LedgerForm = {}): Uint8Array {
  const ledgerCloseMetas = Array.from({ length: end - start + 1 }, (_, i) => {
    const ledger = chain.ledger(start + i);
    if (!ledger) throw new ChainError(`Ledger ${start + i} has not closed.`);
    return ledgerMeta(chain, ledger, form);
  });
  return new xdr.LedgerCloseMetaBatch({ startSequence: start, endSequence: end, ledgerCloseMetas }).toXdr();
}

/** A ledger as a node serves it, in base64. `metadata` is empty where a row is none that a ledger can hold. */
export function servedXdr(
  chain: Chain,
  ledger: Ledger,
): { readonly entry: string; readonly header: string; readonly metadata: string } {
  const entry = header(chain, ledger);
  let metadata = "";
  try {
    metadata = ledgerMeta(chain, ledger, {}).toXdr("base64");
  } catch (error) {
    if (!(error instanceof ChainError)) throw error;
  }
  return { entry: entry.toXdr("base64"), header: entry.header.toXdr("base64"), metadata };
}

function ledgerMeta(
  chain: Chain,
  ledger: Ledger,
  { ledgerMeta: version = 2, transactionMeta = 4 }: LedgerForm,
): xdr.LedgerCloseMeta {
  const { previousHash: previousLedgerHash } = ledger;
  const common = {
    ext: xdr.LedgerCloseMetaExt.v0(),
    ledgerHeader: header(chain, ledger),
    txSet: xdr.GeneralizedTransactionSet.v1TxSet(
      new xdr.TransactionSetV1({ previousLedgerHash, phases: [] }),
    ),
    upgradesProcessing: [],
    scpInfo: [],
    totalByteSizeOfLiveSorobanState: 0n,
    evictedKeys: [],
  };
  const transactions = transactionsOf(chain, ledger).map(({ hash, rows }) => ({
    result: new xdr.TransactionResultPair({
      transactionHash: hash,
      result: new xdr.TransactionResult({
        feeCharged: 100n,
        result: xdr.TransactionResultResult.txSuccess([]),
        ext: xdr.TransactionResultExt.v0(),
      }),
    }),
    feeProcessing: [],
    txApplyProcessing: transactionMeta === 4 ? metaV4(rows) : metaV3(rows),
  }));
  if (version < 2) {
    const txProcessing = transactions.map((each) => new xdr.TransactionResultMeta(each));
    const txSet = new xdr.TransactionSet({ previousLedgerHash, txs: [] });
    return version === 0
      ? xdr.LedgerCloseMeta.v0(new xdr.LedgerCloseMetaV0({ ...common, txSet, txProcessing }))
      : xdr.LedgerCloseMeta.v1(new xdr.LedgerCloseMetaV1({ ...common, txProcessing, unused: [] }));
  }
  const ext = xdr.ExtensionPoint.v0();
  return xdr.LedgerCloseMeta.v2(
    new xdr.LedgerCloseMetaV2({
      ...common,
      txProcessing: transactions.map(
        (each) => new xdr.TransactionResultMetaV1({ ext, ...each, postTxApplyFeeProcessing: [] }),
      ),
    }),
  );
}

function header(chain: Chain, ledger: Ledger): xdr.LedgerHeaderHistoryEntry {
  return new xdr.LedgerHeaderHistoryEntry({
    hash: ledger.hash,
    header: new xdr.LedgerHeader({
      ledgerVersion: chain.protocolVersion,
      previousLedgerHash: ledger.previousHash,
      scpValue: new xdr.StellarValue({
        txSetHash: ZERO_HASH,
        closeTime: BigInt(ledger.closedAt),
        upgrades: [],
        ext: xdr.StellarValueExt.stellarValueBasic(),
      }),
      txSetResultHash: ZERO_HASH,
      bucketListHash: ZERO_HASH,
      ledgerSeq: ledger.sequence,
      totalCoins: 0n,
      feePool: 0n,
      inflationSeq: 0,
      idPool: 0n,
      baseFee: 100,
      baseReserve: 5_000_000,
      maxTxSetSize: 1_000,
      skipList: [ZERO_HASH, ZERO_HASH, ZERO_HASH, ZERO_HASH],
      ext: xdr.LedgerHeaderExt.v0(),
    }),
    ext: xdr.LedgerHeaderHistoryEntryExt.v0(),
  });
}

interface Transaction {
  readonly hash: string;
  readonly rows: readonly EventRow[];
}

/** The transactions of a ledger in the order in which they are applied, each with its events. */
function transactionsOf(chain: Chain, { sequence, rows: rowsOf }: Ledger): readonly Transaction[] {
  const rows = rowsOf();
  const rowsByHash = new Map<string, EventRow[]>();
  for (const row of rows) rowsByHash.set(row.txHash, [...(rowsByHash.get(row.txHash) ?? []), row]);
  const transactions: Transaction[] = [];
  for (let found = 0, tx = 1; found < rowsByHash.size; tx++) {
    if (tx > MAX_TRANSACTIONS) throw new ChainError(`Ledger ${sequence} has events of unknown transactions.`);
    const hash = transactionHash(chain.passphrase, sequence, tx);
    const ofThis = rowsByHash.get(hash);
    if (ofThis) found++;
    transactions.push({ hash, rows: ofThis ?? [] });
  }
  const written = transactions.flatMap((transaction) => transaction.rows.map((row) => row.id));
  for (const place of [0, AFTER_ALL_TX]) {
    const ids = written.filter((id) => parseRpcId(id).tx === place);
    if (ids.some((id, i) => id < (ids[i - 1] ?? ""))) {
      throw new ChainError(`Fees of ledger ${sequence} are not in the order of their transactions.`);
    }
  }
  return transactions;
}

function metaV4(rows: readonly EventRow[]): xdr.TransactionMeta {
  const ext = xdr.ExtensionPoint.v0();
  const operations: xdr.OperationMetaV2[] = [];
  const events: xdr.TransactionEvent[] = [];
  for (const row of rows) {
    const { tx, op } = parseRpcId(row.id);
    const stage = stageOf(tx, op);
    const event = contractEvent(row);
    if (stage) {
      events.push(new xdr.TransactionEvent({ stage, event }));
      continue;
    }
    while (operations.length <= op)
      operations.push(new xdr.OperationMetaV2({ ext, changes: [], events: [] }));
    operations[op]?.events.push(event);
  }
  return xdr.TransactionMeta.v4(
    new xdr.TransactionMetaV4({
      ext,
      txChangesBefore: [],
      operations,
      txChangesAfter: [],
      sorobanMeta: null,
      events,
      diagnosticEvents: rows.map(diagnosticEvent),
    }),
  );
}

function metaV3(rows: readonly EventRow[]): xdr.TransactionMeta {
  const other = rows.find((row) => {
    const { tx, op } = parseRpcId(row.id);
    return stageOf(tx, op) !== null || op > 0;
  });
  if (other) throw new ChainError(`TransactionMeta 3 has no place for event ${other.id}.`);
  return xdr.TransactionMeta.v3(
    new xdr.TransactionMetaV3({
      ext: xdr.ExtensionPoint.v0(),
      txChangesBefore: [],
      operations: [new xdr.OperationMeta({ changes: [] })],
      txChangesAfter: [],
      sorobanMeta: new xdr.SorobanTransactionMeta({
        ext: xdr.SorobanTransactionMetaExt.v0(),
        events: rows.map(contractEvent),
        returnValue: xdr.ScVal.scvVoid(),
        diagnosticEvents: rows.map(diagnosticEvent),
      }),
    }),
  );
}

/** null for the place of an operation. */
function stageOf(tx: number, op: number): xdr.TransactionEventStage | null {
  if (tx === 0) return xdr.TransactionEventStage.transactionEventStageBeforeAllTxs;
  if (tx === AFTER_ALL_TX) return xdr.TransactionEventStage.transactionEventStageAfterAllTxs;
  return op === AFTER_TRANSACTION_OP ? xdr.TransactionEventStage.transactionEventStageAfterTx : null;
}

function contractEvent({ id, type, contractId, topic = [], value }: EventRow): xdr.ContractEvent {
  try {
    return new xdr.ContractEvent({
      ext: xdr.ExtensionPoint.v0(),
      contractId: contractId === "" ? null : new xdr.ContractId(StrKey.decodeContract(contractId)),
      type: type === "system" ? xdr.ContractEventType.system : xdr.ContractEventType.contract,
      body: xdr.ContractEventBody.v0(
        new xdr.ContractEventV0({
          topics: topic.map((each) => xdr.ScVal.fromXdr(each, "base64")),
          data: xdr.ScVal.fromXdr(value, "base64"),
        }),
      ),
    });
  } catch (error) {
    throw new ChainError(`No ledger can hold event ${id}: ${(error as Error).message}`, { cause: error });
  }
}

function diagnosticEvent(row: EventRow): xdr.DiagnosticEvent {
  return new xdr.DiagnosticEvent({ inSuccessfulContractCall: true, event: contractEvent(row) });
}
