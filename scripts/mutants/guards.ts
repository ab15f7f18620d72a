import type { TestName } from "./runTest.ts";

/** One guard of the line: what removes it, and the test that must then fail. */
export interface Guard {
  readonly guard: string;
  readonly patches: readonly Patch[];
  readonly test: TestName;
}

/** Replaces every `find` of a file, of which there must be at least one. */
interface Patch {
  readonly file: string;
  readonly find: string;
  readonly replace: string;
}

const src = "packages/fencepost/src";
const schema = `${src}/store/postgres/migrations/0001_pipeline.sql`;
const streams = `${src}/store/postgres/streams.ts`;
const projections = `${src}/store/postgres/projections.ts`;
const deliveries = `${src}/store/postgres/deliveries.ts`;
const messages = `${src}/store/postgres/messages.ts`;

const named =
  (file: string) =>
  (name: string): TestName => ({ file, name });
const atTheStatement = named(`${src}/store/postgres/guards.test.ts`);
const ofTheStore = named(`${src}/store/conformance/postgres.test.ts`);
const ofIngest = named(`${src}/ingest/ingestStep.test.ts`);
const ofTheInbox = named("packages/receiver/src/postgresInbox.test.ts");
const wholeLine: TestName = {
  file: `${src}/__tests__/integration/exactlyOnceDelivery.integration.test.ts`,
  name: "each unique event becomes exactly one webhook",
};
const kills: TestName = {
  file: `${src}/__tests__/integration/crashes.integration.test.ts`,
  name: "times loses nothing and repeats nothing",
};

