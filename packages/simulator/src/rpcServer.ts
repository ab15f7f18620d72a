import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { readAtLeast } from "./body.ts";
import type { Chain, Ledger } from "./chain.ts";
import { drawFaults, type Fault, type FaultPlan } from "./faults.ts";
import {
  type GetEventsResult,
  getEvents,
  INTERNAL_ERROR,
  INVALID_PARAMS,
  INVALID_REQUEST,
  RpcError,
  requireLedgers,
  type View,
} from "./getEvents.ts";
import { listen } from "./listen.ts";
import { type Random, seededRandom } from "./random.ts";
import { type Recorder, startRecorder } from "./recorder.ts";

/** How the node behaves; every field may be changed while it runs. */
export interface NodeSettings {
  /** The chain it serves. Another one in its place is a reset of the network. */
  chain: Chain;
  /** What `getVersionInfo` says; default "27.1.1". */
  version: string;
  /** Rows of a page unless asked for: 100. */
  defaultLimit: number;
  /** Most rows of a page: 10,000. */
  maxLimit: number;
  /** Ledgers scanned by one request: 10,000; some providers less. At least 2. */
  scanLimit: number;
  /** Ledgers by which this node is behind the chain: 0. */
  lag: number;
  /** What an expired cursor gets: the node's error (default), or 200 with an empty page, as some providers do. */
  expired: "error" | "empty";
  /** The filter bug of nodes before v27.1.1: false. */
  filterBug: boolean;
  /** True: `getHealth` answers with its error. */
  unhealthy: boolean;
}

/** One request as the node saw it, and how it answered. */
export interface RpcRequest {
  readonly method: string;
  readonly params: unknown;
  readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>;
  readonly faults: readonly Fault[];
  /** The JSON-RPC answer in short. With a fault of transport the client did not get it. */
  readonly answer: RpcAnswer;
}

export type RpcAnswer =
  | { readonly rows?: number; readonly cursor?: string; readonly latestLedger?: number }
  | { readonly code: number; readonly message: string };

export interface RpcServer {
  /** `http://127.0.0.1:port` */
  readonly url: string;
  /** How the node behaves from the next request on. */
  readonly node: NodeSettings;
  /** The last 10,000 requests, in order of arrival. */
  readonly requests: readonly RpcRequest[];
  readonly waitFor: Recorder<RpcRequest>["waitFor"];
  /** Scripts faults: each is met by one of the next requests of this method (default `getEvents`), in order. */
  next(fault: Fault, method?: string): void;
  /** Draws faults from this plan from now on; undefined stops it. */
  plan(plan: FaultPlan | undefined): void;
  close(): Promise<void>;
}

const MAX_BODY = 512 * 1024;
const MAX_REQUESTS = 10_000;
const MAX_PAGES = 16;
const MAX_PAGE_ROWS = 20_000;
const MAX_LEDGERS_PAGE = 200;
const DEFAULT_LEDGERS_PAGE = 50;

