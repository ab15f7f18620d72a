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
        'stored. Point the source at a node with longer retention, or set onGap: "continue" to accept the hole, ' +
        "which stays named in fencepost.gaps.",
    );
  }
}

/** This process watches other contracts than its stream does. */
export class FilterSetChangedError extends Error {
  override readonly name = "FilterSetChangedError";

  constructor(stream: string, added: readonly string[], removed: readonly string[]) {
    const changes = [...added.map((id) => `+${id}`), ...removed.map((id) => `-${id}`)].join(", ");
    super(
      `${stream} watches other contracts than this config (${changes}). Run "fencepost migrate" with the new ` +
        "config: added contracts are then read from their own start ledger.",
    );
  }
}

/** The stream's row belongs to another network, or to another epoch of this one. */
export class StreamMismatchError extends Error {
  override readonly name = "StreamMismatchError";

  constructor(stream: string, stored: string, given: string) {
    super(
      `The stream ${stream} in this database is of ${stored}, but the config names ${given}. Use another ` +
        "database, or correct source.network.",
    );
  }
}
