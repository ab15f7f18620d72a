import { createHash } from "node:crypto";
import type { Projection } from "../config/projection.ts";
import type { Database } from "../store/postgres/database.ts";
import {
  insertProjection,
  lockVersions,
  type ProjectionRow,
  promoteProjection,
  resetProjection,
  retireProjection,
} from "../store/postgres/projections.ts";
import {
  createVersionSchema,
  dropVersionSchema,
  pointViewsAt,
  tableNamesOf,
  tableStatements,
} from "../store/postgres/projectionTables.ts";
import { ProjectionChangedError } from "./errors.ts";

export type Registration = "known" | "created" | "building" | "rebuilding";

/**
 * Makes the tables and the row of a projection's version, or checks that they are as the code says. A new version
 * is built beside the live one. Safe from several processes at once. Throws {@link ProjectionChangedError} where
 * tables or message shapes changed without a new version, unless `rebuildChanged` (as `dev` does) starts it over.
 */
export async function registerProjection(
  database: Database,
  projection: Projection,
  { stream, rebuildChanged }: { readonly stream: string; readonly rebuildChanged: boolean },
): Promise<Registration> {
  const { name, version } = projection;
  const statements = tableStatements(Object.values(projection.tables));
  const fingerprint = fingerprintOf(projection, statements);
  return database.transaction(async (client) => {
    const rows = await lockVersions(client, name);
    const decision = decideRegistration(rows, projection, fingerprint, rebuildChanged);
    if (decision === "known") return decision;
    await createVersionSchema(client, name, version, statements);
    if (decision === "rebuilding") {
      await resetProjection(client, projection, fingerprint);
      const live = rows.some((row) => row.version === version && row.state === "live");
      if (live) await pointViewsAt(client, name, version, tableNamesOf(Object.values(projection.tables)));
      return decision;
    }
    const state = decision === "created" ? ("live" as const) : ("building" as const);
    const emitAfter = state === "live" ? 0n : null;
    await insertProjection(client, { name, version, stream, emitAfter, state, fingerprint });
    if (state === "live")
      await pointViewsAt(client, name, version, tableNamesOf(Object.values(projection.tables)));
    return decision;
  });
}

/** What registering means, given the versions on record (the highest first). */
export function decideRegistration(
  rows: readonly Pick<ProjectionRow, "version" | "state" | "fingerprint">[],
  { name, version }: Pick<Projection, "name" | "version">,
  fingerprint: string,
  rebuildChanged: boolean,
): Registration {
  const own = rows.find((row) => row.version === version);
  const live = rows.find((row) => row.state === "live");
  if (live && (live.version > version || own?.state === "retired")) {
    throw new ProjectionChangedError(
      name,
      version,
      `is not the live version: v${live.version} is. Deploy the code of v${live.version}, or raise the version above it.`,
    );
  }
  if (!own) return live ? "building" : "created";
  if (own.fingerprint === fingerprint) return "known";
  if (rebuildChanged) return "rebuilding";
  throw new ProjectionChangedError(
    name,
    version,
    `has other tables or message shapes than the database was built with (${own.fingerprint.slice(0, 12)} there, ` +
      `${fingerprint.slice(0, 12)} in the code). Raise its version to ${version + 1}: it is then built beside v${version}.`,
  );
}

/**
 * The moment a new version has handled all that the live one has: one transaction retires the live one and
 * points the views at the new. Otherwise tells how far the live one is.
 */
export async function switchWhenCaughtUp(
  database: Database,
  row: ProjectionRow,
  projection: Projection,
): Promise<"switched" | { readonly liveCursor: bigint }> {
  return database.transaction(async (client) => {
    const rows = await lockVersions(client, row.name);
    const live = rows.find((other) => other.state === "live");
    const own = rows.find((other) => other.version === row.version);
    if (!own || own.term !== row.term) return { liveCursor: row.cursor };
    if (live && own.cursor < live.cursor) return { liveCursor: live.cursor };
    if (live) await retireProjection(client, live.name, live.version);
    await promoteProjection(client, own.name, own.version, live?.cursor ?? own.cursor);
    await pointViewsAt(client, own.name, own.version, tableNamesOf(Object.values(projection.tables)));
    // The version just retired is kept for a look back; those before it go.
    for (const { version, state } of rows) {
      if (state === "retired") await dropVersionSchema(client, own.name, version);
    }
    return "switched";
  });
}

/** Changes when tables or message shapes do. A schema that can tell its shape as JSON Schema takes part with it. */
function fingerprintOf(projection: Projection, statements: readonly string[]): string {
  const messages = Object.entries(projection.messages)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([type, schema]) => `${type} ${JSON.stringify(jsonShape(schema))}`);
  return createHash("sha256")
    .update([...statements, ...messages].join("\n"))
    .digest("hex");
}

function jsonShape(schema: Projection["messages"][string]): unknown {
  const standard = schema["~standard"] as {
    jsonSchema?: { output(options: { target: string }): Record<string, unknown> };
  };
  try {
    return standard.jsonSchema?.output({ target: "draft-2020-12" }) ?? null;
  } catch {
    return null; // a type without a JSON form, as bigint: the name alone takes part
  }
}
