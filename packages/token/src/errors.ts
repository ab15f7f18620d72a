/** Thrown for anything that is not a fencing token, an RPC event id or an event id. Says what is wrong and where. */
export class InvalidTokenError extends Error {
  override readonly name = "InvalidTokenError";
  /** The text that was refused, cut to 200 characters. */
  readonly input: string;
  /** Index of the first wrong character in `input`. */
  readonly at: number;

  constructor(what: string, input: unknown, at: number) {
    const text = (typeof input === "string" ? input : String(input)).slice(0, 200);
    super(`${what} at character ${at} of ${JSON.stringify(text)}.`);
    this.input = text;
    this.at = at;
  }
}

/** Thrown when two tokens have no order: they belong to different streams, or to different kinds of stream. */
export class IncomparableTokensError extends Error {
  override readonly name = "IncomparableTokensError";
  readonly left: string;
  readonly right: string;

  constructor(left: string, right: string) {
    super(
      `${left} and ${right} belong to different streams, so neither comes first. ` +
        "Keep one last token for each stream and compare inside it.",
    );
    this.left = left;
    this.right = right;
  }
}
