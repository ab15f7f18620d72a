import type { FencingToken } from "@fencepost/token";
import type { FoundWatch, NamingEvent } from "../store/postgres/streams.ts";

/** Contracts that are watched because an event of another one, their factory, names them. */
export interface Discovery {
  readonly rules: readonly DiscoveryRule[];
  /** What an event of a factory names, by each rule that it concerns. What it throws is taken as a misfit. */
  find(event: NamingEvent): Promise<readonly Finding[]>;
}

export interface DiscoveryRule {
  /** Tells the rule from others, also in the database: another name is another rule. */
  readonly name: string;
  readonly factoryId: string;
}

/** A contract that an event names, or why it names none although the rule expects it to. */
type Finding =
  | { readonly rule: string; readonly contractId: string }
  | { readonly rule: string; readonly misfit: string };

/** What a batch of events names. */
export interface Found {
  readonly watches: readonly FoundWatch[];
  readonly unnamed: readonly {
    readonly token: FencingToken;
    readonly rule: string;
    readonly reason: string;
  }[];
}

export const NOTHING_FOUND: Found = { watches: [], unnamed: [] };

/** Asks the rules about the events of their factories. An event that names no contract is told, and blocks nothing. */
export async function findContracts(
  discovery: Discovery | undefined,
  events: readonly NamingEvent[],
): Promise<Found> {
  if (!discovery || discovery.rules.length === 0) return NOTHING_FOUND;
  const factories = new Set(factoryIds(discovery));
  const watches: FoundWatch[] = [];
  const unnamed: Found["unnamed"][number][] = [];
  for (const event of events) {
    if (event.contractId === null || !factories.has(event.contractId)) continue;
    const { token, ledger } = event;
    for (const finding of await findOrMisfit(discovery, event)) {
      const { rule } = finding;
      if ("misfit" in finding) unnamed.push({ token, rule, reason: finding.misfit });
      else if (!/^C[A-Z2-7]{55}$/.test(finding.contractId)) {
        unnamed.push({ token, rule, reason: `${JSON.stringify(finding.contractId)} is not a contract id` });
      } else watches.push({ contractId: finding.contractId, ledger, rule, token });
    }
  }
  return { watches, unnamed };
}

export function factoryIds({ rules }: Discovery): readonly string[] {
  return [...new Set(rules.map(({ factoryId }) => factoryId))];
}

async function findOrMisfit(discovery: Discovery, event: NamingEvent): Promise<readonly Finding[]> {
  try {
    return await discovery.find(event);
  } catch (error) {
    const rules = discovery.rules.filter(({ factoryId }) => factoryId === event.contractId);
    return rules.map(({ name }) => ({ rule: name, misfit: String(error) }));
  }
}
