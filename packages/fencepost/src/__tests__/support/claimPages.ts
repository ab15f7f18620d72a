import type { ClaimOptions } from "../../store/deliveryStore.ts";
import type { Database } from "../../store/postgres/database.ts";
import { postgresStore } from "../../store/postgres/postgresStore.ts";

/** Claims what is due, for real, and returns the pages that the statement touched, as PostgreSQL counts them. */
export async function pagesOfClaim(database: Database, options: ClaimOptions): Promise<number> {
  let pages = 0;
  const explain: Database["query"] = async (text, values) => {
    const { rows } = await database.query<{ "QUERY PLAN": readonly [{ Plan: Record<string, number> }] }>(
      `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ${text}`,
      values,
    );
    const plan = rows[0]?.["QUERY PLAN"][0].Plan ?? {};
    pages = (plan["Shared Hit Blocks"] ?? 0) + (plan["Shared Read Blocks"] ?? 0);
    return { rows: [], rowCount: 0 };
  };
  await postgresStore({ ...database, query: explain, hot: explain }).claim(options);
  if (pages === 0) throw new Error("The claim touched no page, so it was not counted.");
  return pages;
}
