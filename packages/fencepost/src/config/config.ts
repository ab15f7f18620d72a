import type { Source } from "../source/source.ts";
import type { Contract } from "./contract.ts";
import type { Projection } from "./projection.ts";

export interface ConfigInput {
  readonly source: Source;
  readonly projections: readonly Projection[];
  /** Whether to go on, on the record, when the source no longer has the next ledger; "stop" unless given. */
  readonly onGap?: "stop" | "continue";
  /** How long a paused leader may hold up its successor, in milliseconds; 10,000 unless given. */
  readonly leaseMs?: number;
}

export interface Config extends Required<ConfigInput> {
  readonly kind: "config";
}

/** Two projections declare one message type: its id would not tell which of them made it. */
export class DuplicateMessageTypeError extends Error {
  override readonly name = "DuplicateMessageTypeError";

  constructor(type: string, first: string, second: string) {
    super(
      `The message type ${JSON.stringify(type)} is declared by the projections ${first} and ${second}. Rename one.`,
    );
  }
}

/**
 * The whole of an installation: a source and the projections that follow it. Throws {@link DuplicateMessageTypeError},
 * or a `TypeError` that names what is missing.
 */
export function defineConfig(input: ConfigInput): Config {
  const { source, projections, onGap = "stop", leaseMs = 10_000 } = input;
  if (!source?.chain) throw new TypeError("source is missing: use source: stellarRpc({ … }).");
  if (!(projections?.length > 0)) {
    throw new TypeError("projections is empty: list what defineProjection() returned.");
  }
  if (onGap !== "stop" && onGap !== "continue") {
    throw new TypeError(`onGap is ${JSON.stringify(onGap)}: use "stop" or "continue".`);
  }
  if (!(leaseMs >= 1_000 && leaseMs <= 600_000)) {
    throw new TypeError(`leaseMs is ${leaseMs}: use 1,000 to 600,000 milliseconds.`);
  }
  const names = new Set<string>();
  const typeOwners = new Map<string, string>();
  for (const projection of projections) {
    if (names.has(projection.name)) throw new TypeError(`Two projections are named ${projection.name}.`);
    names.add(projection.name);
    for (const type of Object.keys(projection.messages)) {
      const owner = typeOwners.get(type);
      if (owner !== undefined) throw new DuplicateMessageTypeError(type, owner, projection.name);
      typeOwners.set(type, projection.name);
    }
  }
  return { kind: "config", source, projections, onGap, leaseMs };
}

/** Every contract that some projection watches. Throws a `TypeError` where two start at different ledgers. */
export function watchedContracts(config: Config): readonly Pick<Contract, "id" | "startLedger">[] {
  const byId = new Map<string, Pick<Contract, "id" | "startLedger">>();
  for (const { id, startLedger } of config.projections.flatMap(({ contracts }) => Object.values(contracts))) {
    const known = byId.get(id);
    if (known && known.startLedger !== startLedger) {
      throw new TypeError(
        `Contract ${id} has the start ledgers ${known.startLedger} and ${startLedger}: use one.`,
      );
    }
    byId.set(id, { id, startLedger });
  }
  return [...byId.values()];
}