/** Starts a Stellar RPC node (JSON-RPC 2.0 over HTTP) on a free port of the loopback interface. */
export async function startRpc(
  options: { readonly chain: Chain; readonly plan?: FaultPlan } & Partial<NodeSettings>,
): Promise<RpcServer> {
  const { plan: firstPlan, ...settings } = options;
  const node: NodeSettings = {
    version: "27.1.1",
    defaultLimit: 100,
    maxLimit: 10_000,
    scanLimit: 10_000,
    lag: 0,
    expired: "error",
    filterBug: false,
    unhealthy: false,
    ...settings,
  };
  const recorder = startRecorder<RpcRequest>(MAX_REQUESTS);
  const scripts = new Map<string, Fault[]>();
  const pages = rememberPages();
  let draws = firstPlan && drawFaults(firstPlan);
  const calm = seededRandom(0);

  function faultsFor(method: string): Fault[] {
    const scripted = scripts.get(method)?.shift();
    return scripted ? [scripted] : (draws?.draw() ?? []);
  }

  async function serve(request: IncomingMessage): Promise<HttpAnswer> {
    if (request.method !== "POST") return { status: 405, body: "" };
    const body = await readAtLeast(request, MAX_BODY + 1);
    if (body.length > MAX_BODY) {
      return { status: 413, headers: { connection: "close" }, body: "http: request body too large" };
    }
    const call = parseCall(body);
    if ("code" in call) return httpAnswer(JSON.stringify({ jsonrpc: "2.0", id: null, error: call }), []);

    const { id, method, params } = call;
    const faults = faultsFor(method);
    const answer = answerCall(node, pages, draws?.random ?? calm, method, params, faults);
    recorder.add({ method, params, headers: request.headers, faults, answer: summary(answer) });
    return httpAnswer(JSON.stringify({ jsonrpc: "2.0", id, ...answer }), faults);
  }

  const server = createServer((request, response) => {
    serve(request).then(
      (answer) => send(response, answer),
      // A bug of the simulator shows as what no node answers.
      (error: Error) => send(response, { status: 500, body: error.stack ?? error.message }),
    );
  });
  const { port, close } = await listen(server);
  return {
    url: `http://127.0.0.1:${port}`,
    node,
    get requests() {
      return recorder.items;
    },
    waitFor: recorder.waitFor,
    next(fault, method = "getEvents") {
      scripts.set(method, [...(scripts.get(method) ?? []), fault]);
    },
    plan(plan) {
      draws = plan && drawFaults(plan);
    },
    close,
  };
}

interface Call {
  readonly id: unknown;
  readonly method: string;
  readonly params: unknown;
}

function parseCall(body: Buffer): Call | { code: number; message: string } {
  let call: Partial<Record<"jsonrpc" | "id" | "method" | "params", unknown>>;
  try {
    call = JSON.parse(body.toString("utf8"));
  } catch {
    return { code: -32700, message: "invalid JSON" };
  }
  if (call === null || call.jsonrpc !== "2.0" || typeof call.method !== "string") {
    return { code: INVALID_REQUEST, message: "not a single JSON-RPC 2.0 request" };
  }
  return { id: call.id ?? null, method: call.method, params: call.params };
}

type Answer =
  | { readonly result: unknown }
  | { readonly error: { readonly code: number; readonly message: string } };

function answerCall(
  node: NodeSettings,
  pages: Pages,
  random: Random,
  method: string,
  params: unknown,
  faults: readonly Fault[],
): Answer {
  try {
    const scripted = find(faults, "error");
    if (scripted) throw new RpcError(scripted.code, scripted.message);
    const view = viewOf(node, find(faults, "lag")?.ledgers ?? 0);
    if (params !== undefined && (typeof params !== "object" || params === null || Array.isArray(params))) {
      throw new RpcError(INVALID_PARAMS, "invalid parameters: parameters must be an object");
    }
    switch (method) {
      case "getEvents":
        return { result: getEventsWithFaults(node, view, pages, random, params, faults) };
      case "getHealth":
        return { result: getHealth(node, view) };
      case "getLatestLedger":
        return { result: getLatestLedger(view) };
      case "getLedgers":
        return { result: getLedgers(view, params ?? {}) };
      case "getNetwork":
        return { result: { passphrase: node.chain.passphrase, protocolVersion: node.chain.protocolVersion } };
      case "getVersionInfo":
        return { result: getVersionInfo(node) };
      default:
        throw new RpcError(-32601, `no such method "${method}"`);
    }
  } catch (error) {
    if (!(error instanceof RpcError)) throw error;
    return { error: { code: error.code, message: error.message } };
  }
}

function viewOf({ chain, lag }: NodeSettings, moreLag: number): View {
  const latest = Math.min(chain.latest, Math.max(chain.first, chain.latest - lag - moreLag));
  return { chain, latest, oldest: chain.oldestAt(latest) };
}

