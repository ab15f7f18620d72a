import type { Config } from "./config/config.ts";
import { type DiscoveredBy, isDiscovered } from "./config/contract.ts";
import type { Discovery } from "./ingest/discovery.ts";
import { declaredName, decodeEvent, readData } from "./project/decodeEvent.ts";
import type { NamingEvent } from "./store/postgres/streams.ts";
import { type Decoder, loadDecoder } from "./xdr/decode.ts";

/** How the contracts of a config that events of others name are found. */
export function discoveryOf(config: Config): Discovery {
  const byName = new Map<string, DiscoveredBy>();
  for (const contract of config.projections.flatMap(({ contracts }) => Object.values(contracts))) {
    if (isDiscovered(contract)) byName.set(contract.id.rule, contract.id);
  }
  const rules = [...byName.values()];
  return {
    rules: rules.map(({ rule, factory }) => ({ name: rule, factoryId: factory.id })),
    async find(event) {
      const own = rules.filter(({ factory }) => factory.id === event.contractId);
      const decoder = await loadDecoder();
      const found = await Promise.all(own.map((rule) => findOne(rule, event, decoder)));
      return found.flatMap((finding) => finding ?? []);
    },
  };
}

type Finding = Awaited<ReturnType<Discovery["find"]>>[number];

/** Undefined where the event is another one than the rule's, or is said to name none. What goes wrong concerns this rule alone. */
async function findOne(
  { rule, factory, event: name, pick }: DiscoveredBy,
  event: NamingEvent,
  decoder: Decoder,
): Promise<Finding | undefined> {
  try {
    const shape = factory.events[name];
    if (!shape || declaredName(event, factory.events, decoder) !== name) return undefined;
    const read = await readData(shape, decodeEvent(event, decoder));
    if ("misfit" in read) return { rule, misfit: read.misfit };
    const contractId = pick(read.data);
    if (contractId === null) return undefined;
    if (typeof contractId === "string") return { rule, contractId };
    return { rule, misfit: `pick gave ${String(contractId)}, and no contract id` };
  } catch (error) {
    return { rule, misfit: String(error) };
  }
}
