import { readAddressRules } from "../address/addressRules.ts";
import type { Source } from "../source/source.ts";
import { type ContractWithId, isDiscovered } from "./contract.ts";
import { type Projection, producedStream } from "./projection.ts";

export interface ConfigInput {
  /** The chain that the projections follow; left away where all of them follow producers. */
  readonly source?: Source;
  /** Further sources of the same chain, by name: for `fencepost backfill --source`. */
  readonly sources?: { readonly [name: string]: Source };
  readonly projections: readonly Projection[];
  /** Whether to go on, on the record, when the source no longer has the next ledger; "stop" unless given. */
  readonly onGap?: "stop" | "continue";
  /** How long a paused leader may hold up its successor, in milliseconds; 10,000 unless given. */
  readonly leaseMs?: number;
  /** Where webhooks and deliveries live; "postgres", the database of everything else, unless given. */
  readonly deliveries?: DeliveriesPlace;
  readonly deliver?: DeliverSettings;
  /** How long ended deliveries and the bodies of messages are kept, in milliseconds; 30 days unless given. */
  readonly retentionMs?: number;
  readonly audit?: AuditSettings;
  /** Serves the HTTP interface; left away, only `--port` does. */
  readonly http?: HttpSettings;
}

export interface AuditSettings {
  /**
   * While the engine runs, the last `ledgers` are read again through the providers of the source in turn, each time
   * `everyMs` milliseconds after the last (10 minutes unless given); what differs is an error in the log and a metric.
   */
  readonly secondOpinion?: { readonly ledgers: number; readonly everyMs?: number };
}

/** `redis` is a url, `redis://…` or `rediss://…`; every node that it takes to reach a cluster, with commas between. */
export type DeliveriesPlace = "postgres" | { readonly redis: string | undefined };

export interface DeliverSettings {
  /** Total time for one attempt, in milliseconds; 20,000 unless given. */
  readonly timeoutMs?: number;
  /** How long a claim is held, in milliseconds: the time-out and 15,000 unless given. */
  readonly leaseMs?: number;
  /** Deliveries held at once by one process; 256 unless given. */
  readonly maxInFlight?: number;
  /** Attempts under way at once to one origin, from one process; 16 unless given. */
  readonly connectionsPerOrigin?: number;
  /** Networks that may be sent to though they are not public, in CIDR notation, as `10.20.0.0/16`. */
  readonly allowNetworks?: readonly string[];
}

export interface HttpSettings {
  /** 0: one that is free. */
  readonly port: number;
  /** The address to listen on; 127.0.0.1 unless given. TLS is for a proxy in front. */
  readonly host?: string;
}

export interface Config extends Required<Omit<ConfigInput, "source" | "deliveries" | "audit" | "http">> {
  readonly kind: "config";
  /** Null: every projection follows a producer. */
  readonly source: Source | null;
  readonly deliveries: "postgres" | { readonly redis: string };
  /** Null: nothing is read again. */
  readonly secondOpinion: { readonly ledgers: number; readonly everyMs: number } | null;
  readonly http: Required<HttpSettings> | null;
}

/** A config is run and not type-checked: a name that is misspelt would be left out in silence. */
const OPTIONS: Readonly<Record<keyof ConfigInput, true>> = {
  source: true,
  sources: true,
  projections: true,
  onGap: true,
  leaseMs: true,
  deliveries: true,
  deliver: true,
  retentionMs: true,
  audit: true,
  http: true,
};
const DAY_MS = 86_400_000;

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
 * The whole of an installation: a source, and the projections that follow it or producers. Throws {@link DuplicateMessageTypeError},
 * or a `TypeError` that names what is missing.
 */
export function defineConfig(input: ConfigInput): Config {
  const {
    source,
    sources = {},
    projections,
    onGap = "stop",
    leaseMs = 10_000,
    deliver = {},
    retentionMs = 30 * DAY_MS,
  } = input;
  const unknown = Object.keys(input).find((name) => !Object.hasOwn(OPTIONS, name));
  if (unknown !== undefined) {
    throw new TypeError(`${unknown} is no option: use ${Object.keys(OPTIONS).join(", ")}.`);
  }
  if (!(projections?.length > 0)) {
    throw new TypeError("projections is empty: list what defineProjection() returned.");
  }
  checkSources(source, sources, projections);
  if (onGap !== "stop" && onGap !== "continue") {
    throw new TypeError(`onGap is ${JSON.stringify(onGap)}: use "stop" or "continue".`);
  }
  if (!(leaseMs >= 1_000 && leaseMs <= 600_000)) {
    throw new TypeError(`leaseMs is ${leaseMs}: use 1,000 to 600,000 milliseconds.`);
  }
  if (!(retentionMs >= DAY_MS / 24 && retentionMs <= 10_000 * DAY_MS)) {
    throw new TypeError(`retentionMs is ${retentionMs}: use an hour to 10,000 days, in milliseconds.`);
  }
  const deliveries = readDeliveriesPlace(input.deliveries ?? "postgres");
  const http = input.http ? readHttpSettings(input.http) : null;
  const secondOpinion = readSecondOpinion(input.audit?.secondOpinion, source);
  checkDeliverSettings(deliver);
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
  return {
    kind: "config",
    source: source ?? null,
    sources,
    projections,
    onGap,
    leaseMs,
    deliveries,
    deliver,
    retentionMs,
    secondOpinion,
    http,
  };
}