function getEventsWithFaults(
  node: NodeSettings,
  view: View,
  pages: Pages,
  random: Random,
  params: unknown,
  faults: readonly Fault[],
): GetEventsResult {
  const rows = find(faults, "shortPage")?.rows;
  let page = getEvents(view, params, {
    ...node,
    scanLimit: find(faults, "shortWindow")?.ledgers ?? node.scanLimit,
    cut: {
      ...(rows === undefined ? {} : { rows }),
      beforeFirstMatch: find(faults, "emptyPage") !== undefined,
    },
  });
  const earlier = pages.earlier(node.chain, params);
  if (find(faults, "samePage")) page = earlier.same ?? page;
  else if (find(faults, "oldPage")) page = earlier.old[random.int(0, earlier.old.length - 1)] ?? page;
  else pages.remember(node.chain, params, page);

  let events = [...page.events];
  if (find(faults, "dropRows")) events = events.filter(() => random.next() < 0.5);
  if (find(faults, "repeatRows"))
    events = events.flatMap((row) => (random.next() < 0.5 ? [row, row] : [row]));
  if (find(faults, "shuffle")) events = random.shuffle(events);
  const back = find(faults, "latestBack")?.ledgers ?? 0;
  return { ...page, events, latestLedger: Math.max(page.oldestLedger, page.latestLedger - back) };
}

/** Pages that were served, for the faults that serve one again. Only ever to the same filters on the same chain. */
interface Pages {
  remember(chain: Chain, params: unknown, page: GetEventsResult): void;
  /** The page that led to the cursor of this request, and those from further back. */
  earlier(
    chain: Chain,
    params: unknown,
  ): { same: GetEventsResult | undefined; old: readonly GetEventsResult[] };
}

function rememberPages(): Pages {
  const pages: { chain: Chain; filters: string; page: GetEventsResult }[] = [];
  return {
    remember(chain, params, page) {
      pages.push({ chain, filters: filtersOf(params), page });
      const rows = () => pages.reduce((sum, { page: { events } }) => sum + events.length, 0);
      while (pages.length > 1 && (pages.length > MAX_PAGES || rows() > MAX_PAGE_ROWS)) pages.shift();
    },
    earlier(chain, params) {
      const cursor = (params as { pagination?: { cursor?: string } } | undefined)?.pagination?.cursor ?? "";
      const filters = filtersOf(params);
      const mine = pages.filter((p) => p.chain === chain && p.filters === filters).map(({ page }) => page);
      return {
        same: mine.find((page) => page.cursor === cursor),
        old: mine.filter((page) => page.cursor < cursor),
      };
    },
  };
}

function filtersOf(params: unknown): string {
  return JSON.stringify((params as { filters?: unknown } | undefined)?.filters ?? []);
}

function getHealth(node: NodeSettings, view: View) {
  if (view.latest < view.chain.first) {
    throw new RpcError(INTERNAL_ERROR, "data stores are not initialized: DB is empty");
  }
  if (node.unhealthy) {
    throw new RpcError(INTERNAL_ERROR, "latency (1m0s) since last known ledger closed is too high (>30s)");
  }
  return {
    status: "healthy",
    ...numericRange(view),
    ledgerRetentionWindow: node.chain.retention,
  };
}

function getLatestLedger(view: View) {
  requireLedgers(view);
  const ledger = ledgerAt(view, view.latest);
  return {
    id: ledger.hash,
    protocolVersion: view.chain.protocolVersion,
    sequence: ledger.sequence,
    closeTime: String(ledger.closedAt),
    headerXdr: "",
    metadataXdr: "",
  };
}

