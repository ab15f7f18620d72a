// A database with a stream of events, and projections stepped by hand: for tests of the project stage alone.
import { type FencingToken, formatRpcId } from "@fencepost/token";
import type { Projection } from "../../config/projection.ts";
import { identifyEvent } from "../../ingest/identify.ts";
import { type ProjectContext, projectStep } from "../../project/projectStep.ts";
import { registerProjection } from "../../project/registerProjection.ts";
import type { StepResult } from "../../runner/runner.ts";
import { type Database, openDatabase } from "../../store/postgres/database.ts";
import { acquireLease } from "../../store/postgres/leases.ts";
import { migrate } from "../../store/postgres/migrate.ts";
import { insertEvents, insertStream, lockStream } from "../../store/postgres/streams.ts";
import { type Decoder, loadDecoder } from "../../xdr/decode.ts";
import { createTestDatabase } from "./testDatabase.ts";
import { waitUntil } from "./waitUntil.ts";

const CHAIN = { stream: "testnet", epoch: "20251217" };
interface TestEvent {
  /** C… address. */
  readonly contract: string;
  readonly topics: readonly string[];
  readonly value: string;
}

export interface ProjectionDatabase {
  readonly database: Database;
  readonly url: string;
  readonly decoder: Decoder;
  /** Stores events, each in a ledger of its own, and returns their tokens. */
  append(events: readonly TestEvent[]): Promise<readonly FencingToken[]>;
  register(projection: Projection, rules?: { rebuildChanged?: boolean; rebuild?: boolean }): Promise<string>;
  /** Takes a projection over, whoever led it, and returns the term. */
  lead(projection: Projection): Promise<bigint>;
  step(projection: Projection, term: bigint, using?: Partial<ProjectContext>): Promise<StepResult>;
  /** Takes over and steps until nothing is left. */
  run(projection: Projection, using?: Partial<ProjectContext>): Promise<void>;
  rows<Row>(sql: string, values?: readonly unknown[]): Promise<Row[]>;
  close(): Promise<void>;
}

const silent = { debug() {}, info() {}, warn() {}, error() {} };
/** More steps than any test needs. */
const MAX_STEPS = 200;

export async function openProjectionDatabase(): Promise<ProjectionDatabase> {
  const testDatabase = await createTestDatabase();
  const database = openDatabase(testDatabase.url);
  const decoder = await loadDecoder();
  await migrate(database);
  await database.transaction((client) =>
    insertStream(client, { ...CHAIN, passphrase: "test", nextLedger: 1, filtersHash: "" }),
  );

  const append: ProjectionDatabase["append"] = (events) =>
    database.transaction(async (client) => {
      const stream = await lockStream(client, CHAIN.stream);
      if (!stream) throw new Error("The stream is not there.");
      const first = stream.nextLedger;
      const identified = events.map(({ contract, topics, value }, i) => {
        const ledger = first + i;
        const event = {
          id: formatRpcId({ ledger, tx: 1, op: 0, event: 0 }),
          type: "contract" as const,
          ledger,
          closedAt: new Date(Date.UTC(2026, 5, 19) + ledger * 5_000).toISOString(),
          contractId: contract,
          txHash: ledger.toString(16).padStart(64, "0"),
          topics,
          value,
        };
        return identifyEvent(CHAIN, event, decoder);
      });
      await insertEvents(client, stream, identified);
      await client.query("UPDATE fencepost.streams SET seq = seq + $1, next_ledger = next_ledger + $1", [
        events.length,
      ]);
      return identified.map((event) => event.token);
    });

  const register: ProjectionDatabase["register"] = (projection, rules = {}) =>
    registerProjection(database, projection, { stream: CHAIN.stream, rebuildChanged: false, ...rules });

  async function lead({ name, version }: Projection): Promise<bigint> {
    // A holder without a backend: the next one need not wait for it.
    const holder = { id: crypto.randomUUID(), pid: 0, startedAt: "2000-01-01" };
    const key = { kind: "projection", name, version } as const;
    const terms: bigint[] = [];
    // A connection that was cut holds the row until the server notices.
    await waitUntil(
      async () => {
        const term = await acquireLease(database, key, holder, 10_000);
        if (term !== null) terms.push(term);
        return term !== null;
      },
      { what: `${name} v${version} can be led` },
    );
    return terms[0] as bigint;
  }

  const step: ProjectionDatabase["step"] = (projection, term, using) =>
    projectStep({ database, projection, decoder, leaseMs: 10_000, log: silent, ...using }, term);

  return {
    database,
    url: testDatabase.url,
    decoder,
    append,
    register,
    lead,
    step,
    async run(projection, using) {
      const term = await lead(projection);
      for (let steps = 0; (await step(projection, term, using)) === "progress"; steps++) {
        if (steps > MAX_STEPS) throw new Error(`${projection.name} does not come to an end.`);
      }
    },
    async rows<Row>(sql: string, values?: readonly unknown[]) {
      const { rows } = await database.query(sql, values);
      return rows as Row[];
    },
    async close() {
      await database.close();
      await testDatabase.drop();
    },
  };
}
