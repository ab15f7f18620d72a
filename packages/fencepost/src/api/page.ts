// The reference page: rendered here from the OpenAPI document, without a script and without anything from elsewhere.
import { createHash } from "node:crypto";
import { html, raw } from "hono/html";
import type { OpenApiDocument } from "./document.ts";
import { PROBLEMS } from "./problem.ts";

// Only what the page reads of a document.
interface Schema {
  readonly $ref?: string;
  readonly type?: string | readonly string[];
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly items?: Schema;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly additionalProperties?: boolean | Schema;
  readonly required?: readonly string[];
  readonly allOf?: readonly Schema[];
  readonly anyOf?: readonly Schema[];
  readonly description?: string;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly maxLength?: number;
  readonly maxItems?: number;
}
type Content = Readonly<Record<string, { readonly schema?: Schema }>>;
interface Operation {
  readonly tags?: readonly string[];
  readonly operationId?: string;
  readonly summary?: string;
  readonly description?: string;
  readonly security?: readonly unknown[];
  readonly parameters?: readonly {
    readonly name: string;
    readonly in: string;
    readonly required?: boolean;
    readonly schema?: Schema;
    readonly description?: string;
  }[];
  readonly requestBody?: { readonly content: Content };
  readonly responses: Readonly<Record<string, { readonly description: string; readonly content?: Content }>>;
}
type Html = ReturnType<typeof html>;

const STYLE = `
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; color: #1a1a1a; background: #fff }
code, pre { font: 14px/1.4 ui-monospace, monospace }
h2 { margin-top: 3rem; border-bottom: 1px solid #ccc }
h3 { margin-top: 2.5rem }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid #e4e4e4 }
.method { text-transform: uppercase; font-weight: 700 }
@media (prefers-color-scheme: dark) { body { color: #e8e8e8; background: #161616 } a { color: #8ab4f8 } th, td { border-color: #333 } }
`;

