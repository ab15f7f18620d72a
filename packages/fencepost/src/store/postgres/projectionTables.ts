import { is, SQL, type SQLWrapper, sql } from "drizzle-orm";
import { getTableConfig, PgDialect, PgEnumColumn, type PgTable } from "drizzle-orm/pg-core";
import type { DatabaseClient } from "./database.ts";

/** A table of a projection uses something that Fencepost does not create. Names table and what. */
export class UnsupportedTableError extends Error {
  override readonly name = "UnsupportedTableError";

  constructor(table: string, what: string) {
    super(`The table ${table} cannot be created: ${what}.`);
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
  const names = new Set(configs.map((config) => config.name));
  if (names.size !== configs.length) {
    throw new UnsupportedTableError([...names].join(", "), "two tables have one name");
  }
  return [
    ...configs.map(createTable),
    ...configs.flatMap((config) => config.indexes.map((index) => createIndex(config, index))),
    ...configs.flatMap((config) => config.foreignKeys.map((key) => addForeignKey(config, key, names))),
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
    ...config.primaryKeys.map((key) => `PRIMARY KEY (${columnList(key.columns)})`),
    ...config.uniqueConstraints.map(
      (key) => `UNIQUE${key.nullsNotDistinct ? " NULLS NOT DISTINCT" : ""} (${columnList(key.columns)})`,
    ),
    ...config.checks.map((check) => `CONSTRAINT ${quote(check.name)} CHECK (${expression(check.value)})`),
  ];
  return `CREATE TABLE ${quote(config.name)} (\n  ${lines.join(",\n  ")}\n)`;
}

function columnLine(table: TableConfig, column: Column): string {
  if (is(column, PgEnumColumn)) {
    throw new UnsupportedTableError(
      table.name,
      `its column ${column.name} is an enum: use text with a check`,
    );
  }
  const parts = [quote(column.name), column.getSQLType()];
  if (column.generatedIdentity) {
    parts.push(
      `GENERATED ${column.generatedIdentity.type === "always" ? "ALWAYS" : "BY DEFAULT"} AS IDENTITY`,
    );
  }
  if (column.generated) {
    const as = typeof column.generated.as === "function" ? column.generated.as() : column.generated.as;
    parts.push(`GENERATED ALWAYS AS (${expression(is(as, SQL) ? as : sql`${as}`)}) STORED`);
  }
  if (column.default !== undefined) {
    const value = is(column.default, SQL) ? column.default : sql`${sql.param(column.default, column)}`;
    parts.push(`DEFAULT ${expression(value)}`);
  }
  if (column.primary) parts.push("PRIMARY KEY");
  if (column.notNull) parts.push("NOT NULL");
  if (column.isUnique)
    parts.push(column.uniqueType === "not distinct" ? "UNIQUE NULLS NOT DISTINCT" : "UNIQUE");
  return parts.join(" ");
}

function createIndex(table: TableConfig, { config }: TableConfig["indexes"][number]): string {
  if (config.name === undefined) throw new UnsupportedTableError(table.name, "an index of it has no name");
  const columns = config.columns.map((column) => {
    if (is(column, SQL)) return `(${expression(column)})`;
    const { name, indexConfig = {} } = column as { name: string; indexConfig?: Record<string, string> };
    const order = indexConfig["order"] ? ` ${indexConfig["order"]}` : "";
    const nulls = indexConfig["nulls"] ? ` NULLS ${indexConfig["nulls"]}` : "";
    return `${quote(name)}${indexConfig["opClass"] ? ` ${indexConfig["opClass"]}` : ""}${order}${nulls}`;
  });
  const where = config.where ? ` WHERE ${expression(config.where)}` : "";
  return (
    `CREATE ${config.unique ? "UNIQUE " : ""}INDEX ${quote(config.name)} ON ${quote(table.name)} ` +
    `USING ${config.method ?? "btree"} (${columns.join(", ")})${where}`
  );
}

function addForeignKey(
  table: TableConfig,
  key: TableConfig["foreignKeys"][number],
  own: ReadonlySet<string>,
): string {
  const { columns, foreignColumns, foreignTable } = key.reference();
  const target = getTableConfig(foreignTable).name;
  if (!own.has(target)) {
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
export function versionSchema(name: string, version: number): string {
  return `${name}_v${version}`;
}

/** What unqualified names mean inside a handler: the tables of its projection, then `public` for extensions. */
export async function useVersionSchema(client: DatabaseClient, name: string, version: number): Promise<void> {
  await client.query(`SET LOCAL search_path = ${quote(versionSchema(name, version))}, public`);
}

/** Makes the schema of a version anew, empty. */
export async function createVersionSchema(
  client: DatabaseClient,
  name: string,
  version: number,
  statements: readonly string[],
): Promise<void> {
  const schema = quote(versionSchema(name, version));
  await client.query(`DROP SCHEMA IF EXISTS ${schema} CASCADE`);
  await client.query(`CREATE SCHEMA ${schema}`);
  await client.query(`SET LOCAL search_path = ${schema}, public`);
  for (const statement of statements) await client.query(statement);
  await client.query("SET LOCAL search_path TO DEFAULT");
}

/** Drops the tables of a version that is two versions back. */
export async function dropVersionSchema(
  client: DatabaseClient,
  name: string,
  version: number,
): Promise<void> {
  await client.query(`DROP SCHEMA IF EXISTS ${quote(versionSchema(name, version))} CASCADE`);
}

/**
 * Points the views of a projection at one version. A view whose columns still fit is replaced in place, so what
 * depends on it stays; the others are dropped and made.
 */
export async function pointViewsAt(
  client: DatabaseClient,
  name: string,
  version: number,
  tableNames: readonly string[],
): Promise<void> {
  const views = quote(name);
  await client.query(`CREATE SCHEMA IF NOT EXISTS ${views}`);
  const { rows } = await client.query<{ viewname: string }>(
    "SELECT viewname FROM pg_views WHERE schemaname = $1",
    [name],
  );
  for (const { viewname } of rows) {
    if (!tableNames.includes(viewname)) await client.query(`DROP VIEW ${views}.${quote(viewname)}`);
  }
  for (const table of tableNames) {
    const view = `${views}.${quote(table)}`;
    const select = `AS SELECT * FROM ${quote(versionSchema(name, version))}.${quote(table)}`;
    await client.query("SAVEPOINT view");
    try {
      await client.query(`CREATE OR REPLACE VIEW ${view} ${select}`);
    } catch {
      await client.query("ROLLBACK TO SAVEPOINT view");
      await client.query(`DROP VIEW ${view}`);
      await client.query(`CREATE VIEW ${view} ${select}`);
    }
    await client.query("RELEASE SAVEPOINT view");
  }
}

export function tableNamesOf(tables: readonly PgTable[]): readonly string[] {
  return tables.map((table) => getTableConfig(table).name);
}
