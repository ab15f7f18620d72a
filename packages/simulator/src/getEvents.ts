import { formatRpcId, parseRpcId, rpcCursorAfterLedger } from "@fencepost/token";
import { StrKey } from "@stellar/stellar-sdk/base";
import type { Chain, EventRow } from "./chain.ts";
import { canonical } from "./scval.ts";

/** An error of the JSON-RPC protocol: what a node answers instead of a result. */
export class RpcError extends Error {
  override readonly name = "RpcError";
  readonly code: number;

  constructor(code: number, message: string) {
    super(message);
    this.code = code;
  }
}

export const INVALID_REQUEST = -32600;
export const INVALID_PARAMS = -32602;
export const INTERNAL_ERROR = -32603;

/** The part of a chain that a node has at one moment. */
export interface View {
  readonly chain: Chain;
  readonly oldest: number;
  readonly latest: number;
}

export interface GetEventsResult {
  readonly events: readonly EventRow[];
  readonly cursor: string;
  readonly latestLedger: number;
  readonly oldestLedger: number;
  readonly latestLedgerCloseTime: string;
  readonly oldestLedgerCloseTime: string;
}

export interface GetEventsSettings {
  readonly defaultLimit: number;
  readonly maxLimit: number;
  /** Ledgers scanned by one request. */
  readonly scanLimit: number;
  /** What an expired cursor gets: the error of a node, or the empty page of some providers. */
  readonly expired: "error" | "empty";
  /** The bug of nodes before v27.1.1: events are missed when the filters of a request set different keys. */
  readonly filterBug: boolean;
  /** Rows that this node does not have, as one with classic events off, or with holes in its database. */
  readonly hides: (row: EventRow) => boolean;
  /** Cuts that a node may make at any time: fewer rows, or a window that ends before its first match. */
  readonly cut?: { readonly rows?: number; readonly beforeFirstMatch?: boolean };
}

interface Request {
  /** First ledger of the window. */
  readonly start: number;
  /** Rows up to and including this id have been read. */
  readonly after: string | undefined;
  readonly end: number | undefined;
  readonly limit: number | undefined;
  readonly filters: readonly Filter[];
}

interface Filter {
  readonly types: readonly string[];
  readonly contractIds: readonly string[];
  readonly topics: readonly Row[];
}

/** Segments of one topic row; `open` when it ends in `**`. */
interface Row {
  readonly segments: readonly string[];
  readonly open: boolean;
}

/** Answers `getEvents` as Stellar RPC v23 and later does. Throws {@link RpcError}. */
export function getEvents(view: View, params: unknown, settings: GetEventsSettings): GetEventsResult {
  const request = parseRequest(params, settings.maxLimit);
  requireLedgers(view);
  const { start, after } = request;
  const expired = start < view.oldest && settings.expired === "empty" && after !== undefined;
  if (!expired && (start < view.oldest || start > view.latest)) {
    throw new RpcError(
      INVALID_REQUEST,
      `startLedger must be within the ledger range: ${view.oldest} - ${view.latest}`,
    );
  }
  let end = Math.min(start + settings.scanLimit, view.latest + 1);
  if (request.end !== undefined) end = Math.min(request.end, end);
  const limit = Math.min(
    request.limit ?? settings.defaultLimit,
    settings.cut?.rows ?? Number.POSITIVE_INFINITY,
  );

  const wanted = compile(request.filters, settings.filterBug);
  const matches = (row: EventRow): boolean => wanted(row) && !settings.hides(row);
  if (settings.cut?.beforeFirstMatch) {
    const [match] = scan(view.chain, start, after, end, matches, 1);
    const moves =
      match && rpcCursorAfterLedger(match.ledger - 1) > (after ?? rpcCursorAfterLedger(start - 1));
    if (moves) end = match.ledger;
  }
  const events = expired ? [] : scan(view.chain, start, after, end, matches, limit);
  const last = events.length === limit ? events.at(-1) : undefined;
  return { events, cursor: last?.id ?? rpcCursorAfterLedger(end - 1), ...range(view) };
}

