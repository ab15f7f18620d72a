import { drizzle, type NodePgClient } from "drizzle-orm/node-postgres";
import type { ProjectionDb } from "../config/projection.ts";
import type { DatabaseClient } from "../store/postgres/database.ts";
import { IgnoredQueryError, TransactionControlError, UnawaitedWorkError } from "./errors.ts";

export interface HandlerDatabase {
  readonly db: ProjectionDb;
  /** From here on nothing can be run. */
  close(): void;
  /** Throws where the handler left behind what its transaction cannot answer for. */
  check(): void;
}

/**
 * What one handler may run in the transaction of its batch: single statements, that neither begin nor end a
 * transaction, and only until it returns. So nothing it does can be committed without the cursor, or be lost.
 */
export function handlerDatabase(client: DatabaseClient): HandlerDatabase {
  let running = 0;
  let closed = false;
  let failed: { readonly cause: unknown } | undefined;

  const gate = {
    async query(statement: { readonly text: string }, values?: unknown[]) {
      if (closed) throw new UnawaitedWorkError("ran a statement after it had returned");
      refuseTransactionControl(statement.text);
      running++;
      // The extended protocol takes one statement at a time: no COMMIT hides behind another one.
      const single = { ...statement, queryMode: "extended" };
      try {
        return await client.query(single, values);
      } catch (cause) {
        failed ??= { cause };
        throw cause;
      } finally {
        running--;
      }
    },
  };
  // Of a client, drizzle calls query() and nothing else.
  const db = drizzle(gate as unknown as NodePgClient);
  return {
    db: Object.assign(db, {
      transaction() {
        throw new TransactionControlError("db.transaction()");
      },
    }),
    close() {
      closed = true;
    },
    check() {
      if (running > 0) throw new UnawaitedWorkError("returned while a statement of its was running");
      if (failed) throw new IgnoredQueryError(failed.cause);
    },
  };
}

const TRANSACTION_CONTROL = /^(?:begin|start|commit|end|abort|rollback|savepoint|release|prepare)\b/i;

function refuseTransactionControl(text: string): void {
  const word = TRANSACTION_CONTROL.exec(text.slice(startOfFirstWord(text)))?.[0];
  if (word) throw new TransactionControlError(word.toUpperCase());
}

/** Passes over what PostgreSQL passes over: blanks, semicolons, line comments, and block comments, which nest. */
function startOfFirstWord(text: string): number {
  const skipped = /[\s;]+|--[^\n\r]*|\/\*/y;
  for (let at = 0; ; ) {
    skipped.lastIndex = at;
    const match = skipped.exec(text);
    if (!match) return at;
    at = match[0] === "/*" ? endOfComment(text, at) : skipped.lastIndex;
  }
}

function endOfComment(text: string, start: number): number {
  const marks = /\/\*|\*\//g;
  marks.lastIndex = start;
  let depth = 0;
  for (let mark = marks.exec(text); mark; mark = marks.exec(text)) {
    depth += mark[0] === "/*" ? 1 : -1;
    if (depth === 0) return marks.lastIndex;
  }
  return text.length;
}
