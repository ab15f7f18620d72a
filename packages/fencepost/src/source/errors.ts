import type { StreamEpoch } from "@fencepost/token";
import type { LedgerRef } from "./source.ts";

/** The source did not answer in a usable way: try again later, or another url. `retryAfterMs` is its own wish. */
export class SourceUnavailableError extends Error {
  override readonly name = "SourceUnavailableError";
  readonly retryAfterMs: number | undefined;
  /** The HTTP status, where that was the answer. */
  readonly status: number | undefined;

  constructor(
    message: string,
    options: { retryAfterMs?: number | undefined; status?: number; cause?: unknown } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.retryAfterMs = options.retryAfterMs;
    this.status = options.status;
  }
}

/** The source serves another network than the config names. Nothing was read. */
export class WrongNetworkError extends Error {
  override readonly name = "WrongNetworkError";

  constructor(url: string, expected: string, found: string) {
    super(
      `${url} serves the network ${JSON.stringify(found)}, but the config asks for ${JSON.stringify(expected)}. ` +
        "Change source.network or the url.",
    );
  }
}

/** The node is older than v23: its event ids differ from those of every later node. */
export class UnsupportedRpcVersionError extends Error {
  override readonly name = "UnsupportedRpcVersionError";

  constructor(url: string, version: string) {
    super(
      `${url} runs Stellar RPC ${version}. Event ids changed in v23, so tokens of an older node would not be ` +
        "those of the chain. Use a node of v23 or later.",
    );
  }
}

/** An error that the node answered with, as JSON-RPC. */
export class RpcResponseError extends Error {
  override readonly name = "RpcResponseError";
  readonly code: number;

  constructor(where: string, code: number, text: string) {
    super(`${where} answered with error ${code}: ${text}`);
    this.code = code;
  }
}

/** The chain is not the one that was read before: the network was reset. Nothing of it is stored. */
export class ChainResetError extends Error {
  override readonly name = "ChainResetError";
  readonly anchor: LedgerRef;
  readonly found: LedgerRef;

  constructor({ stream, epoch }: StreamEpoch, anchor: LedgerRef, found: LedgerRef) {
    super(
      `${stream} is another chain than that of epoch ${epoch}: it had ${describe(anchor)}, and the source now has ` +
        `${describe(found)}. The network was reset, or the url names another one. Nothing of it was stored. To go ` +
        `on with the new chain, set source.network to { name: ${JSON.stringify(stream)}, passphrase, epoch } with ` +
        'the day it began, and run "fencepost epoch begin".',
    );
    this.anchor = anchor;
    this.found = found;
  }
}

function describe({ ledger, hash, closedAt }: LedgerRef): string {
  const at = new Date(closedAt * 1000).toISOString();
  return `ledger ${ledger} ${hash === null ? "" : `with hash ${hash} `}closed ${at}`;
}

/** The chain's newest ledger does not fit the day on which the config says that the chain began. */
export class EpochMismatchError extends Error {
  override readonly name = "EpochMismatchError";

  constructor(
    { stream, epoch }: StreamEpoch,
    newest: LedgerRef,
    { earliest, latest }: { readonly earliest: string; readonly latest: string },
  ) {
    super(
      `${stream}: ${describe(newest)}, so this chain began between ${earliest} and ${latest}, but its epoch is ` +
        `given as ${epoch}. Tokens of a wrong epoch would not be those of the chain. Set source.network to ` +
        `{ name: ${JSON.stringify(stream)}, passphrase, epoch } with the day it began; if this database has the ` +
        'life before, run "fencepost epoch begin" after that.',
    );
  }
}

/** The config wants classic events, and every node that answers has them switched off. */
export class NoClassicEventsError extends Error {
  override readonly name = "NoClassicEventsError";

  constructor(nodes: readonly string[]) {
    super(
      `source.classicEvents asks for the events of classic operations, but ${nodes.join(", ")} do not emit them. ` +
        "Use a node that does, or leave source.classicEvents out where no asset contract is watched.",
    );
  }
}
