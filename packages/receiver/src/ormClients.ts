import type { SqlClient } from "./sqlClient.ts";

/**
 * The client of a Drizzle transaction on PostgreSQL, for `once` and `latest`; `sql` is the one of `drizzle-orm`:
 * `receiver.once(fromDrizzle(tx, sql), message, () => tx.insert(…))`.
 */
export function fromDrizzle<Query>(
  tx: { execute(query: Query): PromiseLike<unknown> },
  sql: (texts: TemplateStringsArray, ...values: unknown[]) => Query,
): SqlClient {
  return {
    async query(text, values = []) {
      const parts = text.split(/\$(\d+)/); // text, number, text, number, …, text
      const texts = parts.filter((_, i) => i % 2 === 0);
      const given = parts.filter((_, i) => i % 2 === 1).map((n) => values[Number(n) - 1]);
      const result = await tx.execute(sql(Object.assign(texts, { raw: texts }), ...given));
      // Some drivers give the rows alone.
      return { rows: Array.isArray(result) ? result : (result as { rows: unknown[] }).rows };
    },
  };
}

/**
 * The client of an interactive transaction of Prisma on PostgreSQL, for `once` and `latest`:
 * `prisma.$transaction((tx) => receiver.once(fromPrisma(tx), message, () => tx.pool.update(…)))`.
 */
export function fromPrisma(tx: {
  $queryRawUnsafe(text: string, ...values: unknown[]): PromiseLike<unknown>;
  $executeRawUnsafe(text: string, ...values: unknown[]): PromiseLike<number>;
}): SqlClient {
  return {
    async query(text, values = []) {
      if (/\bRETURNING\b/.test(text))
        return { rows: (await tx.$queryRawUnsafe(text, ...values)) as unknown[] };
      await tx.$executeRawUnsafe(text, ...values);
      return { rows: [] };
    },
  };
}
