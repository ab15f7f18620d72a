// Values for the schemas of an OpenAPI document, drawn by fast-check: those that fit, and those that nearly do.
import fc from "fast-check";

/** What is read of a schema. */
export interface Schema {
  readonly $ref?: string;
  readonly type?: string | readonly string[];
  readonly format?: string;
  readonly enum?: readonly unknown[];
  readonly example?: unknown;
  readonly pattern?: string;
  readonly minLength?: number;
  readonly maxLength?: number;
  readonly minimum?: number;
  readonly exclusiveMinimum?: number;
  readonly maximum?: number;
  readonly items?: Schema;
  readonly minItems?: number;
  readonly maxItems?: number;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly additionalProperties?: boolean | Schema;
  readonly required?: readonly string[];
}

export type Schemas = Readonly<Record<string, Schema>>;

/** Long lists and texts are drawn so long at the most: beyond that nothing new is learned. */
const MAX_DRAWN = 6;

/** What JSON holds, with what is awkward in it: lone surrogates, NUL, names of Object.prototype, huge numbers. */
export const anyJson: fc.Arbitrary<unknown> = fc.oneof(
  fc.jsonValue({ maxDepth: 3, stringUnit: "binary" }),
  fc.constantFrom<unknown>(
    null,
    "",
    "\u0000",
    "\ud800",
    "x".repeat(3_000),
    2 ** 53,
    -1,
    0.1,
    1e308,
    { __proto__: 1, constructor: "x" },
    JSON.parse('{"__proto__": {"a": 1}}'),
    [[]],
    {},
  ),
);

/** Values that fit a schema, as far as a schema can say it. */
export function fitting(schema: Schema, schemas: Schemas): fc.Arbitrary<unknown> {
  if (schema.$ref)
    return fitting(schemas[schema.$ref.slice(schema.$ref.lastIndexOf("/") + 1)] ?? {}, schemas);
  if (schema.enum) return fc.constantFrom(...schema.enum);
  const types = typeof schema.type === "string" ? [schema.type] : schema.type;
  if (!types) return anyJson;
  const drawn = fc.oneof(...types.map((type) => ofType(type, schema, schemas)));
  if (schema.example === undefined) return drawn;
  // Of what a schema cannot say, an example is the one value that fits for certain.
  return fc.oneof({ weight: 3, arbitrary: fc.constant(schema.example) }, { weight: 1, arbitrary: drawn });
}

function ofType(type: string, schema: Schema, schemas: Schemas): fc.Arbitrary<unknown> {
  switch (type) {
    case "null":
      return fc.constant(null);
    case "boolean":
      return fc.boolean();
    case "integer":
      return fc.integer({ min: schema.minimum ?? -10, max: Math.min(schema.maximum ?? 10_000, 2 ** 31 - 1) });
    case "number":
      return fc.double({
        min: schema.minimum ?? schema.exclusiveMinimum ?? -10,
        max: schema.maximum ?? 10,
        noNaN: true,
      });
    case "string":
      return textOf(schema);
    case "array":
      return fc.array(fitting(schema.items ?? {}, schemas), {
        minLength: schema.minItems ?? 0,
        maxLength: Math.min(schema.maxItems ?? MAX_DRAWN, MAX_DRAWN),
      });
    case "object":
      return objectOf(schema, schemas);
    default:
      throw new Error(`The schema has the type ${type}, which is not drawn.`);
  }
}

function textOf({ format, pattern, minLength = 0, maxLength = 40 }: Schema): fc.Arbitrary<string> {
  if (format === "date-time") return fc.date({ noInvalidDate: true }).map(isoOf);
  if (pattern !== undefined) return fc.stringMatching(new RegExp(pattern));
  const bounds = { minLength, maxLength: Math.min(maxLength, 40) };
  return fc.oneof(
    fc.string(bounds),
    fc.string({ ...bounds, unit: "binary" }),
    fc.stringMatching(/^[a-z][a-z_.]{0,30}$/),
  );
}

/** Years of four digits, which is what the format takes. */
function isoOf(date: Date): string {
  return new Date(Math.min(Math.max(date.getTime(), -62_167_219_200_000), 253_402_300_799_999)).toISOString();
}

function objectOf(schema: Schema, schemas: Schemas): fc.Arbitrary<unknown> {
  const { properties = {}, required = [], additionalProperties } = schema;
  const fields = Object.fromEntries(
    Object.entries(properties).map(([name, field]) => [name, fitting(field, schemas)]),
  );
  const named = fc.record(fields, { requiredKeys: [...required] });
  if (typeof additionalProperties !== "object") return named;
  const more = fc.dictionary(fc.string({ maxLength: 20 }), fitting(additionalProperties, schemas), {
    maxKeys: MAX_DRAWN,
  });
  return fc.tuple(more, named).map(([a, b]) => ({ ...a, ...(b as object) }));
}

/** Values that nearly fit: one field is wrong, missing or too much; or nothing fits at all. */
export function misfitting(schema: Schema, schemas: Schemas): fc.Arbitrary<unknown> {
  const mutated = fc
    .tuple(fitting(schema, schemas), fc.nat(), anyJson, fc.constantFrom("replace", "remove", "add"))
    .map(([value, at, junk, how]) => {
      if (typeof value !== "object" || value === null || Array.isArray(value)) return junk;
      const fields = Object.entries(value);
      if (how === "add") return { ...value, [`extra${at % 3}`]: junk };
      const chosen = fields[at % Math.max(1, fields.length)]?.[0];
      if (chosen === undefined) return junk;
      return Object.fromEntries(
        fields.flatMap(([name, field]) =>
          name !== chosen ? [[name, field]] : how === "remove" ? [] : [[name, junk]],
        ),
      );
    });
  return fc.oneof({ weight: 3, arbitrary: mutated }, { weight: 1, arbitrary: anyJson });
}