/** The ledger range and its close times, as strings, which only `getEvents` writes so. */
function range({ chain, latest, oldest }: View) {
  return {
    latestLedger: latest,
    oldestLedger: oldest,
    latestLedgerCloseTime: String(chain.ledger(latest)?.closedAt),
    oldestLedgerCloseTime: String(chain.ledger(oldest)?.closedAt),
  };
}

/** Throws what a node answers before its first ledger. */
export function requireLedgers({ latest, chain }: View): void {
  if (latest < chain.first) throw new RpcError(INTERNAL_ERROR, "DB is empty");
}

/** Matching rows after a position, in order, at most `limit`: reads only the ledgers it needs. */
function scan(
  chain: Chain,
  start: number,
  after: string | undefined,
  end: number,
  matches: (row: EventRow) => boolean,
  limit: number,
): EventRow[] {
  const found: EventRow[] = [];
  for (let sequence = start; sequence < end; sequence++) {
    const rows = chain.ledger(sequence)?.rows() ?? [];
    for (let i = sequence === start && after ? countUpTo(rows, after) : 0; i < rows.length; i++) {
      const row = rows[i];
      if (row && matches(row) && found.push(row) >= limit) return found;
    }
  }
  return found;
}

/** How many rows have an id up to and including this one. */
function countUpTo(rows: readonly EventRow[], id: string): number {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((rows[middle]?.id ?? "") <= id) low = middle + 1;
    else high = middle;
  }
  return low;
}

function compile(filters: readonly Filter[], bug: boolean): (row: EventRow) => boolean {
  if (filters.length === 0) return () => true;
  // The buggy nodes narrow their SQL by the union of the keys of all filters, also for filters without that key.
  const types = bug ? filters.flatMap((filter) => filter.types) : [];
  const contractIds = bug ? filters.flatMap((filter) => filter.contractIds) : [];
  const prefilter = { types, contractIds, topics: [] };
  return (row) => filterMatches(prefilter, row) && filters.some((filter) => filterMatches(filter, row));
}

function filterMatches({ types, contractIds, topics }: Filter, row: EventRow): boolean {
  return (
    (types.length === 0 || types.includes(row.type)) &&
    (contractIds.length === 0 || contractIds.includes(row.contractId)) &&
    (topics.length === 0 || topics.some((topic) => topicMatches(topic, row.topic ?? [])))
  );
}

function topicMatches({ segments, open }: Row, topics: readonly string[]): boolean {
  if (open ? topics.length < segments.length : topics.length !== segments.length) return false;
  return segments.every((segment, i) => segment === "*" || segment === topics[i]);
}

function parseRequest(params: unknown, maxLimit: number): Request {
  const { startLedger, endLedger, filters, pagination, xdrFormat } = object(params ?? {}, "parameters");
  const start = u32(startLedger, "startLedger");
  const end = u32(endLedger, "endLedger");
  const { cursor, limit: rawLimit } = object(pagination ?? {}, "pagination");
  const limit = u32(rawLimit, "limit");
  const after = cursor === undefined || cursor === null ? undefined : parseCursor(cursor);
  const parsed = list(filters ?? [], "filters").map(parseFilter);

  if (xdrFormat !== undefined && xdrFormat !== "" && xdrFormat !== "base64") {
    throw new RpcError(INVALID_PARAMS, `xdrFormat ${String(xdrFormat)} is not simulated: base64 only`);
  }
  if (after !== undefined && (start !== 0 || end !== 0)) {
    throw new RpcError(INVALID_PARAMS, "ledger ranges and cursor cannot both be set");
  }
  if (after === undefined && start === 0) throw new RpcError(INVALID_PARAMS, "startLedger must be positive");
  if (limit > maxLimit) throw new RpcError(INVALID_PARAMS, `limit must not exceed ${maxLimit}`);
  if (parsed.length > 5) throw new RpcError(INVALID_PARAMS, "maximum 5 filters per request");
  parsed.forEach((filter, i) => {
    const wrong = whatIsWrong(filter);
    if (wrong) throw new RpcError(INVALID_PARAMS, `filter ${i + 1} invalid: ${wrong}`);
  });
  return {
    start: after === undefined ? start : parseRpcId(after).ledger,
    after,
    end: end === 0 ? undefined : end,
    limit: limit === 0 ? undefined : limit,
    filters: parsed,
  };
}

