import { createHash } from "node:crypto";
import type { Projection } from "../config/projection.ts";
import type { Database, DatabaseClient } from "../store/postgres/database.ts";
import {
  insertProjection,
  lockVersions,
  type ProjectionRow,
  promoteProjection,
  resetProjection,
} from "../store/postgres/projections.ts";
import {
  createVersionSchema,
  dropVersionSchema,
  pointViewsAt,
  tableStatements,
} from "../store/postgres/projectionTables.ts";
import { stageTransaction } from "../store/postgres/stageTransaction.ts";
import { ProjectionChangedError } from "./errors.ts";

export type Registration = "known" | "created" | "building" | "rebuilding";

/** A process that is paused while it registers, and so holds all versions up, is cut off after half of it, in ms. */
const REGISTER_LEASE_MS = 10_000;

/** When a version that is on record is started over under its number. */
export interface RebuildRules {
  readonly rebuildChanged: boolean;
  readonly rebuild?: boolean;
}

/**
 * Makes the tables and the row of a projection's version, or checks that they are as the code says. A new version
 * is built beside the live one. Safe from several processes at once. Throws {@link ProjectionChangedError} where
 * tables or message shapes changed without a new version, unless `rebuildChanged` (as `dev` does) starts it over;
 * `rebuild` does so in any case.
 */
export async function registerProjection(
  database: Database,
  projection: Projection,
  { stream, ...rules }: RebuildRules & { readonly stream: string },
): Promise<Registration> {
  const { name, version } = projection;
  const tables = Object.values(projection.tables);
  const statements = tableStatements(tables);
  const fingerprint = fingerprintOf(projection, statements);
  return stageTransaction(database, REGISTER_LEASE_MS, async (client) => {
    const rows = await lockVersions(client, name);
    const decision = decideRegistration(rows, projection, fingerprint, rules);
    if (decision === "known") return decision;
    await createVersionSchema(client, projection, statements, { anew: decision === "rebuilding" });
    if (decision === "rebuilding") {
      await resetProjection(client, projection, fingerprint);
    } else {
      const live = decision === "created";
      const start = live ? ({ state: "live", emitAfter: 0n } as const) : NOT_YET_LIVE;
      await insertProjection(client, { name, version, stream, fingerprint, ...start });
    }
    const own = rows.find((row) => row.version === version);
    if (decision === "created" || own?.state === "live") await pointViewsAt(client, projection, tables);
    return decision;
  });
}

const NOT_YET_LIVE = { state: "building", emitAfter: null } as const;

/** What registering means, given the versions on record. */
export function decideRegistration(
  rows: readonly Pick<ProjectionRow, "version" | "state" | "fingerprint">[],
  { name, version }: Pick<Projection, "name" | "version">,
  fingerprint: string,
  { rebuildChanged, rebuild = false }: RebuildRules,
): Registration {
  const own = rows.find((row) => row.version === version);
  const live = rows.find((row) => row.state === "live");
  if (live && live.version > version) {
    throw new ProjectionChangedError(
      name,
      version,
      `is not the live version: v${live.version} is. Deploy the code of v${live.version}, or raise the version above it.`,
    );
  }
  if (!own) return live ? "building" : "created";
  const changed = own.fingerprint !== fingerprint;
  if (rebuild || (changed && rebuildChanged)) return "rebuilding";
  if (!changed) return "known";
  throw new ProjectionChangedError(
    name,
    version,
    `has other tables or message shapes than the database was built with (${own.fingerprint.slice(0, 12)} there, ` +
      `${fingerprint.slice(0, 12)} in the code). Raise its version to ${version + 1}: it is then built beside v${version}.`,
  );
}

/**
 * Makes a version that has caught up with the live one the live one itself: the versions below it retire, the
 * views point at it, and it emits what comes after `cursor`. The caller holds the locks of all `rows`.
 */
export async function switchTo(
  client: DatabaseClient,
  projection: Projection,
  rows: readonly ProjectionRow[],
  cursor: bigint,
): Promise<void> {
  const { name, version } = projection;
  // A live version that was started over may be behind what it emitted.
  const emitted = rows.find((row) => row.state === "live")?.emitAfter ?? 0n;
  await promoteProjection(client, projection, emitted > cursor ? emitted : cursor);
  await pointViewsAt(client, projection, Object.values(projection.tables));
  // The version that was live is kept for a look back; those that were retired, or never got so far, go.
  for (const row of rows) {
    if (row.version < version && row.state !== "live") await dropVersionSchema(client, name, row.version);
  }
}

/** Changes when tables or message shapes do. A schema that can tell its shape as JSON Schema takes part with it. */
export function fingerprintOf(projection: Projection, statements: readonly string[]): string {
  const messages = Object.entries(projection.messages)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([type, schema]) => `${type} ${JSON.stringify(jsonShape(schema))}`);
  return createHash("sha256")
    .update([...statements, ...messages].join("\n"))
    .digest("hex");
}

function jsonShape(schema: Projection["messages"][string]): unknown {
  const standard = schema["~standard"] as {
    vendor: string;
    jsonSchema?: { output(options: object): Record<string, unknown> };
  };
  // Zod refuses what has no JSON form, as bigint: the kind of the schema stands in for it.
  const libraryOptions = {
    unrepresentable: ({ zodSchema }: { zodSchema: { _zod: { def: { type: string } } } }) => ({
      zod: zodSchema._zod.def.type,
    }),
  };
  const options = { target: "draft-2020-12", ...(standard.vendor === "zod" && { libraryOptions }) };
  try {
    return standard.jsonSchema?.output(options) ?? null;
  } catch {
    return null; // a type without a JSON form: the name alone takes part
  }
}
