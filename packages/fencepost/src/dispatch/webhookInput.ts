import { randomBytes } from "node:crypto";
import { type AddressRules, checkUrl } from "../address/addressRules.ts";
import { isMessageType } from "../message/payload.ts";
import type { NewWebhook, OnUnknown, WebhookId } from "../store/deliveryStore.ts";
import { InvalidWebhookError } from "./errors.ts";

export interface WebhookInput {
  readonly url: string;
  /** Message types, or `["*"]` for every type. */
  readonly types: readonly string[];
  /** `whsec_…` of 24 to 64 bytes, newest first; one is made when left out. */
  readonly secrets?: readonly string[];
  readonly description?: string;
  /** What to do when bytes left and no answer came: `resend` (default) or `hold`. */
  readonly onUnknown?: OnUnknown;
}

const MAX_URL_LENGTH = 2_048;
const MAX_TYPES = 100;
const MAX_SECRETS = 5;
const MAX_DESCRIPTION = 500;

/** Checks what a caller wants to add. Throws {@link InvalidWebhookError}, which says what is wrong. */
export function readWebhookInput(input: WebhookInput, rules: AddressRules): NewWebhook {
  const { types, onUnknown = "resend", description = "" } = input;
  const secrets = input.secrets ?? [newSecret()];
  const url = readUrl(input.url, rules);
  if (!Array.isArray(types) || types.length === 0 || types.length > MAX_TYPES) {
    throw new InvalidWebhookError(`types must name 1 to ${MAX_TYPES} message types, or be ["*"].`);
  }
  for (const type of types) {
    if (type !== "*" && !isMessageType(type)) {
      throw new InvalidWebhookError(
        `${shown(type)} is not a message type: use a-z A-Z 0-9 _ - in parts between dots, or "*".`,
      );
    }
  }
  if (
    !Array.isArray(secrets) ||
    secrets.length === 0 ||
    secrets.length > MAX_SECRETS ||
    !secrets.every(isSecret)
  ) {
    throw new InvalidWebhookError(
      `secrets must be 1 to ${MAX_SECRETS} texts of "whsec_" and the padded base64 of 24 to 64 bytes.`,
    );
  }
  if (onUnknown !== "resend" && onUnknown !== "hold") {
    throw new InvalidWebhookError(`onUnknown is ${shown(onUnknown)}: use "resend" or "hold".`);
  }
  if (typeof description !== "string" || description.length > MAX_DESCRIPTION || description.includes("\0")) {
    throw new InvalidWebhookError(`The description must be a text of up to ${MAX_DESCRIPTION} characters.`);
  }
  const id = `wh_${randomBytes(12).toString("hex")}` as WebhookId;
  return { id, url, types: [...new Set(types)], secrets: [...secrets], description, onUnknown };
}

/** A new `whsec_…` secret of 32 random bytes. */
export function newSecret(): string {
  return `whsec_${randomBytes(32).toString("base64")}`;
}

function isSecret(secret: unknown): boolean {
  if (typeof secret !== "string" || !secret.startsWith("whsec_")) return false;
  const base64 = secret.slice("whsec_".length);
  const bytes = Buffer.from(base64, "base64");
  // Node decodes much that is no base64: what does not come out again would be another key at the receiver.
  return bytes.toString("base64") === base64 && bytes.length >= 24 && bytes.length <= 64;
}

/** The url in its one normal form: what stands before its path is its origin. */
function readUrl(text: unknown, rules: AddressRules): string {
  if (typeof text !== "string" || text.length > MAX_URL_LENGTH || !URL.canParse(text)) {
    throw new InvalidWebhookError(`${shown(text)} is not a url of up to ${MAX_URL_LENGTH} characters.`);
  }
  const url = new URL(text);
  try {
    checkUrl(url, rules);
  } catch (error) {
    throw new InvalidWebhookError((error as Error).message, { cause: error });
  }
  if (url.hash !== "") throw new InvalidWebhookError("The url has a fragment (#…), which is never sent.");
  return url.href;
}

/** What was given, for an error. */
function shown(value: unknown): string {
  return typeof value === "string" ? JSON.stringify(value.slice(0, 100)) : typeof value;
}
