import { type EventSpec, scv } from "@fencepost/simulator";
import type { Discovery } from "../../ingest/discovery.ts";
import { loadDecoder } from "../../xdr/decode.ts";
import { toNative } from "../../xdr/scValue.ts";

/** A contract that makes others: each `pool_created` names one, `pool` in its value. */
export const FACTORY = scv.contractId("factory");
export const RULE = { name: "pools", factoryId: FACTORY };

/** The event by which the factory makes a contract. */
export function created(contractId: string, fields: Partial<EventSpec> = {}): EventSpec {
  return {
    contract: FACTORY,
    topics: [scv.sym("pool_created")],
    value: scv.struct({ pool: scv.address(contractId) }),
    ...fields,
  };
}

/** Finds the contracts that the factory made. */
export async function poolDiscovery(): Promise<Discovery> {
  const decoder = await loadDecoder();
  return {
    rules: [RULE],
    async find({ topics, value }) {
      const name = toNative(decoder.decode(topics[0] ?? ""));
      if (name !== "pool_created") return [];
      const data = toNative(decoder.decode(value)) as { pool?: unknown } | null;
      if (typeof data?.pool !== "string") return [{ rule: RULE.name, misfit: "it has no pool" }];
      return [{ rule: RULE.name, contractId: data.pool }];
    },
  };
}
