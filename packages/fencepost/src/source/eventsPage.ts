import { parseRpcId } from "@fencepost/token";
import { SourceUnavailableError } from "./errors.ts";
import type { SourceEvent, SourceHead } from "./source.ts";

/** One `getEvents` answer, checked and in chain order. */
export interface EventsPage extends SourceHead {
  readonly events: readonly SourceEvent[];
  readonly cursor: string;
  /** Every ledger up to it has been read completely once this page is taken. */
  readonly completeThrough: number;
}

const MAX_LEDGER = 2_147_483_647;
const ISO_TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/;

/**
 * Reads a `getEvents` result. Rows outside of (after, cursor] are left out: a node may repeat a page, and what
 * lies beyond its cursor is served again. Throws {@link SourceUnavailableError} for an answer that a sound node
 * cannot give, so that it is asked again instead of believed.
 */
export function parseEventsPage(
  result: unknown,
  contractIds: ReadonlySet<string>,
  after: string,
): EventsPage {
  const page = asObject(result, "the result");
  const cursor = asString(page["cursor"], "cursor");
  const { latestLedger, oldestLedger, ...closeTimes } = headOf(page);
  const end = parseCursor(cursor);
  const atLedgerEnd = end.tx === 1_048_575 && end.op === 4_095 && end.event === 4_294_967_295;
  const completeThrough = atLedgerEnd ? end.ledger : end.ledger - 1;
  if (cursor < after) refuse(`its cursor went back from ${after} to ${cursor}`);
  if (completeThrough > latestLedger)
    refuse(`its cursor ${cursor} is ahead of its latest ledger ${latestLedger}`);
  const hasNext = completeThrough + 1 >= oldestLedger && completeThrough + 1 <= latestLedger;
  if (cursor === after && hasNext)
    refuse(`its cursor stands still at ${cursor}, before its latest ledger ${latestLedger}`);
  if (!Array.isArray(page["events"])) refuse("events is not a list");

  const byId = new Map<string, SourceEvent>();
  for (const row of page["events"] as unknown[]) {
    const event = parseRow(row);
    if (!event?.contractId || !contractIds.has(event.contractId)) continue;
    if (event.id <= after || event.id > cursor) continue;
    const other = byId.get(event.id);
    if (other && JSON.stringify(other) !== JSON.stringify(event)) {
      refuse(`event ${event.id} is in it twice, with different content`);
    }
    byId.set(event.id, event);
  }
  const events = [...byId.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
  return { events, cursor, completeThrough, latestLedger, oldestLedger, ...closeTimes };
}

/** The range that a node says it has. Throws {@link SourceUnavailableError} where it makes no sense. */
export function parseHead(result: unknown): SourceHead {
  return headOf(asObject(result, "the result"));
}

function headOf(page: Record<string, unknown>): SourceHead {
  const latestLedger = asLedger(page["latestLedger"], "latestLedger");
  const oldestLedger = asLedger(page["oldestLedger"], "oldestLedger");
  if (oldestLedger > latestLedger) refuse(`it has ledgers ${oldestLedger} to ${latestLedger}`);
  const latestClosedAt = asCloseTime(page["latestLedgerCloseTime"]);
  const oldestClosedAt = asCloseTime(page["oldestLedgerCloseTime"]);
  return {
    latestLedger,
    oldestLedger,
    ...(latestClosedAt !== undefined && { latestClosedAt }),
    ...(oldestClosedAt !== undefined && { oldestClosedAt }),
  };
}

/** Unix seconds: `getEvents` writes them as text, other methods as numbers, and some providers not at all. */
export function asCloseTime(value: unknown): number | undefined {
  const seconds = typeof value === "string" && /^\d{1,12}$/.test(value) ? Number(value) : value;
  return typeof seconds === "number" && Number.isSafeInteger(seconds) && seconds > 0 ? seconds : undefined;
}

function parseRow(row: unknown): SourceEvent | null {
  const fields = asObject(row, "an event");
  const type = fields["type"];
  if (type !== "contract" && type !== "system") return null;
  const id = asString(fields["id"], "id");
  const ledger = asLedger(fields["ledger"], "ledger");
  if (parseCursor(id).ledger !== ledger) refuse(`event ${id} says it is of ledger ${ledger}`);
  const closedAt = asString(fields["ledgerClosedAt"], "ledgerClosedAt");
  if (!ISO_TIME.test(closedAt) || Number.isNaN(Date.parse(closedAt)))
    refuse(`event ${id} has the close time ${closedAt}`);
  const topics = fields["topic"] ?? [];
  if (!Array.isArray(topics)) refuse(`event ${id} has topics that are not a list`);
  return {
    id,
    type,
    ledger,
    closedAt,
    contractId: asString(fields["contractId"], "contractId") || null,
    txHash: asString(fields["txHash"], "txHash"),
    topics: topics.map((topic) => asString(topic, "a topic")),
    value: asString(fields["value"], "value"),
  };
}

function parseCursor(text: string): ReturnType<typeof parseRpcId> {
  try {
    return parseRpcId(text);
  } catch (error) {
    throw new SourceUnavailableError(
      `The node answered with a wrong id or cursor: ${(error as Error).message}`,
    );
  }
}

function asObject(value: unknown, what: string): Record<string, unknown> {
  if (typeof value !== "object" || value === null) refuse(`${what} is not an object`);
  return value as Record<string, unknown>;
}

/** Also refuses what PostgreSQL cannot keep as text: no sound node sends it, and it must not block a stream. */
function asString(value: unknown, what: string): string {
  if (typeof value !== "string") refuse(`${what} is not a text`);
  if (value.includes("\0") || /\p{Surrogate}/u.test(value)) refuse(`${what} has characters that are no text`);
  return value;
}

function asLedger(value: unknown, what: string): number {
  if (typeof value !== "number" || !Number.isInteger(value) || value < 0 || value > MAX_LEDGER)
    refuse(`${what} is not a ledger`);
  return value;
}

function refuse(what: string): never {
  throw new SourceUnavailableError(`The node's answer to getEvents is not usable: ${what}.`);
}
