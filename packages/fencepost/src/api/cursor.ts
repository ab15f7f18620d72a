// Places in a list. To a caller they are opaque, so that what they hold may change.
import { RefusedRequestError } from "./problem.ts";

export function cursorOf(place: string): string {
  return Buffer.from(place).toString("base64url");
}

/** The place that a cursor names; it must look like one of its list. */
export function placeOf(cursor: string, pattern: RegExp): string {
  const place = Buffer.from(cursor, "base64url").toString();
  if (pattern.test(place) && cursorOf(place) === cursor) return place;
  throw invalidCursor();
}

export function invalidCursor(): RefusedRequestError {
  return new RefusedRequestError("invalid-request", "The cursor names no page.", {
    errors: [{ in: "query", field: "cursor", message: "Take next_cursor of the page before, or none." }],
  });
}

/** A page of up to `limit`, from one more than that. */
export function pageOf<Item extends { readonly id: string }, Shown>(
  found: readonly Item[],
  limit: number,
  show: (item: Item) => Shown,
): { items: Shown[]; next_cursor: string | null } {
  const items = found.slice(0, limit);
  const last = found.length > limit ? items.at(-1) : undefined;
  return { items: items.map(show), next_cursor: last ? cursorOf(last.id) : null };
}