function parseFilter(filter: unknown): Filter {
  const { type, contractIds, topics } = object(filter, "filter");
  return {
    types: type === undefined || type === null || type === "" ? [] : text(type, "type").split(","),
    contractIds: list(contractIds ?? [], "contractIds").map((id) => text(id, "contract id")),
    topics: list(topics ?? [], "topics").map((row) => {
      const segments = list(row, "topic").map((segment) => parseSegment(text(segment, "segment")));
      const open = segments.at(-1) === "**";
      return { segments: open ? segments.slice(0, -1) : segments, open };
    }),
  };
}

function parseSegment(segment: string): string {
  if (segment === "*" || segment === "**") return segment;
  try {
    return canonical(segment);
  } catch {
    throw new RpcError(
      INVALID_PARAMS,
      `invalid parameters: a topic segment is not a base64 ScVal: ${segment}`,
    );
  }
}

function whatIsWrong({ types, contractIds, topics }: Filter): string | undefined {
  if (types.some((type) => type !== "contract" && type !== "system")) {
    return "filter type invalid: if set, type must be either 'system' or 'contract'";
  }
  if (contractIds.length > 5) return "maximum 5 contract IDs per filter";
  if (topics.length > 5) return "maximum 5 topics per filter";
  const badId = contractIds.findIndex((id) => !StrKey.isValidContract(id));
  if (badId >= 0) return `contract ID ${badId + 1} invalid`;
  for (const [i, { segments, open }] of topics.entries()) {
    const misplaced = segments.indexOf("**");
    if (segments.length === 0 && !open) return `topic ${i + 1} invalid: topic must have at least 1 segment`;
    if (misplaced >= 0) {
      return `topic ${i + 1} invalid: segment ${misplaced + 1} invalid: wildcard '**' is only allowed as the last segment`;
    }
    if (segments.length > 4) return `topic ${i + 1} invalid: topic cannot have more than 4 segments`;
  }
  return undefined;
}

function parseCursor(cursor: unknown): string {
  const [toid = "", event = "", ...rest] = text(cursor, "cursor").split("-");
  try {
    if (rest.length > 0) throw new Error("too many parts");
    return formatRpcId(parseRpcId(`${toid.padStart(19, "0")}-${event.padStart(10, "0")}`));
  } catch {
    throw new RpcError(INVALID_PARAMS, `invalid parameters: invalid event id ${String(cursor)}`);
  }
}

function object(value: unknown, what: string): Partial<Record<string, unknown>> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw wrongType(what, "an object");
  return value as Partial<Record<string, unknown>>;
}

function list(value: unknown, what: string): readonly unknown[] {
  if (!Array.isArray(value)) throw wrongType(what, "a list");
  return value;
}

function text(value: unknown, what: string): string {
  if (typeof value !== "string") throw wrongType(what, "a string");
  return value;
}

/** Absent and null count as 0, as they do in the node's own language. */
function u32(value: unknown, what: string): number {
  const number = value ?? 0;
  if (typeof number !== "number" || !Number.isInteger(number) || number < 0 || number > 0xffffffff) {
    throw wrongType(what, "an unsigned 32-bit integer");
  }
  return number;
}

function wrongType(what: string, wanted: string): RpcError {
  return new RpcError(INVALID_PARAMS, `invalid parameters: ${what} must be ${wanted}`);
}
