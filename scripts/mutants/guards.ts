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
const deliveries = `${src}/store/postgres/claims.ts`;
const dispatching = `${src}/store/postgres/dispatching.ts`;
const upkeep = `${src}/store/postgres/upkeep.ts`;
const deliverySchema = `${src}/store/postgres/migrations/0002_delivery.sql`;
const messages = `${src}/store/postgres/messages.ts`;
const decisions = `${src}/store/decideDelivery.ts`;

const named =
  (file: string) =>
  (name: string): TestName => ({ file, name });
const atTheStatement = named(`${src}/store/postgres/guards.test.ts`);
const ofTheStore = named(`${src}/store/conformance/postgres.test.ts`);
const ofPostgres = named(`${src}/store/postgres/postgresStore.test.ts`);
const ofTheStage = named(`${src}/deliver/postgres.test.ts`);
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
        file: `${src}/ingest/decideStored.ts`,
        find: "const hashes = new Map(stored);",
        replace: "const hashes = new Map<FencingToken, Buffer>();",
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
    guard: "ingest: contracts whose start was set back move only from where they are",
    patches: [
      {
        file: streams,
        find: "WHERE stream = $1 AND contract_id = ANY($2) AND earlier_next = $3",
        replace: "WHERE stream = $1 AND contract_id = ANY($2) AND $3::bigint >= 0",
      },
    ],
    test: atTheStatement("moves contracts whose start was set back only from where they are"),
  },
  {
    guard: "ingest: a backfill moves the cursor only for contracts that it has read",
    patches: [
      {
        file: `${src}/ingest/backfill.ts`,
        find: "if (!sameFilters(present, watches)) changed = present;",
        replace: "if (present.length === 0) changed = present;",
      },
    ],
    test: named(`${src}/ingest/backfill.test.ts`)(
      "a contract that is added meanwhile is read too, before the cursor moves on",
    ),
  },
  {
    guard: "ingest: another life of the chain is told by its close times",
    patches: [
      {
        file: `${src}/source/chainLife.ts`,
        find: "return ledger < anchor.ledger ? closedAt > anchor.closedAt : closedAt < anchor.closedAt;",
        replace: "return false;",
      },
    ],
    test: named(`${src}/source/chainLife.test.ts`)(
      "contradicts it wherever a later life of the chain has a ledger up to it, without its hash too",
    ),
  },
  {
    guard: "ingest: a stream goes on beyond a hole only on a chain of its epoch",
    patches: [
      {
        file: `${src}/ingest/ingestStep.ts`,
        find: "if (accepted) await source.check(signal, read.anchor ?? undefined);",
        replace: "",
      },
    ],
    test: named(`${src}/ingest/chainReset.test.ts`)(
      "a reset that took the anchor with it is found by the epoch, before the stream goes on beyond the hole",
    ),
  },
  {
    guard: "project: a projection waits until a new rule looked at every stored event",
    patches: [
      {
        file: `${src}/project/projectStep.ts`,
        find: 'if (!row.discovered && contractsToRead(projection).rules.length > 0) return "idle";',
        replace: "",
      },
    ],
    test: named(`${src}/discovery.test.ts`)("waits until the rule looked at everything"),
  },
  {
    guard: "project: a found contract is projected from the ledger that made it",
    patches: [{ file: projections, find: "AND d.ledger <= e.ledger", replace: "" }],
    test: named(`${src}/discovery.test.ts`)("waits until the rule looked at everything"),
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
        find: "SELECT position, event_id FROM input JOIN new USING (event_id) WHERE $7 = 'emitted'",
        replace: "SELECT position, event_id FROM input WHERE $7 = 'emitted'",
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
      { file: dispatching, find: "ON CONFLICT (event_id, webhook_id) DO NOTHING", replace: "" },
    ],
    test: ofPostgres("make one delivery also where the message was there before and its webhook was not"),
  },
  {
    guard: "dispatch: the types of the system are not meant by *",
    patches: [{ file: deliverySchema, find: "AND NOT starts_with(type, 'webhook.')", replace: "" }],
    test: ofTheStore("of a type of the system reaches only webhooks that name it"),
  },
  {
    guard: "dispatch: a fan-out gives a strict webhook the position of the message",
    patches: [{ file: dispatching, find: "CASE WHEN strict THEN position END", replace: "NULL::bigint" }],
    test: ofTheStore("gets messages in the order in which they were emitted, in one batch and in many"),
  },
  {
    guard: "dispatch: what a webhook may have forgotten is not made by a dispatch",
    patches: [
      {
        file: dispatching,
        find: "m.created_at <= w.pruned_until, false)) AS forgotten",
        replace: "false)) AS forgotten",
      },
    ],
    test: ofTheStore("names the webhooks of which it cannot be known, where a message is dispatched again"),
  },
  {
    guard: "dispatch: what a webhook may have forgotten is not made by a catch-up or a replay",
    patches: [
      {
        file: dispatching,
        find: "coalesce(m.created_at <= w.pruned_until, false) AS old",
        replace: "false AS old",
      },
    ],
    test: ofTheStore("of a webhook is remembered by it"),
  },
  {
    guard: "dispatch: what is missing is decided in one snapshot with what was pruned",
    patches: [{ file: dispatching, find: "AND ($3 OR NOT EXISTS (", replace: "AND (true OR NOT EXISTS (" }],
    test: ofPostgres("while a dispatch or a replay is in the middle does not have them made anew"),
  },
  {
    guard: "dispatch: a catch-up and a replay hold the bodies of what they make",
    patches: [{ file: dispatching, find: "FOR KEY SHARE OF b", replace: "" }],
    test: ofPostgres("does not take the body of a message that a replay holds"),
  },
  {
    guard: "dispatch: a dispatch holds the message that it finds",
    patches: [
      { file: messages, find: 'keep: origin === "dispatched" || origin === "test"', replace: "keep: false" },
    ],
    test: ofPostgres("does not take a message that a dispatch holds"),
  },
  {
    guard: "upkeep: a pruning step locks what it looks at before it decides",
    patches: [{ file: upkeep, find: "FOR UPDATE OF m, b SKIP LOCKED", replace: "" }],
    test: ofPostgres("does not take the body of a message that a replay holds"),
  },
  {
    guard: "upkeep: what waits for its fan-out keeps its body",
    patches: [
      {
        file: upkeep,
        find: "AND NOT EXISTS (SELECT FROM fencepost.outbox o WHERE o.event_id = m.event_id)",
        replace: "",
      },
    ],
    test: ofTheStore("does not take a message that waits for its fan-out"),
  },
  {
    guard: "upkeep: what blocks a strict webhook stays",
    patches: [
      { file: upkeep, find: "AND (d.strict_position IS NULL OR w.deleted_at IS NOT NULL)", replace: "" },
    ],
    test: ofTheStore("leaves what blocks a strict webhook, until it is skipped"),
  },
  {
    guard: "upkeep: an attempt to a deleted webhook that is under way is left to its worker",
    patches: [{ file: upkeep, find: "AND NOT (q.attempted AND q.next_at > now())", replace: "" }],
    test: ofTheStore("has an attempt that is under way recorded, and never sent again"),
  },
  {
    guard: "deliver: the attempt is on record before its bytes leave",
    patches: [{ file: deliveries, find: "SET attempted = true,", replace: "SET attempted = false," }],
    test: kills,
  },
  {
    guard: "deliver: a webhook's limit holds over all workers",
    patches: [
      {
        file: deliveries,
        find: "OR paced.free_at = lanes.free_at)",
        replace: "OR paced.free_at IS NOT NULL)",
      },
    ],
    test: ofTheStore("has no more claimed than that, by however many workers at once"),
  },
  {
    guard: "deliver: claims of a strict webhook exclude each other",
    patches: [{ file: deliveries, find: "CASE WHEN w.strict THEN 1 END", replace: "NULL" }],
    test: ofPostgres("claims one delivery of a strict webhook at a time"),
  },
  {
    guard: "deliver: a strict webhook waits for what its outbox may hold",
    patches: [
      {
        file: deliveries,
        find: "AND NOT EXISTS (SELECT FROM fencepost.outbox o WHERE o.position < head.strict_position)",
        replace: "",
      },
    ],
    test: ofTheStore("waits for the outbox, which may hold an earlier message, and for its catch-up"),
  },
  {
    guard: "deliver: a strict webhook waits for its catch-up",
    patches: [
      {
        file: deliveries,
        find: "AND NOT EXISTS (SELECT FROM fencepost.catch_ups c WHERE c.webhook_id = w.id)",
        replace: "",
      },
    ],
    test: ofTheStore("waits for the outbox, which may hold an earlier message, and for its catch-up"),
  },
  {
    guard: "deliver: an attempt names the fence of its claim",
    patches: [
      {
        file: deliveries,
        find: "AND q.fence = $2 AND NOT q.attempted AND NOT q.asking",
        replace: "AND $2::bigint > 0 AND NOT q.attempted AND NOT q.asking",
      },
    ],
    test: ofTheStore("is refused to a worker that lost its claim, and to one that never had it"),
  },
  {
    guard: "deliver: one live attempt under a claim",
    patches: [
      {
        file: deliveries,
        find: "AND q.fence = $2 AND NOT q.attempted AND NOT q.asking",
        replace: "AND q.fence = $2",
      },
      {
        file: deliveries,
        find: "AND d.state = 'pending' AND d.last_timestamp",
        replace: "AND d.last_timestamp",
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
        file: decisions,
        find: 'return interrupted ? "settle_unknown" : "attempt";',
        replace: 'return interrupted ? "attempt" : "attempt";',
      },
    ],
    test: named(`${src}/store/decideDelivery.test.ts`)("settles a claim whose last attempt has no outcome"),
  },
  {
    guard: "deliver: an outcome names the fence of its claim",
    patches: [
      {
        file: deliveries,
        find: "WHERE q.fence = $2 AND q.attempted",
        replace: "WHERE $2::bigint > 0 AND q.attempted",
      },
    ],
    test: ofTheStore("under a lost claim cannot end a delivery that another worker is sending"),
  },
  {
    guard: "deliver: an outcome only where an attempt is on record",
    patches: [
      { file: deliveries, find: "WHERE q.fence = $2 AND q.attempted", replace: "WHERE q.fence = $2" },
    ],
    test: ofTheStore("of a claim without an attempt gives the claim back"),
  },
  {
    guard: "deliver: an outcome waits for the record of its attempt that is under way",
    patches: [
      {
        file: deliveries,
        find: "return database.transaction(async (client) => {\n    const ids = missing",
        replace:
          "return database.transaction(async (client) => {\n    if (missing.length > 0) return { recorded, stale: missing.map(({ id }) => id) };\n    const ids = missing",
      },
    ],
    test: ofPostgres("an outcome that overtakes the record of its attempt is that of this attempt"),
  },
  {
    guard: "deliver: what settles a doubt names the fence of its claim",
    patches: [
      {
        file: deliveries,
        find: "WHERE q.fence = $2 AND q.asking",
        replace: "WHERE $2::bigint > 0 AND q.asking",
      },
    ],
    test: ofTheStore("is settled by nobody who lost the claim, nor once a person has resolved it"),
  },
  {
    guard: "deliver: only a doubt that is asked about is settled",
    patches: [{ file: deliveries, find: "WHERE q.fence = $2 AND q.asking", replace: "WHERE q.fence = $2" }],
    test: ofTheStore("is settled by nobody who lost the claim, nor once a person has resolved it"),
  },
  {
    guard: "deliver: a lease is lengthened for who holds the claim",
    patches: [
      {
        file: deliveries,
        find: "WHERE q.delivery_id = ANY($1) AND q.fence = $2\n       ORDER BY q.delivery_id FOR UPDATE\n",
        replace:
          "WHERE q.delivery_id = ANY($1) AND $2::bigint > 0\n       ORDER BY q.delivery_id FOR UPDATE\n",
      },
    ],
    test: ofTheStore(
      "is lengthened for who holds the claim, attempted, waiting or asking, and for nobody else",
    ),
  },
  {
    guard: "deliver: what may have arrived is asked about, under ask",
    patches: [
      {
        file: decisions,
        find: 'result.outcome === "unknown" && policy.onUnknown === "ask"',
        replace: "false",
      },
    ],
    test: ofTheStage("and has the event gets it no second time: the delivery is a success"),
  },
  {
    guard: "deliver: a fence is believed only where the inbox goes back to the first attempt",
    patches: [
      {
        file: `${src}/deliver/doubts.ts`,
        find: "retainedSince === null || firstAttemptAt >= retainedSince",
        replace: "retainedSince === null || firstAttemptAt > new Date(0)",
      },
    ],
    test: ofTheStage("and may have forgotten the event is not believed: a person decides"),
  },
  {
    guard: "receive: an attempt that is fenced off is not applied",
    patches: [
      {
        file: "packages/receiver/src/decide.ts",
        find: '!(attemptTimestamp > fencedBefore)) return "fenced";',
        replace: '!(attemptTimestamp > fencedBefore)) return "apply";',
      },
    ],
    test: ofTheStage("until after its replacement was sent, which it overtakes, is refused by the receiver"),
  },
  {
    guard: "receive: an event in the inbox is not applied again",
    patches: [
      {
        file: "packages/receiver/src/decide.ts",
        find: 'return inbox === "present" ? "already" : "apply";',
        replace: 'return "apply";',
      },
    ],
    test: ofTheInbox("eight times at once has one effect"),
  },
];
