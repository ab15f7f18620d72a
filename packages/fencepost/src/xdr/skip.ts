// Moves over XDR values without building them: a ledger of a megabyte in a millisecond or two, where decoding it
// with the SDK takes a hundred. What a type looks like comes from the SDK's own schemas, so nothing of the
// protocol is written down twice.

/** A place in XDR bytes. Whatever reads there moves `at` on. */
export interface Cursor {
  readonly bytes: Buffer;
  readonly view: DataView;
  at: number;
  depth: number;
}

/**
 * Moves the cursor over one value of a type, refusing what the SDK's decoder refuses. Throws
 * {@link InvalidXdrError}, or a `RangeError` of the view, where the bytes end first.
 */
export type Skip = (cursor: Cursor) => void;

/** Reads a field that is of interest, named `Struct.field`. It moves the cursor as `skip` would. */
export type FieldReaders = Readonly<Record<`${string}.${string}`, (cursor: Cursor, skip: Skip) => void>>;

/** Bytes that are not the XDR of the type that they should be. */
export class InvalidXdrError extends Error {
  override readonly name = "InvalidXdrError";
}

/** What the SDK's schemas show of themselves. */
type Schema =
  | { readonly kind: "int32" | "uint32" | "float" | "int64" | "uint64" | "double" | "void" | "bool" }
  | { readonly kind: "enum"; readonly nameByValue: ReadonlyMap<number, string> }
  | { readonly kind: "opaque"; readonly length: number }
  | { readonly kind: "varOpaque" | "string"; readonly maxLength: number }
  | { readonly kind: "option"; readonly element: Schema }
  | { readonly kind: "array"; readonly element: Schema; readonly maxLength: number }
  | { readonly kind: "fixedArray"; readonly element: Schema; readonly length: number }
  | { readonly kind: "lazy"; readonly getSchema: () => Schema }
  | {
      readonly kind: "struct";
      readonly name: string;
      readonly entries: readonly (readonly [string, Schema])[];
    }
  | {
      readonly kind: "union";
      readonly name: string;
      readonly cases: readonly { readonly discriminant: number | boolean; readonly arm: Schema | FieldArm }[];
      readonly defaultArm: undefined;
    };

interface FieldArm {
  readonly kind: "field";
  readonly schema: Schema;
}

/** `size` in bytes where every value has it and nothing in it needs a check: such fields are skipped as one. */
interface Compiled {
  readonly skip: Skip;
  readonly size: number | null;
}

/** Values nested deeper than this are refused: the network itself allows far less. */
const MAX_DEPTH = 500;

/**
 * Makes the skip of a type from its schema in the SDK (`xdr.ScVal.schema`). Throws a `TypeError` where a reader
 * names a field that the type does not have, or the schema is of a form not known here.
 */
export function compileSkip(schema: object, readers: FieldReaders = {}): Skip {
  const known = new Map<Schema, Compiled>();
  const unused = new Set(Object.keys(readers));

  function compile(type: Schema): Compiled {
    const done = known.get(type) ?? build(type);
    known.set(type, done);
    return done;
  }

  function build(type: Schema): Compiled {
    switch (type.kind) {
      case "void":
        return ofSize(0);
      case "int32":
      case "uint32":
      case "float":
        return ofSize(4);
      case "int64":
      case "uint64":
      case "double":
        return ofSize(8);
      case "bool":
        return checked((c) => void readFlag(c));
      case "enum": {
        const { nameByValue } = type;
        return checked((c) => {
          if (!nameByValue.has(readInt32(c))) refuse(c);
        });
      }
      case "opaque":
        return type.length % 4 === 0 ? ofSize(type.length) : checked((c) => skipBytes(c, type.length));
      case "varOpaque":
      case "string": {
        const { maxLength } = type;
        return checked((c) => skipBytes(c, readLength(c, maxLength)));
      }
      case "option": {
        const { skip } = compile(type.element);
        return checked((c) => {
          if (readFlag(c)) skip(c);
        });
      }
      case "array": {
        const { skip } = compile(type.element);
        const { maxLength } = type;
        return checked((c) => {
          for (let left = readLength(c, maxLength); left > 0; left--) skip(c);
        });
      }
      case "fixedArray": {
        const { skip, size } = compile(type.element);
        if (size !== null) return ofSize(size * type.length);
        return checked((c) => {
          for (let left = type.length; left > 0; left--) skip(c);
        });
      }
      case "lazy": {
        let skip: Skip | undefined; // types refer to themselves here
        return checked((c) => {
          skip ??= compile(type.getSchema()).skip;
          if (++c.depth > MAX_DEPTH) refuse(c);
          skip(c);
          c.depth--;
        });
      }
      case "struct":
        return inSequence(
          type.entries.map(([field, fieldType]) => compileField(type.name, field, fieldType)),
        );
      case "union": {
        if (type.defaultArm) throw new TypeError(`The XDR union ${type.name} has a default arm.`);
        const arms = new Map(
          type.cases.map(({ discriminant, arm }) => [
            Number(discriminant),
            compile(arm.kind === "field" ? arm.schema : arm).skip,
          ]),
        );
        return checked((c) => {
          const arm = arms.get(readInt32(c));
          if (arm === undefined) return refuse(c);
          arm(c);
        });
      }
    }
  }

  function compileField(struct: string, field: string, type: Schema): Compiled {
    const compiled = compile(type);
    const reader = readers[`${struct}.${field}`];
    if (!reader) return compiled;
    unused.delete(`${struct}.${field}`);
    return checked((c) => reader(c, compiled.skip));
  }

  const { skip } = compile(schema as Schema);
  if (unused.size > 0) throw new TypeError(`The XDR type has no field ${[...unused].join(", ")}.`);
  return skip;
}

/** A cursor at the beginning of these bytes. */
export function cursorOf(bytes: Buffer): Cursor {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return { bytes, view, at: 0, depth: 0 };
}

export function readInt32(c: Cursor): number {
  const value = c.view.getInt32(c.at);
  c.at += 4;
  return value;
}

/** The length before an array, a string or bytes: no more than the bytes that are left, as each item has one. */
export function readLength(c: Cursor, maxLength: number): number {
  const length = c.view.getUint32(c.at);
  c.at += 4;
  if (length > maxLength || length > c.bytes.length - c.at) refuse(c);
  return length;
}

function readFlag(c: Cursor): boolean {
  const flag = readInt32(c);
  if (flag !== 0 && flag !== 1) refuse(c);
  return flag === 1;
}

function skipBytes(c: Cursor, length: number): void {
  c.at += length;
  for (let padding = (4 - (length % 4)) % 4; padding > 0; padding--) {
    if (c.view.getUint8(c.at++) !== 0) refuse(c);
  }
}

function ofSize(size: number): Compiled {
  return {
    size,
    skip: (c) => {
      c.at += size;
    },
  };
}

function checked(skip: Skip): Compiled {
  return { skip, size: null };
}

function inSequence(fields: readonly Compiled[]): Compiled {
  const parts: Compiled[] = [];
  for (const field of fields) {
    const last = parts.at(-1);
    if (last && last.size !== null && field.size !== null)
      parts[parts.length - 1] = ofSize(last.size + field.size);
    else parts.push(field);
  }
  const [only, ...others] = parts;
  if (only && others.length === 0) return only;
  const skips = parts.map(({ skip }) => skip);
  return checked((c) => {
    for (const skip of skips) skip(c);
  });
}

function refuse(c: Cursor): never {
  throw new InvalidXdrError(`It has no such value before byte ${c.at} of ${c.bytes.length}.`);
}
