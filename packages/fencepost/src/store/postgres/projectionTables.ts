import { is, SQL, type SQLWrapper } from "drizzle-orm";
import {
  getTableConfig,
  IndexedColumn,
  PgArray,
  PgDialect,
  PgEnumColumn,
  PgEnumObjectColumn,
  type PgTable,
} from "drizzle-orm/pg-core";
import type { DatabaseClient } from "./database.ts";

/** A table of a projection uses something that Fencepost does not create. Names table and what. */
export class UnsupportedTableError extends Error {
  override readonly name = "UnsupportedTableError";

  constructor(table: string, what: string) {
    super(`The table ${table} cannot be created: ${what}.`);
  }
}

/** A schema with the name of a version's exists, and Fencepost did not make it. */
export class SchemaTakenError extends Error {
  override readonly name = "SchemaTakenError";

  constructor(schema: string) {
    super(
      `The schema ${schema} exists, but not in Fencepost's records. Rename the projection, or drop the schema if ` +
        `it is what remains of an earlier installation: DROP SCHEMA ${schema} CASCADE.`,
    );
  }
}

/** The views of a projection could not be pointed at another version; nothing was changed. */
export class ViewSwitchError extends Error {
  override readonly name = "ViewSwitchError";

  constructor(name: string, version: number, cause: unknown) {
    const { message, detail } = cause as { message: string; detail?: string };
    super(
      `The views in the schema ${name} could not be pointed at v${version}: ${[message, detail].filter(Boolean).join(". ")}. ` +
        "Nothing was changed and it is tried again. Drop what depends on a view whose shape changes, and end queries " +
        "that hold it for long.",
      { cause },
    );
  }
}

type TableConfig = ReturnType<typeof getTableConfig>;
type Column = TableConfig["columns"][number];

const dialect = new PgDialect();

/**
 * The statements that make a projection's tables, with unqualified names: run them under the search path of its
 * schema. The same tables always give the same text, so it tells whether they changed. Throws
 * {@link UnsupportedTableError} for what is not made here, as enums and other schemas.
 */
export function tableStatements(tables: readonly PgTable[]): readonly string[] {
  const configs = tables.map(getTableConfig).sort((a, b) => (a.name < b.name ? -1 : 1));
  for (const [i, { name }] of configs.entries()) {
    if (configs[i + 1]?.name === name) throw new UnsupportedTableError(name, "two tables have this name");
  }
  return [
    ...configs.map(createTable),
    ...configs.flatMap((config) => config.indexes.map((index) => createIndex(config, index))),
    ...configs.flatMap((config) => config.foreignKeys.map((key) => addForeignKey(config, key, tables))),
  ];
}

function createTable(config: TableConfig): string {
  if (config.schema !== undefined) {
    throw new UnsupportedTableError(
      config.name,
      "it names a schema, and a projection has its own: use pgTable()",
    );
  }
  if (config.enableRLS || config.policies.length > 0) {
    throw new UnsupportedTableError(config.name, "row level security is not created here");
  }
  const lines = [
    ...config.columns.map((column) => columnLine(config, column)),
    ...config.primaryKeys.map(
      (key) => `CONSTRAINT ${quote(key.getName())} PRIMARY KEY (${columnList(key.columns)})`,
    ),
    ...config.uniqueConstraints.map(
      (key) => `${unique(key.name, key.nullsNotDistinct)} (${columnList(key.columns)})`,
    ),
    ...config.checks.map((check) => `CONSTRAINT ${quote(check.name)} CHECK (${expression(check.value)})`),
  ];
  return `CREATE TABLE ${quote(config.name)} (\n  ${lines.join(",\n  ")}\n)`;
}

function columnLine(table: TableConfig, column: Column): string {
  const parts = [quote(column.name), sqlType(table, column)];
  if (column.generatedIdentity) parts.push(identity(column.generatedIdentity));
  if (column.generated) {
    const as = typeof column.generated.as === "function" ? column.generated.as() : column.generated.as;
    parts.push(`GENERATED ALWAYS AS (${sqlValue(table, column, as)}) STORED`);
  }
  if (column.default !== undefined) parts.push(`DEFAULT ${sqlValue(table, column, column.default)}`);
  if (column.primary) parts.push("PRIMARY KEY");
  if (column.notNull) parts.push("NOT NULL");
  if (column.isUnique) parts.push(unique(column.uniqueName, column.uniqueType === "not distinct"));
  return parts.join(" ");
}

