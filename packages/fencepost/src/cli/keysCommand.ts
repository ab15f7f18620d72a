import { createApiKey, listApiKeys, revokeApiKey } from "../store/postgres/apiKeys.ts";
import { alignedLines } from "./alignedLines.ts";
import { NotOnRecordError } from "./errors.ts";
import { print, printJson } from "./print.ts";
import { withProjectDatabase } from "./project.ts";

interface KeyOptions {
  readonly config: string;
}

/** `fencepost keys create`: prints a key of the HTTP interface, this once. */
export async function createKey(name: string, { config }: KeyOptions): Promise<void> {
  await withProjectDatabase(config, async ({ database }) => {
    const { apiKey, key } = await createApiKey(database, name);
    print(`id:  ${apiKey.id}`, `key: ${key}`, "Store the key now: it is not shown again.");
  });
}

/** `fencepost keys list`: never shows a key. */
export async function listKeys({ config, json }: KeyOptions & { readonly json: boolean }): Promise<void> {
  await withProjectDatabase(config, async ({ database }) => {
    const keys = await listApiKeys(database);
    if (json) return printJson({ keys });
    if (keys.length === 0) return print('There are no keys. Make one: fencepost keys create "who uses it"');
    const rows = keys.map(({ id, name, createdAt, revokedAt }) => [
      id,
      createdAt.toISOString(),
      revokedAt ? `revoked ${revokedAt.toISOString()}` : "valid",
      name,
    ]);
    print(...alignedLines([["id", "created", "state", "name"], ...rows]));
  });
}

/** `fencepost keys revoke`: from now on the key opens nothing. */
export async function revokeKey(id: string, { config }: KeyOptions): Promise<void> {
  await withProjectDatabase(config, async ({ database }) => {
    const revoked = await revokeApiKey(database, id);
    if (!revoked) throw new NotOnRecordError(`There is no key ${id}. List them with "fencepost keys list".`);
    print(`${id} (${revoked.name}) opens nothing any more.`);
  });
}
