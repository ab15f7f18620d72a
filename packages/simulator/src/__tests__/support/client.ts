import { rpcCursorAfterLedger } from "@fencepost/token";
import fc from "fast-check";
import { type Chain, type EventRow, type EventSpec, scv, startChain } from "../../index.ts";

export interface Page {
  readonly events: readonly EventRow[];
  readonly cursor: string;
  readonly latestLedger: number;
}

/** One JSON-RPC call over HTTP; the body of the answer, whatever it is. */
export async function call(url: string, method: string, params?: unknown): Promise<unknown> {
  const response = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ jsonrpc: "2.0", id: 7, method, ...(params === undefined ? {} : { params }) }),
    signal: AbortSignal.timeout(10_000),
  });
  if (response.status !== 200) throw new Error(`HTTP ${response.status}`);
  return response.json();
}

/** The result of a call; throws an error that holds the JSON-RPC error. */
export async function result<T>(url: string, method: string, params?: unknown): Promise<T> {
  const answer = (await call(url, method, params)) as {
    result?: T;
    error?: { code: number; message: string };
  };
  if (answer.error) throw Object.assign(new Error(answer.error.message), answer.error);
  return answer.result as T;
}

/**
 * Reads from `startLedger` until its cursor has reached `until`, as a correct client does: it retries what fails,
 * takes no page whose cursor lies behind its own, and leaves out what it has. At most 20,000 pages.
 */
export async function readAll(
  fetchPage: (params: unknown) => Page | Promise<Page>,
  { startLedger, until, ...rest }: { startLedger: number; until: number; filters?: unknown; limit?: number },
): Promise<{ rows: EventRow[]; pages: Page[] }> {
  const { limit, ...others } = rest;
  const rows = new Map<string, EventRow>();
  const pages: Page[] = [];
  let cursor: string | undefined;
  for (let i = 0; i < 20_000; i++) {
    const range = cursor === undefined ? { startLedger } : {};
    let page: Page;
    try {
      page = await fetchPage({ ...others, ...range, pagination: { limit, cursor } });
    } catch {
      continue;
    }
    if (cursor !== undefined && page.cursor < cursor) continue;
    pages.push(page);
    for (const row of page.events) rows.set(row.id, row);
    cursor = page.cursor;
    // Not the cursor's ledger alone: a full page can end in the middle of the last ledger.
    if (cursor >= rpcCursorAfterLedger(until)) {
      return { rows: [...rows.values()].sort((a, b) => (a.id < b.id ? -1 : 1)), pages };
    }
  }
  throw new Error(`Not at ledger ${until} after 20,000 pages; the cursor is ${cursor}.`);
}

export const CONTRACTS = [scv.contractId("a"), scv.contractId("b"), scv.contractId("c")];
export const TOPICS = [scv.sym("transfer"), scv.sym("mint"), scv.u32(7)];

const spec: fc.Arbitrary<EventSpec> = fc
  .record({
    contract: fc.option(fc.constantFrom(...CONTRACTS), { nil: undefined }),
    type: fc.constantFrom("contract" as const, "system" as const),
    topics: fc.array(fc.constantFrom(...TOPICS), { maxLength: 6 }),
    value: fc.constantFrom(scv.u32(1), scv.nothing(), "garbage"),
    tx: fc.integer({ min: 1, max: 4 }),
    op: fc.integer({ min: 0, max: 2 }),
    place: fc.constantFrom(
      "fee" as const,
      "operation" as const,
      "afterTransaction" as const,
      "afterAll" as const,
    ),
    failed: fc.boolean(),
  })
  .map(({ contract, ...rest }) => ({ ...rest, ...(contract === undefined ? {} : { contract }) }));

/** Events of a few ledgers, some of them empty. */
export const ledgers = fc.array(fc.oneof(fc.constant([]), fc.array(spec, { maxLength: 12 })), {
  minLength: 1,
  maxLength: 12,
});

export function chainOf(events: readonly (readonly EventSpec[])[], firstLedger = 100): Chain {
  const chain = startChain({ firstLedger });
  for (const ledger of events) chain.close({ events: ledger });
  return chain;
}
