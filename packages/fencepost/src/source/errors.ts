/** The source did not answer in a usable way: try again later, or another url. `retryAfterMs` is its own wish. */
export class SourceUnavailableError extends Error {
  override readonly name = "SourceUnavailableError";
  readonly retryAfterMs: number | undefined;

  constructor(message: string, options: { retryAfterMs?: number | undefined; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.retryAfterMs = options.retryAfterMs;
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
