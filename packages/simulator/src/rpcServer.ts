import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { readAtLeast } from "./body.ts";
import type { Chain, EventRow } from "./chain.ts";
import { drawFaults, type Fault, type FaultPlan } from "./faults.ts";
import {
  type GetEventsResult,
  getEvents,
  INVALID_PARAMS,
  INVALID_REQUEST,
  RpcError,
  type View,
} from "./getEvents.ts";
import { getHealth, getLatestLedger, getLedgers, getNetwork, getVersionInfo } from "./ledgerMethods.ts";
import { listen } from "./listen.ts";
import { type Random, seededRandom } from "./random.ts";
import { type Recorder, startRecorder } from "./recorder.ts";
import { rememberPages, type ServedPages } from "./servedPages.ts";

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
  /** Rows that it does not have: none. `losesRows` draws some; a node with classic events off lacks those. */
  hides: (row: EventRow) => boolean;
  /** Methods that it does not offer: none. */
  unsupported: readonly string[];
  /** How long each answer takes, in milliseconds: 0. */
  latencyMs: number;
  /** Requests that it works on at once; one more gets HTTP 429: no limit. */
  maxInFlight: number;
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
  /** The most requests that it was asked at once. */
  readonly mostInFlight: number;
  /** Scripts faults: each is met by one of the next requests of this method (default `getEvents`), in order. */
  next(fault: Fault, method?: string): void;
  /** Draws faults from this plan from now on; undefined stops it. */
  plan(plan: FaultPlan | undefined): void;
  close(): Promise<void>;
}

const MAX_BODY = 512 * 1024;
const MAX_REQUESTS = 10_000;
const TOO_MANY: Fault = { kind: "status", status: 429, retryAfter: 1 };

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
    hides: () => false,
    unsupported: [],
    latencyMs: 0,
    maxInFlight: Number.POSITIVE_INFINITY,
    ...settings,
  };
  const recorder = startRecorder<RpcRequest>(MAX_REQUESTS);
  const scripts = new Map<string, Fault[]>();
  const pages = rememberPages();
  let draws = firstPlan && drawFaults(firstPlan);
  const calm = seededRandom(0);
  let inFlight = 0;
  let mostInFlight = 0;

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
    const busy = inFlight > node.maxInFlight;
    const faults = busy ? [TOO_MANY] : faultsFor(method);
    if (node.latencyMs > 0) await sleep(node.latencyMs);
    const answer = answerCall(node, pages, draws?.random ?? calm, method, params, faults);
    recorder.add({ method, params, headers: request.headers, faults, answer: summary(answer) });
    return httpAnswer(JSON.stringify({ jsonrpc: "2.0", id, ...answer }), faults);
  }

  const server = createServer((request, response) => {
    inFlight++;
    mostInFlight = Math.max(mostInFlight, inFlight);
    serve(request)
      // A bug of the simulator shows as what no node answers.
      .catch((error: Error): HttpAnswer => ({ status: 500, body: error.stack ?? error.message }))
      .then((answer) => {
        inFlight--;
        send(response, answer);
      });
  });
  const { port, close } = await listen(server);
  return {
    url: `http://127.0.0.1:${port}`,
    node,
    get requests() {
      return recorder.items;
    },
    waitFor: recorder.waitFor,
    get mostInFlight() {
      return mostInFlight;
    },
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
  pages: ServedPages,
  random: Random,
  method: string,
  params: unknown,
  faults: readonly Fault[],
): Answer {
  try {
    const scripted = find(faults, "error");
    if (scripted) throw new RpcError(scripted.code, scripted.message);
    if (node.unsupported.includes(method)) throw noSuchMethod(method);
    const view = viewOf(node, find(faults, "lag")?.ledgers ?? 0);
    if (params !== undefined && (typeof params !== "object" || params === null || Array.isArray(params))) {
      throw new RpcError(INVALID_PARAMS, "invalid parameters: parameters must be an object");
    }
    switch (method) {
      case "getEvents":
        return { result: getEventsWithFaults(node, view, pages, random, params, faults) };
      case "getHealth":
        return { result: getHealth(view, node.unhealthy) };
      case "getLatestLedger":
        return { result: getLatestLedger(view) };
      case "getLedgers":
        return { result: getLedgers(view, params ?? {}) };
      case "getNetwork":
        return { result: getNetwork(view) };
      case "getVersionInfo":
        return { result: getVersionInfo(view, node.version) };
      default:
        throw noSuchMethod(method);
    }
  } catch (error) {
    if (!(error instanceof RpcError)) throw error;
    return { error: { code: error.code, message: error.message } };
  }
}

function noSuchMethod(method: string): RpcError {
  return new RpcError(-32601, `no such method "${method}"`);
}

function viewOf({ chain, lag }: NodeSettings, moreLag: number): View {
  const latest = Math.min(chain.latest, Math.max(chain.first, chain.latest - lag - moreLag));
  return { chain, latest, oldest: chain.oldestAt(latest) };
}

function getEventsWithFaults(
  node: NodeSettings,
  view: View,
  pages: ServedPages,
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
  if (find(faults, "repeatRows")) events = events.flatMap((r) => (random.next() < 0.5 ? [r, r] : [r]));
  if (find(faults, "shuffle")) events = random.shuffle(events);
  const back = find(faults, "latestBack")?.ledgers ?? 0;
  return { ...page, events, latestLedger: Math.max(page.oldestLedger, page.latestLedger - back) };
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
