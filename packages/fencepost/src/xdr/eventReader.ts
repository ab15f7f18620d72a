import type { DecodedEvent, ScValue } from "./scValue.ts";

/**
 * Reads the data of an event from its topics and value, or says in a sentence why they do not fit: such an event is
 * set aside. It has no effects, and gives the same for the same event.
 */
export interface EventReader<Data> {
  readonly read: (event: DecodedEvent) => EventReading<Data>;
}

export type EventReading<Data> = { readonly data: Data } | { readonly misfit: string };

/**
 * An event as it is on the chain, for a contract that publishes no event specs: `event.data` is its topics and its
 * value, with their types and without any loss. Every event fits.
 *
 * @example
 * defineContract({ id: "C…", startLedger: "latest", events: { swap: rawEvent() } });
 */
export function rawEvent(): EventReader<DecodedEvent> {
  return { read: ({ topics, value }) => ({ data: { topics, value } }) };
}

/** The text of a symbol or a string; null for anything else, also for a string that is not UTF-8. */
export function textOf(value: ScValue | undefined): string | null {
  const named = value?.type === "symbol" || value?.type === "string";
  return named && typeof value.value === "string" ? value.value : null;
}
