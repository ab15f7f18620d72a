import type { SampledEvent, Samples } from "./sampleEvents.ts";

/** The versions of what a new project uses beside Fencepost: those that Fencepost is tested with. */
interface ProjectVersions {
  readonly fencepost: string;
  readonly drizzle: string;
}

export interface NewProject {
  readonly name: string;
  readonly network: "testnet" | "pubnet";
  readonly contractId: string;
  readonly rpcUrl: string;
  readonly versions: ProjectVersions;
  /** The contract's own events, where they could be seen. */
  readonly samples: Samples | undefined;
}

// What the tests of a new project run with.
const ZOD = "4.6.7";
const TYPESCRIPT = "6.0.3";
const NODE_TYPES = "24.19.4";

/** The files of a new project: paths, and what is in them. */
export function projectFiles(project: NewProject): Readonly<Record<string, string>> {
  const { name, network, rpcUrl } = project;
  const events = project.samples?.events.map(declaredEvent) ?? [EXAMPLE];
  return {
    "package.json": packageJson(project),
    "tsconfig.json": TSCONFIG,
    "fencepost.config.ts": configFile(network),
    "contracts.ts": contractsFile(project, events),
    "projections/activity.ts": projectionFile(events),
    ".env": envFile(rpcUrl),
    ".env.example": envFile(""),
    ".gitignore": "node_modules/\n.env\n.fencepost/\n",
    "README.md": readme(name, events),
  };
}

interface DeclaredEvent {
  readonly name: string;
  /** The schema, as source text. */
  readonly schema: string;
  /** What names the parts of the event that have none on the chain, as source text; "" where all have. */
  readonly names: string;
}

/** Most contracts that move an asset have it. Its value is an amount, or a map that has one. */
const EXAMPLE: DeclaredEvent = {
  name: "transfer",
  schema: objectSchema({
    from: "z.string()",
    to: "z.string()",
    amount: "z.union([z.bigint(), z.object({ amount: z.bigint() })])",
  }),
  names: 'topics: ["from", "to"], value: "amount"',
};

function declaredEvent({ name, topics, value }: SampledEvent): DeclaredEvent {
  const topicNames = topics.map((_, i) => `topic${i + 1}`);
  const fields = typeof value === "string" ? { value } : value;
  const named = Object.fromEntries(topics.map((type, i) => [`topic${i + 1}`, type]));
  return {
    name,
    schema: objectSchema({ ...named, ...fields }),
    names: [
      ...(topicNames.length > 0 ? [`topics: ${JSON.stringify(topicNames).replaceAll(",", ", ")}`] : []),
      ...(typeof value === "string" ? ['value: "value"'] : []),
    ].join(", "),
  };
}

function objectSchema(fields: Readonly<Record<string, string>>): string {
  return `z.object({ ${Object.entries(fields)
    .map(([field, type]) => `${field}: ${type}`)
    .join(", ")} })`;
}

function packageJson({ name, versions }: NewProject): string {
  const content = {
    name,
    private: true,
    type: "module",
    engines: { node: ">=22.18" },
    scripts: { dev: "fencepost dev", start: "fencepost start", typecheck: "tsc" },
    dependencies: { "drizzle-orm": versions.drizzle, fencepost: versions.fencepost, zod: ZOD },
    devDependencies: { "@types/node": NODE_TYPES, typescript: TYPESCRIPT },
  };
  return `${JSON.stringify(content, null, 2)}\n`;
}

const TSCONFIG = `{
  "compilerOptions": {
    "target": "ES2023",
    "module": "NodeNext",
    "types": ["node"],
    "strict": true,
    "noEmit": true,
    "allowImportingTsExtensions": true,
    "skipLibCheck": true
  },
  "include": ["*.ts", "projections"]
}
`;

