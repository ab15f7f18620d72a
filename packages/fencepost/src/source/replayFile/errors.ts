/** What is wrong with a recorded file. Nothing of the window that was asked for is given. */
export type ReplayFault =
  /** A line is not what it should be. */
  | "garbled"
  /** An event is not after the one before it. */
  | "out of order"
  /** The file, or one of its lines, is of another chain, or of other ledgers than its header says. */
  | "of another chain"
  /** It ends before its end. */
  | "cut off";

export class ReplayFileError extends Error {
  override readonly name = "ReplayFileError";
  readonly path: string;
  readonly fault: ReplayFault;
  /** Of the line, in bytes from the beginning of the file. */
  readonly offset: number;

  constructor(path: string, fault: ReplayFault, offset: number, detail: string) {
    super(
      `The recorded file ${path} is ${fault} at byte ${offset}: ${detail}. Nothing of that window was taken. ` +
        'Write the file anew with "fencepost export", or read these ledgers from another source.',
    );
    this.path = path;
    this.fault = fault;
    this.offset = offset;
  }
}

/** There is no such file, or it cannot be read. */
export class ReplayFileUnreadableError extends Error {
  override readonly name = "ReplayFileUnreadableError";

  constructor(path: string, cause: Error) {
    super(
      `The recorded file ${path} cannot be read: ${cause.message}. Check the path that replay() is given; ` +
        '"fencepost export" writes such files.',
      { cause },
    );
  }
}

/** A contract is asked for that the file was not written for. */
export class ContractNotRecordedError extends Error {
  override readonly name = "ContractNotRecordedError";

  constructor(path: string, contractId: string) {
    super(
      `The recorded file ${path} is not complete for the contract ${contractId}. Use a file that was written with ` +
        "it, or another source.",
    );
  }
}
