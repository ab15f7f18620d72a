import { InvalidOptionError, InvalidSecretError } from "./errors.ts";

const MAX_SECRETS = 16;
const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;

/** The keys of one or several secrets. Throws {@link InvalidSecretError}. */
export function decodeSecrets(secrets: string | readonly string[]): Uint8Array[] {
  const list = typeof secrets === "string" ? [secrets] : secrets;
  if (!Array.isArray(list) || list.length < 1 || list.length > MAX_SECRETS) {
    throw new InvalidOptionError("secrets", `one secret or a list of 1 to ${MAX_SECRETS}`, typeof secrets);
  }
  return list.map((secret: unknown, i) => {
    const which = `Secret ${i + 1} of ${list.length}`;
    if (typeof secret !== "string" || secret === "") throw new InvalidSecretError(`${which} is empty`);
    if (!secret.startsWith("whsec_")) throw new InvalidSecretError(`${which} does not begin with whsec_`);
    const base64 = secret.slice("whsec_".length);
    if (!BASE64.test(base64)) throw new InvalidSecretError(`${which} is not base64 after whsec_`);
    const key = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
    if (key.length < 24 || key.length > 64) {
      throw new InvalidSecretError(`${which} has ${key.length} bytes`);
    }
    return key;
  });
}
