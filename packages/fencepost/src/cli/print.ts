/** Writes lines to standard output. */
export function print(...lines: readonly string[]): void {
  process.stdout.write(`${lines.join("\n")}\n`);
}

/** Writes one JSON object to standard output: bigint as decimal strings, times as ISO. */
export function printJson(value: unknown): void {
  print(JSON.stringify(value, (_, item) => (typeof item === "bigint" ? item.toString() : item), 2));
}