function readSecondOpinion(
  setting: AuditSettings["secondOpinion"],
  source: Source | undefined,
): Config["secondOpinion"] {
  if (!setting) return null;
  const { ledgers, everyMs = 600_000 } = setting;
  if (!(Number.isInteger(ledgers) && ledgers >= 1 && ledgers <= 100_000)) {
    throw new TypeError(`audit.secondOpinion.ledgers is ${ledgers}: use a whole number from 1 to 100,000.`);
  }
  if (!(everyMs >= 1_000 && everyMs <= DAY_MS)) {
    throw new TypeError(`audit.secondOpinion.everyMs is ${everyMs}: use a second to a day, in milliseconds.`);
  }
  if (!((source?.providers?.length ?? 0) > 1)) {
    throw new TypeError(
      "audit.secondOpinion needs a source with several providers: give stellarRpc() several urls.",
    );
  }
  return { ledgers, everyMs };
}

/** A chain is followed by those who name a source for it, and by nobody else. Throws a `TypeError`. */
function checkSources(
  source: Source | undefined,
  sources: { readonly [name: string]: Source },
  projections: readonly Projection[],
): void {
  const ofChain = projections.find((projection) => producedStream(projection) === undefined);
  if (ofChain && !source?.chain) {
    throw new TypeError(
      `source is missing: use source: stellarRpc({ … }). The projection ${ofChain.name} follows a chain.`,
    );
  }
  if (source && !ofChain) {
    throw new TypeError("source is given, but no projection watches a contract: leave it out.");
  }
  for (const [name, other] of Object.entries(sources)) {
    if (!other?.chain) throw new TypeError(`sources.${name} is no source: use dataLake({ … }).`);
    if (!source) throw new TypeError("sources is given without source: leave it out.");
    if (other.passphrase !== source.passphrase || other.chain.epoch !== source.chain.epoch) {
      throw new TypeError(`sources.${name} is of another chain than source: give both the same network.`);
    }
  }
}

function readDeliveriesPlace(place: DeliveriesPlace): Config["deliveries"] {
  if (place === "postgres") return place;
  const { redis } = place;
  if (!redis) throw new TypeError("deliveries.redis is empty: set it to the url of a Redis server.");
  const urls = redis.split(",");
  if (!urls.every((url) => URL.canParse(url) && /^rediss?:$/.test(new URL(url).protocol))) {
    throw new TypeError("deliveries.redis is no url: write redis://host:6379 or rediss://host:6379.");
  }
  return { redis };
}

/** Also for what the command line says. Throws a `TypeError`. */
export function readHttpSettings({ port, host = "127.0.0.1" }: HttpSettings): Required<HttpSettings> {
  if (!(Number.isInteger(port) && port >= 0 && port <= 65_535)) {
    throw new TypeError(`http.port is ${port}: use 0 to 65,535.`);
  }
  return { port, host };
}

/** Throws a `TypeError` or an `InvalidNetworkError`. How lease and time-out go together is checked at start. */
function checkDeliverSettings({ allowNetworks = [], ...numbers }: DeliverSettings): void {
  readAddressRules({ allowNetworks });
  for (const [name, value] of Object.entries(numbers)) {
    if (value !== undefined && !(Number.isInteger(value) && value >= 1)) {
      throw new TypeError(`deliver.${name} is ${value}: use a whole number from 1.`);
    }
  }
}

/** The stream that a projection of the config follows. */
export function streamOf({ source }: Pick<Config, "source">, projection: Projection): string {
  const stream = producedStream(projection) ?? source?.chain.stream;
  if (stream === undefined)
    throw new TypeError(`The projection ${projection.name} follows a chain: give source.`);
  return stream;
}

/** A contract that is watched because the config names it. */
type Watched = Pick<ContractWithId, "id" | "startLedger">;

/**
 * Every contract with an id that some projection watches, and the factories of those that are discovered. Throws a
 * `TypeError` where two start at different ledgers.
 */
export function watchedContracts(config: Config): readonly Watched[] {
  const byId = new Map<string, Watched>();
  for (const contract of config.projections.flatMap(({ contracts }) => Object.values(contracts))) {
    if ("stream" in contract) continue; // of a producer, not of the chain
    const { id, startLedger } = isDiscovered(contract) ? contract.id.factory : contract;
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
