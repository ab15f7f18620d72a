import type { Projection } from "../config/projection.ts";
import { EventFailed } from "../project/applyEvents.ts";
import { describe } from "../project/errors.ts";
import { fingerprintOf } from "../project/registerProjection.ts";
import { rerunHandlers } from "../project/rerun.ts";
import {
  type NamedMessage,
  type ProjectionPlace,
  readLastSeq,
  readUnclaimed,
  type TokenRange,
} from "../store/postgres/audit.ts";
import type { Database } from "../store/postgres/database.ts";
import { type ProjectionRow, readProjection } from "../store/postgres/projections.ts";
import { tableStatements } from "../store/postgres/projectionTables.ts";
import { compareEmitted, keepEmitted, openScratch } from "../store/postgres/scratch.ts";
import { type Decoder, loadDecoder } from "../xdr/decode.ts";
import { type Findings, MAX_LISTED, type ProjectionRerun, type RerunAudit } from "./report.ts";

export interface RerunOptions {
  /** As the config has them. */
  readonly projections: readonly Projection[];
  /** Called after each batch of events. */
  readonly onProgress?: (progress: RerunProgress) => void;
}

export interface RerunProgress {
  readonly projection: string;
  /** The event that it has come to, and the last one. */
  readonly seq: bigint;
  readonly through: bigint;
}

interface Rerunning {
  readonly database: Database;
  readonly decoder: Decoder;
  readonly tokens: TokenRange;
  readonly signal: AbortSignal;
  readonly onProgress: RerunOptions["onProgress"];
}

/** Runs the handlers of live projections again, and holds what they emit against the messages of a range of tokens. */
export async function auditHandlers(
  database: Database,
  places: readonly ProjectionPlace[],
  tokens: TokenRange,
  { projections, onProgress }: RerunOptions,
  signal: AbortSignal,
): Promise<RerunAudit> {
  const rerunning = { database, decoder: await loadDecoder(), tokens, signal, onProgress };
  const audits: ProjectionRerun[] = [];
  for (const place of places) {
    const projection = projections.find(({ name }) => name === place.name);
    audits.push(await auditProjection(rerunning, place, projection));
  }
  return { projections: audits, unclaimed: await readUnclaimed(database, tokens, MAX_LISTED) };
}

async function auditProjection(
  { database, decoder, tokens, signal, onProgress }: Rerunning,
  { name, version }: ProjectionPlace,
  projection: Projection | undefined,
): Promise<ProjectionRerun> {
  const unproven = (why: string): ProjectionRerun => ({ name, version, ...nothingCompared(), unproven: why });
  if (!projection) return unproven("the config has no projection of this name");
  const statements = tableStatements(Object.values(projection.tables));
  const isAsInCode = (row: ProjectionRow | undefined): row is ProjectionRow =>
    projection.version === version &&
    row?.state === "live" &&
    row.fingerprint === fingerprintOf(projection, statements);
  const row = await readProjection(database, name, version);
  if (!isAsInCode(row)) {
    return unproven(
      `v${version} is live, and the config has v${projection.version}, or other tables or message shapes`,
    );
  }
  const { stream, emitAfter } = row;
  const through = await readLastSeq(database, stream, tokens, row.cursor);
  const isInRange = (token: string): boolean => tokens.from <= token && token <= tokens.through;
  const scratch = await openScratch(database.url, statements);
  try {
    await rerunHandlers({
      scratch,
      projection,
      decoder,
      stream,
      through,
      signal,
      keep: (client, emitted) =>
        keepEmitted(
          client,
          emitted.filter(({ event }) => isInRange(event.token)),
        ),
      onBatch: (seq) => onProgress?.({ projection: name, seq, through }),
    });
    await scratch.vacuum(); // so that the comparison is planned by what is there
    const { emitted, agreed, findings } = await scratch.transaction((client) =>
      compareEmitted(client, { name, stream, through, emitAfter: emitAfter ?? through }, tokens, MAX_LISTED),
    );
    const after = await readProjection(database, name, version);
    if (!isAsInCode(after) || after.emitAfter !== emitAfter) {
      return unproven("it was built anew meanwhile: audit again");
    }
    return { name, version, unproven: null, emitted, agreed, ...findings };
  } catch (error) {
    if (!(error instanceof EventFailed)) throw error;
    return unproven(`${error.handler} failed at ${error.event.token}: ${describe(error.cause)}`);
  } finally {
    await scratch.close();
  }
}

function nothingCompared(): Omit<ProjectionRerun, "name" | "version" | "unproven"> {
  const none: Findings<NamedMessage> = { count: 0, listed: [] };
  return { emitted: 0, agreed: 0, missing: none, different: none, unexplained: none, earlier: none };
}
