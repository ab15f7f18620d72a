/** The longest name that is written, in characters; a number may come behind it. */
const MAX_NAME = 60;

/** Words that no constant of a module can be called. */
const RESERVED = new Set(
  (
    "arguments await break case catch class const continue debugger default delete do else enum eval export extends " +
    "false finally for function globalThis if implements import in instanceof interface let new null package private " +
    "protected public return static super switch this throw true try typeof undefined var void while with yield"
  ).split(" "),
);

/** `SwapEvent` from `swap_event`, `swap-event` or `SwapEvent`; empty where no letter or digit of a-z 0-9 is left. */
export function pascalCase(text: string): string {
  const words = text.split(/[^A-Za-z0-9]+/).filter((word) => word !== "");
  return words
    .map((word) => word.charAt(0).toUpperCase() + word.slice(1))
    .join("")
    .slice(0, MAX_NAME);
}

/** A name for a constant: `lendingPool` from `lending-pool`, `usdc` from `USDC`. */
export function constantName(text: string): string {
  const pascal = pascalCase(text);
  const name = /[a-z]/.test(pascal) ? pascal.charAt(0).toLowerCase() + pascal.slice(1) : pascal.toLowerCase();
  return isConstantName(name) ? name : `contract${pascal}`;
}

export function isConstantName(name: string): boolean {
  return /^[a-z][A-Za-z0-9_]*$/.test(name) && name.length <= MAX_NAME && !RESERVED.has(name);
}

/** Gives names that nobody else has: the wish itself, or the wish with the next free number behind it. */
export function nameGiver(taken: Iterable<string>): (wish: string) => string {
  const given = new Set(taken);
  return (wish) => {
    let name = wish;
    // Ends: there are fewer names given than numbers to try.
    for (let i = 2; given.has(name); i++) name = `${wish}${i}`;
    given.add(name);
    return name;
  };
}

/** A key of an object, or a field of an interface, as it is written; `__proto__` in brackets, or it would set the prototype. */
export function propertyKey(name: string): string {
  if (name === "__proto__") return '["__proto__"]';
  return /^[A-Za-z_$][\w$]*$/.test(name) ? name : JSON.stringify(name);
}
