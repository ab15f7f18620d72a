// What happens on the demo's chain: a day at the launchpad, drawn from a seed.
import { type Chain, type EventSpec, type Random, scv } from "@fencepost/simulator";
import { type FencingToken, type StreamEpoch, tokenFromRpcId } from "@fencepost/token";
import { campaign, launchToken, stream } from "../contracts.ts";

/** An event as its contract means it, before it is encoded. `kind` is what handlers are keyed by. */
export type LaunchpadEvent =
  | { kind: "token:mint"; to: string; amount: bigint }
  | { kind: "token:transfer"; from: string; to: string; amount: bigint }
  | { kind: "campaign:created"; id: bigint; owner: string; goal: bigint; deadline: bigint }
  | { kind: "campaign:pledged" | "campaign:refunded"; id: bigint; backer: string; amount: bigint }
  | { kind: "campaign:funded"; id: bigint; raised: bigint }
  | { kind: "stream:created"; id: bigint; recipient: string; total: bigint; start: bigint; end: bigint }
  | { kind: "stream:withdrawn" | "stream:cancelled"; id: bigint; amount: bigint };

/** An event that is on the chain, with the token that its place there gives it. */
export type ChainEvent = LaunchpadEvent & { readonly token: FencingToken };

/** The events of one operation, in their order. Empty: somebody else's, of a contract that nobody watches. */
type Transaction = readonly LaunchpadEvent[];
export type LedgerPlan = readonly Transaction[];

/** The testnet as Fencepost knows it. */
const TESTNET: StreamEpoch = { stream: "testnet", epoch: "20251217" };
/** The contracts whose events Fencepost is to see. */
export const WATCHED: readonly string[] = [launchToken.id, campaign.id, stream.id];

const START = 1_798_761_600n; // any time will do, as long as it is the same for a seed
const DAY = 86_400n;

/** Ledgers with exactly so many events of the launchpad's contracts; the same for the same seed. */
export function planActivity(random: Random, eventCount: number): readonly LedgerPlan[] {
  const transact = launchpad(random);
  const ledgers: LedgerPlan[] = [];
  for (let left = eventCount; left > 0; ) {
    const ledger: Transaction[] = [];
    for (let size = random.int(3, 9); size > 0 && left > 0; size--) {
      const transaction = random.next() < 0.1 ? [] : transact(left);
      left -= transaction.length;
      ledger.push(transaction);
    }
    ledgers.push(ledger);
  }
  return ledgers;
}

/** Closes a ledger with what was planned for it. Returns the events that Fencepost should now see, in order. */
export function closeLedger(chain: Chain, plan: LedgerPlan, closedAt: number): readonly ChainEvent[] {
  const specs = plan.flatMap((events, i) =>
    events.length > 0
      ? events.map((event) => ({ ...encode(event), tx: i + 1 }))
      : [{ contract: OTHER_CONTRACT, topics: [scv.sym("swap")], value: scv.u32(i), tx: i + 1 }],
  );
  const ids = chain
    .close({ events: specs, closedAt })
    .rows()
    .filter(({ contractId }) => WATCHED.includes(contractId))
    .map(({ id }) => id);
  const events = plan.flat();
  if (ids.length !== events.length) throw new Error("The chain does not hold what was put on it.");
  return ids.map((id, i) => ({ ...(events[i] as LaunchpadEvent), token: tokenOnChain(id) }));
}

/** The fencing token of the event with this id on the demo's chain. */
export function tokenOnChain(rpcId: string): FencingToken {
  return tokenFromRpcId(TESTNET, rpcId);
}

/** A pledge that reaches the goal: transfer, pledged, funded. */
const MOST_EVENTS = 3;
const OTHER_CONTRACT = scv.contractId("somebody else's");
const PEOPLE = Array.from({ length: 12 }, (_, i) => scv.accountId(`person ${i}`));

interface Campaign {
  readonly id: bigint;
  readonly goal: bigint;
  raised: bigint;
  state: "open" | "funded" | "refunding";
  readonly pledges: Map<string, bigint>;
}

interface Stream {
  readonly id: bigint;
  readonly recipient: string;
  left: bigint;
}

