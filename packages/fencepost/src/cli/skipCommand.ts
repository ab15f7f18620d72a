import { asToken } from "@fencepost/token";
import { insertSkip } from "../store/postgres/projections.ts";
import { readProjections } from "../store/postgres/status.ts";
import { NotOnRecordError, UnknownProjectionError } from "./errors.ts";
import { print } from "./print.ts";
import { withProjectDatabase } from "./project.ts";

/** `fencepost skip`: the named, recorded act of passing over one event in one projection. */
export async function skip(
  projection: string,
  tokenText: string,
  options: { readonly config: string; readonly reason: string },
): Promise<void> {
  const token = asToken(tokenText);
  await withProjectDatabase(options.config, async ({ database }) => {
    const known = [...new Set((await readProjections(database)).map(({ name }) => name))];
    if (!known.includes(projection)) throw new UnknownProjectionError(projection, known);
    if (!(await insertSkip(database, projection, token, options.reason))) {
      throw new NotOnRecordError(`The token ${token} is not stored, so there is nothing to skip.`);
    }
    print(`${projection} passes over ${token}: ${options.reason}`);
  });
}