/** In the order data flows. Where guards overlap end to end, the test is one at the guard itself. */
export const guards: readonly Guard[] = [
  {
    guard: "ingest: a token is unique",
    patches: [
      {
        file: schema,
        find: 'token        text COLLATE "C" PRIMARY KEY',
        replace: 'token        text COLLATE "C"',
      },
    ],
    test: atTheStatement("admits a token to the events once"),
  },
  {
    guard: "ingest: what is stored is not stored again",
    patches: [
      {
        file: streams,
        find: 'WHERE NOT EXISTS (SELECT FROM fencepost.events e WHERE e.token = i.token COLLATE "C")',
        replace: "",
      },
    ],
    test: ofIngest("that is read again stores nothing new, and gives no seq away"),
  },
  {
    guard: "ingest: other content under a token is an alarm",
    patches: [
      {
        file: `${src}/ingest/decideStored.ts`,
        find: '? "replay" : "conflict"',
        replace: '? "replay" : "replay"',
      },
    ],
    test: ofIngest("is committed to conflicts, stores nothing else of its window, and stops the stream"),
  },
  {
    guard: "ingest: the compare-and-set names the term",
    patches: [
      {
        file: streams,
        find: "WHERE stream = $1 AND term = $2 AND next_ledger = $3 AND filters_hash = $4",
        replace: "WHERE stream = $1 AND $2::bigint >= 0 AND next_ledger = $3 AND filters_hash = $4",
      },
    ],
    test: atTheStatement("does not move it under another term"),
  },
  {
    guard: "ingest: the compare-and-set names the ledger",
    patches: [
      {
        file: streams,
        find: "WHERE stream = $1 AND term = $2 AND next_ledger = $3 AND filters_hash = $4",
        replace: "WHERE stream = $1 AND term = $2 AND $3::bigint >= 0 AND filters_hash = $4",
      },
    ],
    test: atTheStatement("does not move it from another ledger"),
  },
  {
    guard: "ingest: the compare-and-set names the filter set",
    patches: [
      {
        file: streams,
        find: "WHERE stream = $1 AND term = $2 AND next_ledger = $3 AND filters_hash = $4",
        replace: "WHERE stream = $1 AND term = $2 AND next_ledger = $3 AND $4::text IS NOT NULL",
      },
    ],
    test: atTheStatement("does not move it with another filter set"),
  },
  {
    guard: "ingest: contracts that lag move only from where they are",
    patches: [
      {
        file: streams,
        find: "WHERE stream = $1 AND contract_id = ANY($2) AND next_ledger = $3",
        replace: "WHERE stream = $1 AND contract_id = ANY($2) AND $3::bigint >= 0",
      },
    ],
    test: atTheStatement("moves contracts that lag only from where they are"),
  },
  {
    guard: "ingest and project: the term is checked under the row's lock",
    patches: [{ file: `${src}/lease/term.ts`, find: "|| stored.term !== mine.term", replace: "" }],
    test: named(`${src}/lease/term.test.ts`)("a commit that finds a later term is decided so"),
  },
  {
    guard: "ingest and project: a COMMIT that became a ROLLBACK is noticed",
    patches: [
      {
        file: `${src}/store/postgres/database.ts`,
        find: 'if (command !== "COMMIT")',
        replace: "if (command === undefined)",
      },
    ],
    test: named(`${src}/store/postgres/database.test.ts`)(
      "an SQL error that was swallowed is noticed at the COMMIT",
    ),
  },
  {
    guard: "project: the compare-and-set names the term",
    patches: [
      {
        file: projections,
        find: "WHERE name = $1 AND version = $2 AND term = $3 AND cursor = $4`",
        replace: "WHERE name = $1 AND version = $2 AND $3::bigint >= 0 AND cursor = $4`",
      },
    ],
    test: atTheStatement("does not move it under another term"),
  },
  {
    guard: "project: the compare-and-set names the seq",
    patches: [
      {
        file: projections,
        find: "WHERE name = $1 AND version = $2 AND term = $3 AND cursor = $4`",
        replace: "WHERE name = $1 AND version = $2 AND term = $3 AND $4::bigint >= 0`",
      },
    ],
    test: atTheStatement("does not move it from another seq"),
  },
  {
    guard: "project: an event id is unique",
    patches: [
      {
        file: schema,
        find: 'event_id     text COLLATE "C" PRIMARY KEY',
        replace: 'event_id     text COLLATE "C"',
      },
      // Its bodies refer to the key: without it, neither can they.
      { file: schema, find: " REFERENCES fencepost.messages ON DELETE CASCADE", replace: "" },
    ],
    test: atTheStatement("admits an event id to the messages once"),
  },
  {
    guard: "project and dispatch: one event id has one content",
    patches: [
      {
        file: `${src}/message/decideMessage.ts`,
        find: '? "existing" : "mismatch"',
        replace: '? "existing" : "existing"',
      },
    ],
    test: ofTheStore("refuses the same event id with another type or other data"),
  },
  {
    guard: "project and dispatch: only new messages enter the outbox",
    patches: [
      {
        file: messages,
        find: "SELECT event_id FROM input JOIN new USING (event_id) WHERE $7 = 'emitted'",
        replace: "SELECT event_id FROM input WHERE $7 = 'emitted'",
      },
    ],
    test: named(`${src}/store/postgres/messages.test.ts`)(
      "whatever is stored again, in whatever batches, changes nothing",
    ),
  },
  {
    guard: "dispatch: a webhook and an event id are unique",
    patches: [{ file: schema, find: "  UNIQUE (event_id, webhook_id)", replace: "  CHECK (true)" }],
    test: atTheStatement("admits a webhook and an event id to the deliveries once"),
  },
  {
    guard: "dispatch: with no unique pair, every caller makes a delivery of its own",
    patches: [
      { file: schema, find: "  UNIQUE (event_id, webhook_id)", replace: "  CHECK (true)" },
      { file: deliveries, find: "ON CONFLICT (event_id, webhook_id) DO NOTHING", replace: "" },
    ],
    test: named(`${src}/store/postgres/deliveries.test.ts`)("make one delivery and return the same record"),
  },
  {
    guard: "deliver: the attempt is on record before its bytes leave",
    patches: [{ file: deliveries, find: "SET attempted = true,", replace: "SET attempted = false," }],
    test: kills,
  },
  {
    guard: "deliver: an attempt names the fence of its claim",
    patches: [
      {
        file: deliveries,
        find: "q.fence = $2 AND NOT q.attempted AND w.active",
        replace: "$2::bigint > 0 AND NOT q.attempted AND w.active",
      },
    ],
    test: ofTheStore("is refused to a worker that lost its claim, and to one that never had it"),
  },
  {
    guard: "deliver: one live attempt under a claim",
    patches: [
      {
        file: deliveries,
        find: "AND q.fence = $2 AND NOT q.attempted AND w.active\n         AND d.state = 'pending'",
        replace: "AND q.fence = $2 AND w.active\n        ",
      },
    ],
    test: ofTheStore("is refused a second time under the same claim"),
  },
  {
    guard: "deliver: an attempt only where its delivery is pending",
    patches: [
      {
        file: deliveries,
        find: "AND d.state = 'pending' AND d.last_timestamp",
        replace: "AND d.last_timestamp",
      },
    ],
    test: wholeLine,
  },
  {
    guard: "deliver: an attempt without an outcome is settled, not repeated",
    patches: [
      {
        file: `${src}/store/decideDelivery.ts`,
        find: 'claim.interrupted ? "settle_unknown" : "attempt"',
        replace: 'claim.interrupted ? "attempt" : "attempt"',
      },
    ],
    test: named(`${src}/store/decideDelivery.test.ts`)("settles a claim whose last attempt has no outcome"),
  },
  {
    guard: "deliver: an outcome names the fence of its claim, in the decision",
    patches: [
      {
        file: `${src}/store/decideDelivery.ts`,
        find: "return storedFence === fence;",
        replace: "return storedFence !== undefined || storedFence === fence;",
      },
    ],
    test: named(`${src}/store/decideDelivery.test.ts`)(
      "counts a write of a claim only under the very fence that is stored",
    ),
  },
  {
    guard: "deliver: an outcome names the fence of its claim, in the decision and the statement",
    patches: [
      {
        file: `${src}/store/decideDelivery.ts`,
        find: "return storedFence === fence;",
        replace: "return storedFence !== undefined || storedFence === fence;",
      },
      {
        file: deliveries,
        find: "ON q.delivery_id = input.id AND q.fence = $2",
        replace: "ON q.delivery_id = input.id AND $2::bigint > 0",
      },
    ],
    test: ofTheStore("under a lost claim cannot end a delivery that another worker is sending"),
  },
  {
    guard: "receive: an event in the inbox is not applied again",
    patches: [
      {
        file: "packages/receiver/src/decide.ts",
        find: 'if (inbox === "present") return "already";',
        replace: 'if (inbox === "present") return "apply";',
      },
    ],
    test: ofTheInbox("eight times at once has one effect"),
  },
];
