import { createPublicKey, type KeyObject } from "node:crypto";
import { InvalidOptionError, InvalidSecretError } from "./errors.ts";

const MAX_SECRETS = 16;
const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;

/** The keys of a receiver, for the two kinds of signature. */
export interface VerificationKeys {
  /** Shared secrets, for HMAC-SHA256. */
  readonly v1: readonly Uint8Array[];
  /** Public keys, for ed25519. */
  readonly v1a: readonly KeyObject[];
}

/**
 * The keys of one or several secrets: `whsec_` and the base64 of 24 to 64 bytes, or `whpk_` and that of an ed25519
 * public key. Throws {@link InvalidSecretError}.
 */
export function decodeSecrets(secrets: string | readonly string[]): VerificationKeys {
  const list = typeof secrets === "string" ? [secrets] : secrets;
  if (!Array.isArray(list) || list.length < 1 || list.length > MAX_SECRETS) {
    throw new InvalidOptionError("secrets", `one secret or a list of 1 to ${MAX_SECRETS}`, typeof secrets);
  }
  const v1: Uint8Array[] = [];
  const v1a: KeyObject[] = [];
  for (const [i, secret] of list.entries()) {
    const which = `Secret ${i + 1} of ${list.length}`;
    if (typeof secret !== "string" || secret === "") throw new InvalidSecretError(`${which} is empty`);
    const [, prefix, base64 = ""] = /^(whsec|whpk|whsk)_(.*)$/s.exec(secret) ?? [];
    if (prefix === undefined) {
      throw new InvalidSecretError(`${which} does not begin with whsec_ or whpk_`);
    }
    if (prefix === "whsk") {
      throw new InvalidSecretError(`${which} is the private key of the sender; take the public one`);
    }
    if (!BASE64.test(base64)) throw new InvalidSecretError(`${which} is not base64 after ${prefix}_`);
    const key = decodeBase64(base64);
    const fits = prefix === "whpk" ? key.length === 32 : key.length >= 24 && key.length <= 64;
    if (!fits) throw new InvalidSecretError(`${which} has ${key.length} bytes`);
    if (prefix === "whpk") v1a.push(publicKey(base64));
    else v1.push(key);
  }
  return { v1, v1a };
}

/** The bytes of a text that is base64. */
export function decodeBase64(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}

function publicKey(base64: string): KeyObject {
  const x = base64.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x }, format: "jwk" });
}
