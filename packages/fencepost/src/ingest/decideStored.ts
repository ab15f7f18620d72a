import type { FencingToken } from "@fencepost/token";

/**
 * What an event is, given the content hash stored under its token: new, the same again, or an alarm. The whole
 * decision of ingest; production and the exhaustive check both import it.
 */
export function decideStored(
  stored: Uint8Array | undefined,
  seen: Uint8Array,
): "new" | "replay" | "conflict" {
  if (stored === undefined) return "new";
  return Buffer.from(stored).equals(seen) ? "replay" : "conflict";
}

interface Decided {
  readonly token: FencingToken;
  readonly contentHash: Buffer;
}

/** An event, and the content hash under its token that it contradicts. */
export interface Conflict<Event> {
  readonly event: Event;
  readonly storedHash: Buffer;
}

/**
 * What of a batch is new, in the order given, with the content hashes that are stored under its tokens; or the first
 * event that contradicts what is stored, or what came before it. One that is there twice is new once.
 */
export function decideBatch<Event extends Decided>(
  events: readonly Event[],
  stored: ReadonlyMap<FencingToken, Buffer>,
): { readonly fresh: readonly Event[]; readonly conflict?: Conflict<Event> } {
  const hashes = new Map(stored);
  const fresh: Event[] = [];
  for (const event of events) {
    const storedHash = hashes.get(event.token);
    const decision = decideStored(storedHash, event.contentHash);
    if (storedHash && decision === "conflict") return { fresh: [], conflict: { event, storedHash } };
    if (decision !== "new") continue;
    hashes.set(event.token, event.contentHash);
    fresh.push(event);
  }
  return { fresh };
}
