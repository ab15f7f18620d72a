import { scv } from "@fencepost/simulator";
import { sql } from "drizzle-orm";
import { integer, pgTable, text } from "drizzle-orm/pg-core";
import { z } from "zod";
import {
  defineContract,
  defineProjection,
  type ProjectedEvent,
  type Projection,
  type ProjectionDb,
} from "../../index.ts";

const totals = pgTable("totals", { id: text().primaryKey(), total: integer().notNull() });
const shapes = { total: z.object({ id: z.string(), total: z.number() }), seen: z.object({}) };

export interface TotalsOptions {
  readonly version?: number;
  /** Messages are of this many times the total. */
  readonly times?: number;
  /** Runs before the handler. */
  readonly before?: (
    event: ProjectedEvent<string, { id: string; n: number }>,
    db: ProjectionDb,
  ) => Promise<unknown>;
  /** A message of this type as well. */
  readonly more?: "seen";
}

/** A projection whose messages follow from all events before: each tells the sum of what was added under one id. */
export function totalsProjection(
  name: string,
  { version = 1, times = 1, before, more }: TotalsOptions = {},
): Projection {
  const contract = defineContract({
    id: scv.contractId(name),
    startLedger: 1,
    events: { added: z.object({ id: z.string(), n: z.number() }) },
  });
  return defineProjection({
    name,
    version,
    contracts: { c: contract },
    tables: { totals },
    messages: { [`${name}.total`]: shapes.total, ...(more && { [`${name}.${more}`]: shapes[more] }) },
    on: {
      "c:added": async ({ event, db, emit }) => {
        await before?.(event, db);
        const { id, n } = event.data;
        const [row] = await db
          .insert(totals)
          .values({ id, total: n })
          .onConflictDoUpdate({ target: totals.id, set: { total: sql`${totals.total} + excluded.total` } })
          .returning();
        emit(`${name}.total`, { id, total: times * (row?.total ?? 0) } as never);
        if (more) emit(`${name}.${more}`, {} as never);
      },
    },
  });
}

/** Events that the projection handles: each adds its number, from `first` on, under one of three ids. */
export function added(name: string, count: number, first = 1) {
  return Array.from({ length: count }, (_, i) => ({
    contract: scv.contractId(name),
    topics: [scv.sym("added")],
    value: scv.struct({ id: scv.str(`id ${(first + i) % 3}`), n: scv.u32(first + i) }),
  }));
}
