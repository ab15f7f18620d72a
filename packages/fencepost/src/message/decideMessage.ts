/**
 * Which record an event id has: none, the same content, or another content under the same id. Production and
 * the exhaustive check both import it.
 */
export function decideMessage(
  stored: Uint8Array | undefined,
  seen: Uint8Array,
): "new" | "existing" | "mismatch" {
  if (stored === undefined) return "new";
  return Buffer.from(stored).equals(seen) ? "existing" : "mismatch";
}
