import { existsSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { startEmbeddedPostgres } from "../store/embedded/startEmbeddedPostgres.ts";
import { type Database, openDatabase } from "../store/postgres/database.ts";
import { readMigrationState } from "../store/postgres/migrate.ts";
import { DatabaseNotChosenError, NotMigratedError, PendingMigrationsError } from "./errors.ts";

/** A user's project: its config, and beside it `.env` and the folder of the embedded database. */
export interface Project {
  readonly configPath: string;
  readonly envFile: string;
  readonly databaseFolder: string;
}

export function projectAt(config: string): Project {
  const configPath = resolve(config);
  const folder = dirname(configPath);
  return { configPath, envFile: join(folder, ".env"), databaseFolder: join(folder, ".fencepost") };
}

/** Reads `.env`, where there is one, into the environment. What is set already stays. */
export function loadEnv({ envFile }: Project): void {
  if (existsSync(envFile)) process.loadEnvFile(envFile);
}

/**
 * Which database a command may use. `own`: the embedded one unless `DATABASE_URL` is set (dev). `named`: exactly one
 * of `DATABASE_URL` and `--embedded` must say (start, migrate). `existing`: as `own`, but it is never made.
 */
export type DatabaseChoice =
  | { readonly kind: "own" | "existing" }
  | { readonly kind: "named"; readonly embedded: boolean };

export type DatabasePlace =
  | { readonly kind: "embedded"; readonly folder: string }
  | { readonly kind: "server"; readonly url: string };

/** Decides which database is meant. Throws {@link DatabaseNotChosenError} rather than make or take a wrong one. */
export function choosePlace(
  choice: DatabaseChoice,
  found: {
    readonly databaseUrl: string | undefined;
    readonly folder: string;
    readonly folderExists: boolean;
    readonly envFileExists: boolean;
  },
): DatabasePlace {
  const { databaseUrl, folder, folderExists, envFileExists } = found;
  const named = choice.kind === "named";
  if (databaseUrl) {
    if (named && choice.embedded) {
      throw new DatabaseNotChosenError(
        "DATABASE_URL is set and --embedded is given. Leave one away, so that it is clear where the data goes.",
      );
    }
    return { kind: "server", url: databaseUrl };
  }
  if (named && !choice.embedded) {
    throw new DatabaseNotChosenError(
      "Neither DATABASE_URL nor --embedded is given. Set DATABASE_URL to a PostgreSQL server (14 or later), or pass " +
        `--embedded to keep the data in ${folder}.` +
        (envFileExists
          ? ' This command reads no .env file: export its variables, or run "fencepost dev".'
          : ""),
    );
  }
  if (choice.kind === "existing" && !folderExists) {
    throw new DatabaseNotChosenError(
      `There is no database yet: DATABASE_URL is not set, and there is no ${folder}. Run "fencepost dev" first, or ` +
        "name the config of your project with --config.",
    );
  }
  return { kind: "embedded", folder };
}

export interface OpenedDatabase {
  readonly database: Database;
  readonly place: DatabasePlace;
  /** Ends the pool, and then the embedded server unless somebody else uses it. */
  close(): Promise<void>;
}

/** Opens the database of a project. `log` gets a line for each thing that the embedded server does. */
export async function openProjectDatabase(
  project: Project,
  choice: DatabaseChoice,
  log: (line: string) => void = () => {},
): Promise<OpenedDatabase> {
  const place = choosePlace(choice, {
    databaseUrl: process.env["DATABASE_URL"],
    folder: project.databaseFolder,
    folderExists: existsSync(project.databaseFolder),
    envFileExists: existsSync(project.envFile),
  });
  if (place.kind === "server") {
    const database = openDatabase(place.url);
    return { database, place, close: () => database.close() };
  }
  const server = await startEmbeddedPostgres({ dataDir: place.folder, log });
  const database = openDatabase(server.url);
  return {
    database,
    place,
    async close() {
      await database.close();
      await server.stop();
    },
  };
}

/** Where a database is, in words and without its password. */
export function describePlace(place: DatabasePlace): string {
  if (place.kind === "embedded") return `embedded PostgreSQL in ${place.folder}`;
  const { host, pathname } = URL.canParse(place.url) ? new URL(place.url) : { host: "", pathname: "" };
  return `PostgreSQL at ${host || "a local socket"}${pathname} (DATABASE_URL)`;
}

/**
 * Throws {@link PendingMigrationsError} for a database of an older version, and {@link NotMigratedError} for one that
 * is empty, where that is not what is wanted.
 */
export function requireMigrated(
  { applied, pending }: { readonly applied: number; readonly pending: readonly string[] },
  place: DatabasePlace,
  { emptyIsFine }: { readonly emptyIsFine: boolean },
): void {
  if (applied > 0 && pending.length > 0) throw new PendingMigrationsError(pending);
  if (applied === 0 && !emptyIsFine) throw new NotMigratedError(describePlace(place));
}

/**
 * Runs `work` on the project's existing database, with its `.env`, and closes it. Throws
 * {@link DatabaseNotChosenError}, {@link NotMigratedError} or {@link PendingMigrationsError}.
 */
export async function withProjectDatabase<T>(
  config: string,
  work: (opened: OpenedDatabase, project: Project) => Promise<T>,
): Promise<T> {
  const project = projectAt(config);
  loadEnv(project);
  const opened = await openProjectDatabase(project, { kind: "existing" });
  try {
    requireMigrated(await readMigrationState(opened.database), opened.place, { emptyIsFine: false });
    return await work(opened, project);
  } finally {
    await opened.close();
  }
}