function configFile(network: string): string {
  return `import { defineConfig, stellarRpc } from "fencepost";
import { activity } from "./projections/activity.ts";

export default defineConfig({
  source: stellarRpc({ network: "${network}", urls: process.env.STELLAR_RPC_URL }),
  projections: [activity],
});
`;
}

function contractsFile({ contractId, samples }: NewProject, events: readonly DeclaredEvent[]): string {
  const origin = samples
    ? "// Taken from events that the contract emitted lately. Names that the chain does not give are topic1, value, …"
    : "// An example: no events of this contract could be seen. Put in the names and shapes of its own.";
  const start = samples ? `${samples.fromLedger}` : '"latest"';
  return `import { defineContract } from "fencepost";
import { z } from "zod";

${origin}
export const shapes = {
${events.map(({ name, schema }) => `  ${name}: ${schema},`).join("\n")}
};

export const contract = defineContract({
  id: "${contractId}",
  startLedger: ${start}, // a ledger, "latest" or "oldest"
  events: {
${events.map(({ name, names }) => `    ${name}: ${names === "" ? `shapes.${name}` : `{ ${names}, schema: shapes.${name} }`},`).join("\n")}
  },
});
`;
}

function projectionFile(events: readonly DeclaredEvent[]): string {
  return `import { integer, jsonb, pgTable, text, timestamp } from "drizzle-orm/pg-core";
import { defineProjection, type ProjectedEvent, type ProjectionDb, token } from "fencepost";
import { contract, shapes } from "../contracts.ts";

/** One row an event. Read it as activity.events. */
export const eventTable = pgTable("events", {
  token: token().primaryKey(),
  name: text().notNull(),
  ledger: integer().notNull(),
  closedAt: timestamp("closed_at", { withTimezone: true }).notNull(),
  txHash: text("tx_hash").notNull(),
  data: jsonb().notNull(),
});

async function store(db: ProjectionDb, event: ProjectedEvent): Promise<void> {
  const { token, name, ledger, closedAt, txHash, data } = event;
  await db.insert(eventTable).values({ token, name, ledger, closedAt, txHash, data: asJson(data) });
}

/** JSON has no bigint: integers become decimal texts, which lose nothing. */
function asJson(data: unknown): unknown {
  return JSON.parse(JSON.stringify(data, (_, value) => (typeof value === "bigint" ? value.toString() : value)));
}

export const activity = defineProjection({
  name: "activity",
  version: 1,
  contracts: { contract },
  tables: { eventTable },
  messages: {
${events.map(({ name }) => `    "contract.${name}": shapes.${name},`).join("\n")}
  },
  on: {
${events.map(({ name }) => handler(name)).join("\n")}
  },
});
`;
}

function handler(name: string): string {
  return `    "contract:${name}": async ({ event, db, emit }) => {
      await store(db, event);
      emit("contract.${name}", event.data);
    },`;
}

function envFile(rpcUrl: string): string {
  return `# A Stellar RPC node, v23 or later; several with commas between.
STELLAR_RPC_URL=${rpcUrl}
# A PostgreSQL server, 14 or later. Without it "fencepost dev" runs one of its own in .fencepost/
# DATABASE_URL=postgres://user:password@host:5432/database
`;
}

function readme(name: string, events: readonly DeclaredEvent[]): string {
  return `# ${name}

Contract events into database rows and signed webhooks, exactly once, with Fencepost.

    npm install
    npx fencepost dev

- \`contracts.ts\` has the contract and the shapes of its events, \`projections/activity.ts\` what is made of them: a
  row in \`activity.events\` and a message for each event.
- \`.env\` has the url of a Stellar RPC node. \`fencepost dev\` prints where its database is; saving a file reloads.
- A webhook: \`npx fencepost webhooks add http://localhost:3000/hooks --types contract.${events[0]?.name ?? "transfer"}\`
- What became of an event: \`npx fencepost status\`, and \`npx fencepost trace <token>\`.
- In production: \`DATABASE_URL=… STELLAR_RPC_URL=… npx fencepost start\`
`;
}
