import { formatRpcId } from "@fencepost/token";
import { type EventRow, isoTime, transactionHash } from "./chain.ts";
import { seededRandom } from "./random.ts";
import { accountId, address, i128, sym } from "./scval.ts";

const EVENTS_PER_OPERATION = 2;
const OPERATIONS_PER_TRANSACTION = 2;
const ACCOUNTS = 64;

/**
 * Transfers for `chain.closeMany`, to fill a chain for benchmarks: `eventsPerLedger` rows a ledger, each
 * `transfer(from, to) -> i128` of one of the contracts. Rows are made when they are read and follow from the seed
 * and the sequence alone, so a chain of 200,000 events holds none of them.
 */
export function transfers(options: {
  readonly passphrase: string;
  readonly contracts: readonly string[];
  readonly eventsPerLedger: number;
  readonly seed: number;
}): (sequence: number, closedAt: number) => EventRow[] {
  const { passphrase, contracts, eventsPerLedger, seed } = options;
  const topic = sym("transfer");
  const accounts = Array.from({ length: ACCOUNTS }, (_, i) => address(accountId(`bulk ${i}`)));
  const amount = Buffer.from(i128(0n), "base64"); // a template: the amount is written into its last bytes

  return (sequence, closedAt) => {
    const random = seededRandom(seed + sequence);
    const pick = (items: readonly string[]): string => items[random.int(0, items.length - 1)] ?? "";
    const ledgerClosedAt = isoTime(closedAt);
    const rows: EventRow[] = [];
    let txHash = "";
    let operationId = "";
    for (let i = 0; i < eventsPerLedger; i++) {
      const operation = Math.floor(i / EVENTS_PER_OPERATION);
      const tx = 1 + Math.floor(operation / OPERATIONS_PER_TRANSACTION);
      const op = operation % OPERATIONS_PER_TRANSACTION;
      const event = i % EVENTS_PER_OPERATION;
      if (event === 0) operationId = formatRpcId({ ledger: sequence, tx, op, event }).slice(0, -1);
      if (op === 0 && event === 0) txHash = transactionHash(passphrase, sequence, tx);
      amount.writeUInt32BE(random.int(1, 4_000_000_000), amount.length - 4);
      rows.push({
        type: "contract",
        ledger: sequence,
        ledgerClosedAt,
        contractId: pick(contracts),
        id: `${operationId}${event}`, // below 10 events an operation
        operationIndex: op,
        transactionIndex: tx,
        txHash,
        inSuccessfulContractCall: true,
        topic: [topic, pick(accounts), pick(accounts)],
        value: amount.toString("base64"),
      });
    }
    return rows;
  };
}