/** Nothing but this page's own style may load or run. */
export const PAGE_CSP = [
  "default-src 'none'",
  `style-src 'sha256-${createHash("sha256").update(STYLE).digest("base64")}'`,
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join("; ");

export function referencePage(document: OpenApiDocument): string {
  const schemas = (document.components?.schemas ?? {}) as Readonly<Record<string, Schema>>;
  const operations = Object.entries(document.paths ?? {}).flatMap(([path, item]) =>
    Object.entries(item as Readonly<Record<string, Operation>>).map(([method, operation]) => ({
      path,
      method,
      ...operation,
    })),
  );
  const tags = [...new Set(operations.flatMap((operation) => operation.tags ?? []))];
  const byTag = tags.map((tag) => [tag, operations.filter((one) => one.tags?.includes(tag))] as const);
  const page = html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${document.info.title}: HTTP interface</title>
<style>${raw(STYLE)}</style>
</head>
<body>
<h1>${document.info.title}: HTTP interface</h1>
<p>${document.info.description ?? ""}</p>
<p>Send <code>Authorization: Bearer fp_…</code>; keys are made by <code>fencepost keys create</code>. The same as data:
<a href="/openapi.json">openapi.json</a>, OpenAPI ${document.openapi}.</p>
<ul>
${byTag.map(
  ([tag, same]) =>
    html`<li>${tag}: ${same.map(
      ({ operationId, summary }) => html`<a href="#${operationId ?? ""}">${summary ?? ""}</a> · `,
    )}</li>
`,
)}
<li><a href="#schemas">schemas</a> · <a href="#problems">problems</a></li>
</ul>
${byTag.map(
  ([tag, same]) => html`<h2>${tag}</h2>
${same.map(showOperation)}`,
)}
<h2 id="schemas">Schemas</h2>
${Object.entries(schemas).map(
  ([name, schema]) => html`<h3 id="schema-${name}">${name}</h3>
${schema.description ? html`<p>${schema.description}</p>` : ""}
${showFields(fieldsOf(schema, schemas))}`,
)}
<h2 id="problems">Problems</h2>
<p>A refused request is answered with <code>application/problem+json</code> and has changed nothing. Its <code>type</code>
is one of these.</p>
<table>
<tr><th>type</th><th>status</th><th>what it means, and what to do</th></tr>
${Object.entries(PROBLEMS).map(
  ([kind, [status, title, advice]]) =>
    html`<tr id="${kind}"><td><code>/docs#${kind}</code></td><td>${status}</td><td>${title}. ${advice}</td></tr>
`,
)}
</table>
</body>
</html>
`;
  return String(page);
}

function showOperation(operation: Operation & { readonly path: string; readonly method: string }): Html {
  const {
    path,
    method,
    operationId,
    summary,
    description,
    security,
    parameters = [],
    requestBody,
  } = operation;
  const taken = Object.values(requestBody?.content ?? {})[0]?.schema;
  return html`<h3 id="${operationId ?? ""}">${summary ?? ""}</h3>
<p><code><span class="method">${method}</span> ${path}</code>${security ? "" : " (needs no key)"}</p>
${description ? html`<p>${description}</p>` : ""}
${
  parameters.length === 0
    ? ""
    : html`<table>
<tr><th>in</th><th>name</th><th>what</th></tr>
${parameters.map(
  (parameter) => html`<tr><td>${parameter.in}</td><td><code>${parameter.name}</code></td><td>${typeOf(
    parameter.schema ?? {},
  )}${parameter.required ? ", required" : ""}. ${parameter.description ?? parameter.schema?.description ?? ""}</td></tr>
`,
)}
</table>`
}
${taken ? html`<p>Body: ${typeOf(taken)}</p>` : ""}
<table>
<tr><th>status</th><th>answer</th></tr>
${Object.entries(operation.responses).map(([status, { description: what, content }]) => {
  const answered = Object.values(content ?? {})[0]?.schema;
  return html`<tr><td>${status}</td><td>${what} ${answered ? typeOf(answered) : ""}</td></tr>
`;
})}
</table>
`;
}

type Field = readonly [path: string, schema: Schema, required: boolean];

/** The fields of an object and of the objects in it, by the path to them. */
function fieldsOf(schema: Schema, schemas: Readonly<Record<string, Schema>>, prefix = ""): readonly Field[] {
  const parts = schema.allOf ?? [schema];
  return parts.flatMap((part) => {
    const known = part.$ref ? schemas[nameOf(part.$ref)] : undefined;
    if (known) return fieldsOf(known, schemas, prefix);
    return Object.entries(part.properties ?? {}).flatMap(([name, field]): readonly Field[] => {
      const inner = field.items?.properties ? field.items : field;
      const path = `${prefix}${name}`;
      const deeper = inner.properties ? fieldsOf(inner, schemas, `${path}${field.items ? "[]" : ""}.`) : [];
      return [[path, field, part.required?.includes(name) === true], ...deeper];
    });
  });
}

function showFields(fields: readonly Field[]): Html {
  return html`<table>
<tr><th>field</th><th>what</th></tr>
${fields.map(
  ([name, schema, required]) =>
    html`<tr><td><code>${name}</code></td><td>${typeOf(schema)}${required ? "" : ", optional"}. ${
      schema.description ?? ""
    }</td></tr>
`,
)}
</table>`;
}

/** A schema in a few words; one with a name is linked. */
function typeOf(schema: Schema): Html | string {
  if (schema.$ref) return html`<a href="#schema-${nameOf(schema.$ref)}">${nameOf(schema.$ref)}</a>`;
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const either = schema.anyOf ?? schema.allOf;
  if (either)
    return html`${either.map((part, i) => html`${i > 0 ? (schema.anyOf ? " | " : " & ") : ""}${typeOf(part)}`)}`;
  const types = typeof schema.type === "string" ? [schema.type] : (schema.type ?? ["any JSON"]);
  const bounds = [
    ...(schema.minimum === undefined ? [] : [`from ${schema.minimum}`]),
    ...(schema.maximum === undefined ? [] : [`to ${schema.maximum}`]),
    ...(schema.maxLength === undefined ? [] : [`up to ${schema.maxLength} characters`]),
    ...(schema.maxItems === undefined ? [] : [`up to ${schema.maxItems}`]),
  ];
  const items = schema.items ? html` of ${typeOf(schema.items)}` : "";
  return html`${types.join(" | ")}${items}${bounds.length > 0 ? ` (${bounds.join(", ")})` : ""}`;
}

function nameOf(ref: string): string {
  return ref.slice(ref.lastIndexOf("/") + 1);
}
