/** What is wrong with an object: it, or nothing of it, is taken. */
export type ObjectFault =
  /** It ends before its end. */
  | "truncated"
  /** It is not what an object of a lake is. */
  | "garbled"
  /** It, or what it unpacks to, is larger than any batch of ledgers. */
  | "too large"
  /** It holds other ledgers than its name says. */
  | "other ledgers";

/** An object of the lake cannot be read. Nothing of it was taken; it is read anew when asked again. */
export class LakeObjectError extends Error {
  override readonly name = "LakeObjectError";
  readonly key: string;
  readonly fault: ObjectFault;

  constructor(where: string, key: string, fault: ObjectFault, detail: string, cause?: unknown) {
    super(
      `The object ${key} of the lake ${where} is ${fault === "other ledgers" ? "of other ledgers" : fault}: ` +
        `${detail} Write it anew, or read these ledgers from another source.`,
      cause === undefined ? undefined : { cause },
    );
    this.key = key;
    this.fault = fault;
  }
}

/** The lake does not say, or not in a way that is known here, how it is laid out. */
export class LakeConfigError extends Error {
  override readonly name = "LakeConfigError";

  constructor(where: string, detail: string) {
    super(
      `The lake ${where} cannot be read: ${detail} ` +
        "Check source.url; for a lake without .config.json, give source.layout.",
    );
  }
}

/** A ledger does not follow the one before it: one of the two is not of this chain. */
export class LedgerChainError extends Error {
  override readonly name = "LedgerChainError";
  readonly ledger: number;

  constructor(where: string, ledger: number, previousHash: string, found: string) {
    super(
      `In the lake ${where}, ledger ${ledger} follows a ledger with the hash ${previousHash}, but ledger ` +
        `${ledger - 1} has the hash ${found}: one of them is of another chain. Nothing of ledger ${ledger} was taken. ` +
        "Write the two anew, or read them from another source.",
    );
    this.ledger = ledger;
  }
}
