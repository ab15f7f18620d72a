import { isResolved } from "../dispatcher.ts";
import type { Delivery, DeliveryFilter, Resolution } from "../store/deliveryStore.ts";
import { alignedLines } from "./alignedLines.ts";
import { NotResolvedError } from "./errors.ts";
import { print, printJson } from "./print.ts";
import { withDispatcher } from "./withDispatcher.ts";

interface ConfigOption {
  readonly config: string;
}

/** `fencepost deliveries list`: of one webhook, the newest first. */
export async function listDeliveries(
  webhookId: string,
  options: ConfigOption & DeliveryFilter & { readonly limit: number; readonly json: boolean },
): Promise<void> {
  const { state, needsPerson = false, limit, json } = options;
  const deliveries = await withDispatcher(options, ({ dispatcher }) =>
    dispatcher.listDeliveries(webhookId, { ...(state && { state }), needsPerson }, { limit }),
  );
  if (json) return printJson({ deliveries });
  if (deliveries.length === 0) return print("There are none.");
  const head = ["id", "event id", "state", "attempts", "next", "last answer"];
  print(...alignedLines([head, ...deliveries.map(deliveryRow)]));
  if (deliveries.length === limit) print("There may be more: raise --limit.");
}

function deliveryRow(delivery: Delivery): readonly string[] {
  const { id, eventId, state, attempts, nextAt, blockedBy, lastStatus, lastError } = delivery;
  return [
    id,
    eventId,
    state,
    String(attempts),
    blockedBy === null ? (nextAt?.toISOString() ?? "-") : `behind ${blockedBy}`,
    lastError ?? (lastStatus === null ? "-" : String(lastStatus)),
  ];
}

/** `fencepost deliveries redeliver`: sends again what ended, with the same ids and bytes. */
export async function redeliver(id: string, options: ConfigOption): Promise<void> {
  const { state } = await withDispatcher(options, ({ dispatcher }) => dispatcher.redeliver(id));
  print(`${id} is ${state}. A running "fencepost dev" or "fencepost start" sends it.`);
}

/** `fencepost deliveries resolve`: what a person decides about a delivery that is in doubt or failed. */
export async function resolve(id: string, resolution: Resolution, options: ConfigOption): Promise<void> {
  const delivery = await withDispatcher(options, ({ dispatcher }) => dispatcher.resolve(id, resolution));
  if (!isResolved(delivery, resolution)) throw new NotResolvedError(id, delivery.state);
  print(`${id} is ${delivery.state}.`);
}
