import { expect, it } from "vitest";
import { choosePlace, describePlace, requireMigrated } from "./project.ts";

const SERVER = "postgres://user:secret@db.example:6543/app";
const found = {
  databaseUrl: undefined,
  folder: "/app/.fencepost",
  folderExists: false,
  envFileExists: false,
};
const embedded = { kind: "embedded", folder: "/app/.fencepost" };

it("dev takes DATABASE_URL, and otherwise a database of its own", () => {
  expect(choosePlace({ kind: "own" }, { ...found, databaseUrl: SERVER })).toEqual({
    kind: "server",
    url: SERVER,
  });
  expect(choosePlace({ kind: "own" }, found)).toEqual(embedded);
  expect(choosePlace({ kind: "own" }, { ...found, databaseUrl: "" })).toEqual(embedded);
});

it("start and migrate take exactly one of DATABASE_URL and --embedded", () => {
  const given = { ...found, databaseUrl: SERVER };
  expect(choosePlace({ kind: "named", embedded: false }, given)).toEqual({ kind: "server", url: SERVER });
  expect(choosePlace({ kind: "named", embedded: true }, found)).toEqual(embedded);
  expect(() => choosePlace({ kind: "named", embedded: true }, given)).toThrow(
    "DATABASE_URL is set and --embedded is given.",
  );
  expect(() => choosePlace({ kind: "named", embedded: false }, { ...found, folderExists: true })).toThrow(
    /^Neither DATABASE_URL nor --embedded is given\..*\/app\/\.fencepost\.$/,
  );
  expect(() => choosePlace({ kind: "named", embedded: false }, { ...found, envFileExists: true })).toThrow(
    /This command reads no \.env file/,
  );
});

it("the other commands never make a database", () => {
  expect(choosePlace({ kind: "existing" }, { ...found, folderExists: true })).toEqual(embedded);
  expect(() => choosePlace({ kind: "existing" }, found)).toThrow(
    /^There is no database yet: .* "fencepost dev" first/,
  );
});

it("a database is described without its user and password", () => {
  expect(describePlace({ kind: "server", url: SERVER })).toBe(
    "PostgreSQL at db.example:6543/app (DATABASE_URL)",
  );
  expect(describePlace({ kind: "server", url: "postgres:///app?host=/run" })).toBe(
    "PostgreSQL at a local socket/app (DATABASE_URL)",
  );
  expect(describePlace({ kind: "embedded", folder: "/app/.fencepost" })).toBe(
    "embedded PostgreSQL in /app/.fencepost",
  );
});

it("an older database is named with what it lacks, and an empty one only where it must not be empty", () => {
  const place = { kind: "server", url: SERVER } as const;
  const check = (applied: number, pending: readonly string[], emptyIsFine: boolean) => () =>
    requireMigrated({ applied, pending }, place, { emptyIsFine });
  expect(check(1, ["0002_x.sql", "0003_y.sql"], true)).toThrow(
    'The database lacks the migrations 0002_x.sql, 0003_y.sql. Run "fencepost migrate" with this version.',
  );
  expect(check(0, ["0001_x.sql"], false)).toThrow(
    /^PostgreSQL at db\.example:6543\/app .* has no Fencepost schema yet/,
  );
  expect(check(0, ["0001_x.sql"], true)).not.toThrow();
  expect(check(1, [], false)).not.toThrow();
});
