/** A function of a text that remembers what it returned for up to `max` of them; then it begins anew. */
export function remembering<T>(max: number, read: (text: string) => T): (text: string) => T {
  const known = new Map<string, T>();
  return (text) => {
    const before = known.get(text);
    if (before !== undefined) return before;
    const found = read(text);
    if (known.size >= max) known.clear();
    known.set(text, found);
    return found;
  };
}