function sqlType(table: TableConfig, column: Column): string {
  let element: unknown = column;
  while (is(element, PgArray)) element = element.baseColumn;
  if (is(element, PgEnumColumn) || is(element, PgEnumObjectColumn)) {
    throw new UnsupportedTableError(
      table.name,
      `its column ${column.name} is an enum: use text with a check`,
    );
  }
  // The collation of an array stands behind its brackets.
  return column.getSQLType().replace(/^(.*?)( COLLATE "[^"]+")((?:\[\d*\])+)$/, "$1$3$2");
}

/** A default or a generated value as it stands in a definition. */
function sqlValue(table: TableConfig, column: Column, value: unknown): string {
  const driverValue = value === null || is(value, SQL) ? value : column.mapToDriverValue(value);
  if (is(driverValue, SQL)) return expression(driverValue);
  switch (typeof driverValue) {
    case "string":
      return dialect.escapeString(driverValue);
    case "number":
    case "bigint":
    case "boolean":
      return `${driverValue}`;
  }
  if (driverValue === null) return "NULL";
  throw new UnsupportedTableError(
    table.name,
    `the default of its column ${column.name} has no SQL form here: write it with sql\`…\``,
  );
}

function identity({ type, sequenceName, sequenceOptions }: NonNullable<Column["generatedIdentity"]>): string {
  const options = [
    sequenceName && `SEQUENCE NAME ${quote(sequenceName)}`,
    sequenceOptions?.startWith !== undefined && `START WITH ${sequenceOptions.startWith}`,
    sequenceOptions?.increment !== undefined && `INCREMENT BY ${sequenceOptions.increment}`,
    sequenceOptions?.minValue !== undefined && `MINVALUE ${sequenceOptions.minValue}`,
    sequenceOptions?.maxValue !== undefined && `MAXVALUE ${sequenceOptions.maxValue}`,
    sequenceOptions?.cache !== undefined && `CACHE ${sequenceOptions.cache}`,
    sequenceOptions?.cycle && "CYCLE",
  ].filter(Boolean);
  const list = options.length > 0 ? ` (${options.join(" ")})` : "";
  return `GENERATED ${type === "always" ? "ALWAYS" : "BY DEFAULT"} AS IDENTITY${list}`;
}

function unique(name: string | undefined, nullsNotDistinct: boolean): string {
  const constraint = name === undefined ? "" : `CONSTRAINT ${quote(name)} `;
  return `${constraint}UNIQUE${nullsNotDistinct ? " NULLS NOT DISTINCT" : ""}`;
}

function createIndex(table: TableConfig, { config }: TableConfig["indexes"][number]): string {
  const method = config.method ?? "btree";
  const columns = config.columns.map((column) => {
    if (is(column, SQL)) return `(${expression(column)})`;
    if (!is(column, IndexedColumn) || column.name === undefined) {
      throw new UnsupportedTableError(table.name, "an index of it names neither a column nor an expression");
    }
    const { order, nulls, opClass } = column.indexConfig;
    const operators = opClass ? ` ${opClass}` : "";
    // Only a btree has an order; drizzle names one for every method.
    return `${quote(column.name)}${operators}${method === "btree" ? ` ${order} NULLS ${nulls}` : ""}`;
  });
  const storage = Object.entries(config.with ?? {}).map(([option, value]) => `${option} = ${value}`);
  return [
    `CREATE ${config.unique ? "UNIQUE " : ""}INDEX`,
    ...(config.name === undefined ? [] : [quote(config.name)]),
    `ON ${quote(table.name)} USING ${method} (${columns.join(", ")})`,
    ...(storage.length > 0 ? [`WITH (${storage.join(", ")})`] : []),
    ...(config.where ? [`WHERE ${expression(config.where)}`] : []),
  ].join(" ");
}

function addForeignKey(
  table: TableConfig,
  key: TableConfig["foreignKeys"][number],
  own: readonly PgTable[],
): string {
  const { columns, foreignColumns, foreignTable } = key.reference();
  const target = getTableConfig(foreignTable).name;
  if (!own.includes(foreignTable)) {
    throw new UnsupportedTableError(
      table.name,
      `it refers to ${target}, which is not a table of this projection`,
    );
  }
  const actions = [
    key.onDelete ? ` ON DELETE ${key.onDelete.toUpperCase()}` : "",
    key.onUpdate ? ` ON UPDATE ${key.onUpdate.toUpperCase()}` : "",
  ].join("");
  return (
    `ALTER TABLE ${quote(table.name)} ADD CONSTRAINT ${quote(key.getName())} ` +
    `FOREIGN KEY (${columnList(columns)}) REFERENCES ${quote(target)} (${columnList(foreignColumns)})${actions}`
  );
}

function columnList(columns: readonly { readonly name: string }[]): string {
  return columns.map((column) => quote(column.name)).join(", ");
}

/** SQL with its values written into it and its columns unqualified, as definitions need it. */
function expression(value: SQLWrapper): string {
  return dialect.sqlToQuery(value.getSQL().inlineParams(), "indexes").sql;
}

function quote(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

/** The schema that holds the tables of one version. */
function versionSchema(name: string, version: number): string {
  return `${name}_v${version}`;
}

/** What unqualified names mean inside a handler: the tables of its projection, then `public` for extensions. */
export async function useVersionSchema(client: DatabaseClient, name: string, version: number): Promise<void> {
  await client.query(`SET LOCAL search_path = ${quote(versionSchema(name, version))}, public`);
}

/**
 * Makes the schema of a version with its tables, empty; `anew` drops the one that is there first. Throws
 * {@link SchemaTakenError} for a schema that somebody else made.
 */
export async function createVersionSchema(
  client: DatabaseClient,
  { name, version }: { readonly name: string; readonly version: number },
  statements: readonly string[],
  { anew }: { readonly anew: boolean },
): Promise<void> {
  if (anew) await dropVersionSchema(client, name, version);
  try {
    await client.query(`CREATE SCHEMA ${quote(versionSchema(name, version))}`);
  } catch (error) {
    throw codeOf(error) === "42P06" ? new SchemaTakenError(versionSchema(name, version)) : error;
  }
  await useVersionSchema(client, name, version);
  for (const statement of statements) await client.query(statement);
  await client.query("SET LOCAL search_path TO DEFAULT");
}

/** Drops the tables of a version, and what depends on them. */
export async function dropVersionSchema(
  client: DatabaseClient,
  name: string,
  version: number,
): Promise<void> {
  await client.query(`DROP SCHEMA IF EXISTS ${quote(versionSchema(name, version))} CASCADE`);
}

/** How long a switch waits for queries that read a view, in milliseconds: what comes after them waits behind it. */
const VIEW_LOCK_TIMEOUT_MS = 3_000;

/**
 * Points the views of a projection at one version. A view whose columns still fit is replaced in place, so what
 * depends on it stays; the others are dropped and made. Views that are not the projection's are left alone.
 * Throws {@link ViewSwitchError}.
 */
export async function pointViewsAt(
  client: DatabaseClient,
  { name, version }: { readonly name: string; readonly version: number },
  tables: readonly PgTable[],
): Promise<void> {
  try {
    await client.query(`SET LOCAL lock_timeout = ${VIEW_LOCK_TIMEOUT_MS}`);
    await client.query(`CREATE SCHEMA IF NOT EXISTS ${quote(name)}`);
    const ours = await readOwnViews(client, name);
    const tableNames = tables.map((table) => getTableConfig(table).name);
    for (const view of ours) {
      if (!tableNames.includes(view)) await client.query(`DROP VIEW ${quote(name)}.${quote(view)}`);
    }
    for (const table of tableNames) {
      const view = `${quote(name)}.${quote(table)}`;
      const select = `${view} AS SELECT * FROM ${quote(versionSchema(name, version))}.${quote(table)}`;
      if (!ours.includes(table)) await client.query(`CREATE VIEW ${select}`);
      else if (!(await replaceView(client, select))) {
        await client.query(`DROP VIEW ${view}`);
        await client.query(`CREATE VIEW ${select}`);
      }
    }
  } catch (cause) {
    throw new ViewSwitchError(name, version, cause);
  }
}

/** False: its columns do not fit those of the view that is there. */
async function replaceView(client: DatabaseClient, select: string): Promise<boolean> {
  await client.query("SAVEPOINT replace_view");
  try {
    await client.query(`CREATE OR REPLACE VIEW ${select}`);
  } catch (error) {
    if (codeOf(error) !== "42P16") throw error;
    await client.query("ROLLBACK TO SAVEPOINT replace_view");
    return false;
  }
  await client.query("RELEASE SAVEPOINT replace_view");
  return true;
}

/** The views in the projection's schema that read the tables of one of its versions. */
async function readOwnViews(client: DatabaseClient, name: string): Promise<readonly string[]> {
  const { rows } = await client.query<{ view_name: string }>(
    `SELECT DISTINCT view_name::text FROM information_schema.view_table_usage
     WHERE view_schema = $1 AND table_schema ~ ('^' || $1 || '_v\\d+$')`,
    [name],
  );
  return rows.map((row) => row.view_name);
}

function codeOf(error: unknown): string | undefined {
  return (error as { code?: string }).code;
}
