/** A list as PostgreSQL writes it, `{"a","b",NULL}`: its items as text, bytes as bytea. */
export function arrayText(items: readonly unknown[]): string {
  return `{${items.map(itemText).join(",")}}`;
}

function itemText(item: unknown): string {
  if (item === null) return "NULL";
  const text = item instanceof Uint8Array ? `\\x${Buffer.from(item).toString("hex")}` : String(item);
  return `"${text.replace(/["\\]/g, "\\$&")}"`;
}
