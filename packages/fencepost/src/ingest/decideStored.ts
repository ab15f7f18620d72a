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
