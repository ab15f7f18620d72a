import type { FencingToken } from "@fencepost/token";

/** The same token came with other content: the chain, a node or the database is wrong. The stream stops. */
export class EventConflictError extends Error {
  override readonly name = "EventConflictError";
  readonly token: FencingToken;

  constructor(token: FencingToken) {
    super(
      `${token} is stored with other content than the source gives now. Both are in fencepost.conflicts; the ` +
        "stream stops. Compare them with a second node, then clear fencepost.streams.halted.",
    );
    this.token = token;
  }
}

/** The source no longer has the next ledger. The stream stops, unless `onGap: "continue"` says to go on. */
export class GapError extends Error {
  override readonly name = "GapError";

  constructor(stream: string, fromLedger: number, throughLedger: number) {
    super(
      `${stream}: the source no longer has ledgers ${fromLedger} to ${throughLedger}, so their events cannot be ` +
        "stored. Point the source at a node with longer retention, fill them from another source with " +
        `"fencepost backfill --from ${fromLedger} --to ${throughLedger} --source …", or set onGap: "continue" to ` +
        "accept the hole, which stays named in fencepost.gaps.",
    );
  }
}

/** What the filters of a stream are to be, against what they are. */
export interface FilterChange {
  readonly added: readonly string[];
  readonly removed: readonly string[];
  /** Contracts that start at an earlier ledger than they did. */
  readonly widened: readonly string[];
}

/** This process watches other contracts than its stream does, or from an earlier ledger on. */
export class FilterSetChangedError extends Error {
  override readonly name = "FilterSetChangedError";

  constructor(stream: string, { added, removed, widened }: FilterChange) {
    const changes = [
      ...added.map((id) => `+${id}`),
      ...removed.map((id) => `-${id}`),
      ...widened.map((id) => `${id} from an earlier ledger`),
    ].join(", ");
    super(
      `${stream} watches other contracts than this config (${changes || "found by other rules"}). Run "fencepost ` +
        'migrate" with the new config: what is added is then read from its own start ledger.',
    );
  }
}

/** The stream's row belongs to another network, or to another epoch of this one. */
export class StreamMismatchError extends Error {
  override readonly name = "StreamMismatchError";

  constructor(stream: string, stored: string, given: string) {
    super(
      `The stream ${stream} in this database is of ${stored}, but the config names ${given}. Use another ` +
        'database, correct source.network, or run "fencepost epoch begin" where the network was reset.',
    );
  }
}

/** A backfill was asked for ledgers that it cannot fill. */
export class BackfillRangeError extends Error {
  override readonly name = "BackfillRangeError";
}

/** A producer gave a number again, with other content. The first stays; nothing of the call was stored. */
export class ProducedConflictError extends Error {
  override readonly name = "ProducedConflictError";
  readonly token: FencingToken;

  constructor(token: FencingToken) {
    super(
      `${token} is stored with another type, other data or another time, and one number stands for one event. Use ` +
        "the next number for a new event.",
    );
    this.token = token;
  }
}

/** The stream cannot be that of this producer. Nothing was stored. */
export class ProducerStreamError extends Error {
  override readonly name = "ProducerStreamError";

  constructor(stream: string, why: string) {
    super(`The stream ${stream} ${why}, so a producer cannot add to it. Use another name, or its own epoch.`);
  }
}