/** The contracts' own state, as far as it decides what can happen next. Gives one transaction a call. */
function launchpad(random: Random): (mostEvents: number) => Transaction {
  const balances = new Map<string, bigint>();
  const campaigns: Campaign[] = [];
  const streams: Stream[] = [];

  const pick = <T>(items: readonly T[]): T | undefined => items[random.int(0, items.length - 1)];
  const person = (): string => pick(PEOPLE) ?? "";
  const balance = (address: string): bigint => balances.get(address) ?? 0n;
  const part = (whole: bigint): bigint => (whole * BigInt(random.int(1, 40))) / 100n;

  function move(from: string, to: string, amount: bigint): LaunchpadEvent {
    balances.set(from, balance(from) - amount);
    balances.set(to, balance(to) + amount);
    return { kind: "token:transfer", from, to, amount };
  }

  function mint(to = person()): Transaction {
    // One in ten is beyond what a JavaScript number or an int8 could hold.
    const unit = random.next() < 0.1 ? 10n ** 15n : 10n ** 7n;
    const amount = BigInt(random.int(100_000, 1_000_000)) * unit + BigInt(random.int(0, 9_999_999));
    balances.set(to, balance(to) + amount);
    return [{ kind: "token:mint", to, amount }];
  }

  function transfer(): Transaction | undefined {
    const from = person();
    const amount = part(balance(from));
    return amount > 0n ? [move(from, person(), amount)] : undefined;
  }

  function createCampaign(): Transaction {
    const id = BigInt(campaigns.length + 1);
    const goal = BigInt(random.int(100_000, 2_000_000)) * 10n ** 7n;
    campaigns.push({ id, goal, raised: 0n, state: "open", pledges: new Map() });
    return [{ kind: "campaign:created", id, owner: person(), goal, deadline: START + 30n * DAY }];
  }

  function pledge(): Transaction | undefined {
    const target = pick(campaigns.filter(({ state }) => state === "open"));
    const backer = person();
    const amount = target ? part(target.goal) : 0n;
    if (!target || amount > balance(backer)) return undefined;
    target.raised += amount;
    target.pledges.set(backer, (target.pledges.get(backer) ?? 0n) + amount);
    const { id, raised, goal } = target;
    const events: LaunchpadEvent[] = [
      move(backer, campaign.id, amount),
      { kind: "campaign:pledged", id, backer, amount },
    ];
    if (raised < goal) return events;
    target.state = "funded";
    return [...events, { kind: "campaign:funded", id, raised }];
  }

  function refund(): Transaction | undefined {
    const target = pick(campaigns.filter(({ state, pledges }) => state !== "funded" && pledges.size > 0));
    const [backer, amount] = pick([...(target?.pledges ?? [])]) ?? [];
    if (!target || backer === undefined || amount === undefined) return undefined;
    target.state = "refunding";
    target.pledges.delete(backer);
    return [move(campaign.id, backer, amount), { kind: "campaign:refunded", id: target.id, backer, amount }];
  }

  function createStream(): Transaction | undefined {
    const payer = person();
    const total = part(balance(payer));
    if (total === 0n) return undefined;
    const id = BigInt(streams.length + 1);
    const recipient = person();
    streams.push({ id, recipient, left: total });
    return [
      move(payer, stream.id, total),
      { kind: "stream:created", id, recipient, total, start: START, end: START + 365n * DAY },
    ];
  }

  function payOut(kind: "stream:withdrawn" | "stream:cancelled"): Transaction | undefined {
    const target = pick(streams.filter(({ left }) => left > 0n));
    const amount = target && (kind === "stream:withdrawn" ? part(target.left) : target.left);
    if (!target || !amount) return undefined;
    target.left -= amount;
    const { id, recipient } = target;
    return [move(stream.id, recipient, amount), { kind, id, amount }];
  }

  const actions: readonly (readonly [share: number, act: () => Transaction | undefined])[] = [
    [15, () => mint()],
    [25, transfer],
    [6, createCampaign],
    [30, pledge],
    [4, refund],
    [7, createStream],
    [11, () => payOut("stream:withdrawn")],
    [2, () => payOut("stream:cancelled")],
  ];

  const newcomers = [...PEOPLE];
  return (mostEvents) => {
    const newcomer = newcomers.pop();
    if (newcomer !== undefined || mostEvents < MOST_EVENTS) return mint(newcomer);
    let draw = random.int(1, 100);
    for (const [share, act] of actions) {
      draw -= share;
      if (draw <= 0) return act() ?? mint();
    }
    return mint();
  };
}

function encode(event: LaunchpadEvent): EventSpec {
  const topics = [scv.sym(event.kind.slice(event.kind.indexOf(":") + 1))];
  switch (event.kind) {
    case "token:mint":
      return {
        contract: launchToken.id,
        topics: [...topics, scv.address(event.to)],
        value: scv.i128(event.amount),
      };
    case "token:transfer":
      return {
        contract: launchToken.id,
        topics: [...topics, scv.address(event.from), scv.address(event.to)],
        value: scv.i128(event.amount),
      };
    case "campaign:created":
      return {
        contract: campaign.id,
        topics,
        value: scv.struct({
          id: scv.u64(event.id),
          owner: scv.address(event.owner),
          goal: scv.i128(event.goal),
          deadline: scv.u64(event.deadline),
        }),
      };
    case "campaign:pledged":
    case "campaign:refunded":
      return {
        contract: campaign.id,
        topics: [...topics, scv.u64(event.id), scv.address(event.backer)],
        value: scv.i128(event.amount),
      };
    case "campaign:funded":
      return {
        contract: campaign.id,
        topics: [...topics, scv.u64(event.id)],
        value: scv.i128(event.raised),
      };
    case "stream:created":
      return {
        contract: stream.id,
        topics,
        value: scv.struct({
          stream_id: scv.u64(event.id),
          recipient: scv.address(event.recipient),
          total: scv.i128(event.total),
          start: scv.u64(event.start),
          end: scv.u64(event.end),
        }),
      };
    case "stream:withdrawn":
    case "stream:cancelled":
      return {
        contract: stream.id,
        topics,
        value: scv.struct({
          stream_id: scv.u64(event.id),
          [event.kind === "stream:withdrawn" ? "amount" : "returned"]: scv.i128(event.amount),
        }),
      };
  }
}
