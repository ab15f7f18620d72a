// The caller's own transaction, of whatever library, as something that runs our statements.
import { type SQL, sql } from "drizzle-orm";
import { arrayText } from "./arrayText.ts";
import type { Queryable } from "./database.ts";

/** A transaction of Drizzle on PostgreSQL: the `tx` that `db.transaction(async (tx) => …)` gives. */
export interface DrizzleTransaction {
  execute(query: SQL): PromiseLike<unknown>;
}

/** An interactive transaction of Prisma on PostgreSQL: the `tx` that `prisma.$transaction(async (tx) => …)` gives. */
export interface PrismaTransaction {
  $queryRawUnsafe(text: string, ...values: unknown[]): PromiseLike<unknown>;
}

/** A client of `pg` on which `BEGIN` has run, or a transaction of Drizzle or Prisma. */
export type PostgresTransaction = Queryable | DrizzleTransaction | PrismaTransaction;

/**
 * Runs statements in the caller's transaction. What their rows hold is read by the caller's own parsers: text, numbers
 * and booleans come the same from all of them, and nothing else does.
 */
export function queryableOf(tx: PostgresTransaction): Queryable {
  if ("$queryRawUnsafe" in tx) {
    return rowsOf((text, values) => tx.$queryRawUnsafe(asTexts(text), ...values.map(asText)));
  }
  if ("execute" in tx)
    return rowsOf((text, values) => tx.execute(asDrizzle(asTexts(text), values.map(asText))));
  return tx;
}

function rowsOf(run: (text: string, values: readonly unknown[]) => PromiseLike<unknown>): Queryable {
  return {
    async query<Row>(text: string, values: readonly unknown[] = []) {
      const result = await run(text, values);
      // Some drivers give the rows alone.
      const rows = (Array.isArray(result) ? result : (result as { rows: unknown[] }).rows) as Row[];
      return { rows, rowCount: rows.length };
    },
  };
}

/** A statement whose lists are handed in as the text of a list: the one form that every library leaves alone. */
function asTexts(text: string): string {
  return text.replace(/\$(\d+)::(\w+)\[\]/g, "$$$1::text::$2[]");
}

function asText(value: unknown): unknown {
  return Array.isArray(value) ? arrayText(value) : value;
}

function asDrizzle(text: string, values: readonly unknown[]): SQL {
  const parts = text.split(/\$(\d+)/); // text, number, text, number, …, text
  return sql.join(
    parts.map((part, i) => (i % 2 === 0 ? sql.raw(part) : sql`${values[Number(part) - 1] ?? null}`)),
  );
}
