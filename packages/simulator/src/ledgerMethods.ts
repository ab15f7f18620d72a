// The methods beside getEvents. A node writes the close time of one ledger as a string and those of its range as
// numbers, and by `headerXdr` means the entry of the header in getLedgers, but the header alone in getLatestLedger.
import type { Ledger } from "./chain.ts";
import {
  INTERNAL_ERROR,
  INVALID_PARAMS,
  INVALID_REQUEST,
  RpcError,
  requireLedgers,
  type View,
} from "./getEvents.ts";
import { servedXdr } from "./ledgerXdr.ts";

const MAX_LEDGERS_PAGE = 200;
const DEFAULT_LEDGERS_PAGE = 50;

export function getHealth(view: View, unhealthy: boolean) {
  if (view.latest < view.chain.first) {
    throw new RpcError(INTERNAL_ERROR, "data stores are not initialized: DB is empty");
  }
  if (unhealthy) {
    throw new RpcError(INTERNAL_ERROR, "latency (1m0s) since last known ledger closed is too high (>30s)");
  }
  return {
    status: "healthy",
    ...numericRange(view),
    ledgerRetentionWindow: view.chain.retention,
  };
}

export function getLatestLedger(view: View) {
  requireLedgers(view);
  const ledger = ledgerAt(view, view.latest);
  const { header, metadata } = servedXdr(view.chain, ledger);
  return {
    id: ledger.hash,
    protocolVersion: view.chain.protocolVersion,
    sequence: ledger.sequence,
    closeTime: String(ledger.closedAt),
    headerXdr: header,
    metadataXdr: metadata,
  };
}

export function getLedgers(view: View, params: object) {
  requireLedgers(view);
  const { startLedger = 0, pagination } = params as {
    startLedger?: number;
    pagination?: Record<string, unknown>;
  };
  const { cursor = "", limit = 0 } = pagination ?? {};
  const { oldest, latest } = view;
  const edges = `the oldest ledger: ${oldest} and the latest ledger: ${latest} for this rpc instance`;
  if (typeof cursor !== "string" || !/^\d*$/.test(cursor) || !Number.isInteger(startLedger)) {
    throw new RpcError(
      INVALID_PARAMS,
      "invalid parameters: startLedger is an integer and cursor a string of digits",
    );
  }
  if (typeof limit !== "number" || !Number.isInteger(limit) || limit < 0) {
    throw new RpcError(INVALID_PARAMS, "invalid parameters: limit must be an unsigned integer");
  }
  if (limit > MAX_LEDGERS_PAGE) {
    throw new RpcError(INVALID_REQUEST, `limit must not exceed ${MAX_LEDGERS_PAGE}`);
  }
  if (cursor !== "" && startLedger !== 0) {
    throw new RpcError(
      INVALID_REQUEST,
      `startLedger (${startLedger}) and cursor (${cursor}) cannot both be set`,
    );
  }
  const start = cursor === "" ? startLedger : Number(cursor) + 1;
  if (start < oldest || start > latest) {
    throw cursor === ""
      ? new RpcError(INVALID_REQUEST, `start ledger (${start}) must be between ${edges}`)
      : new RpcError(INVALID_PARAMS, `cursor ('${cursor}') must be between ${edges}`);
  }
  const end = Math.min(latest, start + (limit || DEFAULT_LEDGERS_PAGE) - 1);
  const ledgers = Array.from({ length: end - start + 1 }, (_, i) => {
    const ledger = ledgerAt(view, start + i);
    const { hash, sequence, closedAt } = ledger;
    const { entry, metadata } = servedXdr(view.chain, ledger);
    return {
      hash,
      sequence,
      ledgerCloseTime: String(closedAt),
      headerXdr: entry,
      metadataXdr: metadata,
    };
  });
  return { ledgers, ...numericRange(view), cursor: String(end) };
}

export function getNetwork({ chain }: View) {
  return { passphrase: chain.passphrase, protocolVersion: chain.protocolVersion };
}

export function getVersionInfo({ chain }: View, version: string) {
  return {
    version,
    commitHash: "0".repeat(40),
    buildTimestamp: "2026-01-01T00:00:00",
    captiveCoreVersion: "simulated",
    protocolVersion: chain.protocolVersion,
  };
}

/** The ledger range, with close times as numbers: other than in `getEvents`. */
function numericRange(view: View) {
  return {
    latestLedger: view.latest,
    latestLedgerCloseTime: ledgerAt(view, view.latest).closedAt,
    oldestLedger: view.oldest,
    oldestLedgerCloseTime: ledgerAt(view, view.oldest).closedAt,
  };
}

function ledgerAt({ chain }: View, sequence: number): Ledger {
  const ledger = chain.ledger(sequence);
  if (!ledger) throw new RpcError(INTERNAL_ERROR, `ledger ${sequence} is not in the DB`);
  return ledger;
}