function getLedgers(view: View, params: object) {
  requireLedgers(view);
  const { startLedger = 0, pagination } = params as {
    startLedger?: number;
    pagination?: Record<string, unknown>;
  };
  const { cursor = "", limit = 0 } = pagination ?? {};
  const { oldest, latest } = view;
  const edges = `the oldest ledger: ${oldest} and the latest ledger: ${latest} for this rpc instance`;
  if (typeof cursor !== "string" || !/^\d*$/.test(cursor) || !Number.isInteger(startLedger)) {
    throw new RpcError(
      INVALID_PARAMS,
      "invalid parameters: startLedger is an integer and cursor a string of digits",
    );
  }
  if (typeof limit !== "number" || !Number.isInteger(limit) || limit < 0) {
    throw new RpcError(INVALID_PARAMS, "invalid parameters: limit must be an unsigned integer");
  }
  if (limit > MAX_LEDGERS_PAGE)
    throw new RpcError(INVALID_REQUEST, `limit must not exceed ${MAX_LEDGERS_PAGE}`);
  if (cursor !== "" && startLedger !== 0) {
    throw new RpcError(INVALID_REQUEST, "startLedger and cursor cannot both be set");
  }
  const start = cursor === "" ? startLedger : Number(cursor) + 1;
  if (start < oldest || start > latest) {
    throw cursor === ""
      ? new RpcError(INVALID_REQUEST, `start ledger (${start}) must be between ${edges}`)
      : new RpcError(INVALID_PARAMS, `cursor ('${cursor}') must be between ${edges}`);
  }
  const end = Math.min(latest, start + (limit || DEFAULT_LEDGERS_PAGE) - 1);
  const ledgers = Array.from({ length: end - start + 1 }, (_, i) => {
    const { hash, sequence, closedAt } = ledgerAt(view, start + i);
    return { hash, sequence, ledgerCloseTime: String(closedAt), headerXdr: "", metadataXdr: "" };
  });
  return { ledgers, ...numericRange(view), cursor: String(end) };
}

function getVersionInfo({ version, chain }: NodeSettings) {
  return {
    version,
    commitHash: "0".repeat(40),
    buildTimestamp: "2026-01-01T00:00:00",
    captiveCoreVersion: "simulated",
    protocolVersion: chain.protocolVersion,
  };
}

function numericRange(view: View) {
  return {
    latestLedger: view.latest,
    latestLedgerCloseTime: ledgerAt(view, view.latest).closedAt,
    oldestLedger: view.oldest,
    oldestLedgerCloseTime: ledgerAt(view, view.oldest).closedAt,
  };
}

function ledgerAt({ chain }: View, sequence: number): Ledger {
  const ledger = chain.ledger(sequence);
  if (!ledger) throw new RpcError(INTERNAL_ERROR, `ledger ${sequence} is not in the DB`);
  return ledger;
}

function summary(answer: Answer): RpcAnswer {
  if ("error" in answer) return answer.error;
  const { events, cursor, latestLedger } = answer.result as Partial<GetEventsResult>;
  return {
    ...(events && { rows: events.length }),
    ...(cursor !== undefined && { cursor }),
    ...(latestLedger !== undefined && { latestLedger }),
  };
}

function find<K extends Fault["kind"]>(faults: readonly Fault[], kind: K) {
  return faults.find((fault): fault is Fault & { readonly kind: K } => fault.kind === kind);
}

/** What goes over HTTP: an answer, or what is done to the connection instead of (the rest of) it. */
interface HttpAnswer {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body: string;
  readonly instead?: "hang" | "resetBefore" | "resetMiddle";
}

function httpAnswer(json: string, faults: readonly Fault[]): HttpAnswer {
  const answer = { status: 200, headers: { "content-type": "application/json" }, body: json };
  const reset = find(faults, "reset");
  const status = find(faults, "status");
  if (find(faults, "hang")) return { ...answer, instead: "hang" };
  if (reset) return { ...answer, instead: reset.when === "before" ? "resetBefore" : "resetMiddle" };
  if (status) {
    const { retryAfter } = status;
    return {
      status: status.status,
      ...(retryAfter === undefined ? {} : { headers: { "retry-after": String(retryAfter) } }),
      body: "",
    };
  }
  if (find(faults, "html")) {
    return {
      status: 200,
      headers: { "content-type": "text/html" },
      body: "<html><body>Bad gateway</body></html>",
    };
  }
  if (find(faults, "truncate")) return { ...answer, body: json.slice(0, json.length >> 1) };
  return answer;
}

function send(response: ServerResponse, { status, headers, body, instead }: HttpAnswer): void {
  if (instead === "hang") return; // until the client gives up or the server closes
  if (instead === "resetBefore") {
    response.socket?.resetAndDestroy();
    return;
  }
  response.writeHead(status, { ...headers, "content-length": Buffer.byteLength(body) });
  if (instead === "resetMiddle") {
    response.write(body.slice(0, body.length >> 1), () => response.socket?.resetAndDestroy());
  } else {
    response.end(body);
  }
}
