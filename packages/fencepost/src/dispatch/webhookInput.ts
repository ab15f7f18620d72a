import { randomBytes } from "node:crypto";
import { type AddressRules, checkUrl } from "../address/addressRules.ts";
import { isMessageType } from "../message/payload.ts";
import type { JsonObject, NewWebhook, WebhookChanges, WebhookId, WebhookSettings } from "../store/webhook.ts";
import { InvalidWebhookError } from "./errors.ts";

/** Settings that are left out have their defaults. */
export interface WebhookInput extends Partial<WebhookSettings> {
  /** `https://…`, without user info or fragment. */
  readonly url: string;
  /** Message types, or `["*"]` for every type but those of the system, `webhook.…`. */
  readonly types: readonly string[];
  /** `whsec_…` of 24 to 64 bytes or `whsk_…` of 64, newest first; one is made when left out. */
  readonly secrets?: readonly string[];
  /** `none` unless given; set once. */
  readonly ordering?: NewWebhook["ordering"];
}

const DAY_MS = 86_400_000;
const MAX_URL_LENGTH = 2_048;
const MAX_TYPES = 100;
const MAX_SECRETS = 5;
const MAX_DESCRIPTION = 500;
const MAX_FILTER_BYTES = 4_096;
const MAX_FILTER_DEPTH = 32;
const MAX_HEADERS = 20;
const MAX_HEADER_BYTES = 4_096;
const MAX_DELAYS = 50;
const MAX_DELAY_MS = 7 * DAY_MS;
const MIN_DISABLE_AFTER_MS = 60_000;
const MAX_DISABLE_AFTER_MS = 365 * DAY_MS;
const RATES = { min: 0.01, max: 10_000 } as const;
const MAX_IN_FLIGHT = 1_000;

/** A webhook is disabled when it has failed for so long, unless it says otherwise: 5 days. */
const DISABLE_AFTER_MS = 5 * DAY_MS;

/** What a webhook has where nothing is said. */
const DEFAULTS: Omit<WebhookSettings, "url" | "types"> = {
  filter: null,
  headers: {},
  description: "",
  onUnknown: "resend",
  retryOn: "default",
  retryScheduleMs: null,
  jitter: 0.5,
  ratePerSecond: null,
  maxInFlight: null,
  disableAfterMs: DISABLE_AFTER_MS,
};

/** How each setting is read: what it returns is stored. Throws {@link InvalidWebhookError}, which says what is wrong. */
const READERS: {
  readonly [Name in keyof WebhookSettings]: (value: unknown, rules: AddressRules) => WebhookSettings[Name];
} = {
  url: readUrl,
  types: readTypes,
  filter: (value) => (value === null ? null : readFilter(value)),
  headers: readHeaders,
  description: readDescription,
  onUnknown: (value) => readChoice("onUnknown", value, ["resend", "hold", "ask"]),
  retryOn: (value) => readChoice("retryOn", value, ["default", "all"]),
  retryScheduleMs: (value) => (value === null ? null : readSchedule(value)),
  jitter: (value) => readNumber("jitter", value, { min: 0, max: 1 }),
  ratePerSecond: (value) => (value === null ? null : readNumber("ratePerSecond", value, RATES)),
  maxInFlight: (value) =>
    value === null ? null : readNumber("maxInFlight", value, { min: 1, max: MAX_IN_FLIGHT, whole: true }),
  disableAfterMs: (value) =>
    value === null
      ? null
      : readNumber("disableAfterMs", value, {
          min: MIN_DISABLE_AFTER_MS,
          max: MAX_DISABLE_AFTER_MS,
          whole: true,
        }),
};

/**
 * Checks what a caller wants to add, under a new id unless one is given. Throws {@link InvalidWebhookError}, which says
 * what is wrong.
 */
export function readWebhookInput(
  input: WebhookInput,
  rules: AddressRules,
  id = `wh_${randomBytes(12).toString("hex")}` as WebhookId,
): NewWebhook {
  const { secrets = [newSecret()], ordering = "none", ...settings } = input;
  const given = readSettings(settings, rules);
  return {
    ...DEFAULTS,
    // Both are there, or they are refused.
    url: given.url ?? READERS.url(undefined, rules),
    types: given.types ?? READERS.types(undefined, rules),
    ...given,
    id,
    secrets: readSecrets(secrets),
    ordering: readChoice("ordering", ordering, ["none", "strict"]),
  };
}

/** Checks what a caller wants to change. Throws {@link InvalidWebhookError}, which says what is wrong. */
export function readWebhookChanges(changes: WebhookChanges, rules: AddressRules): WebhookChanges {
  return readSettings(changes, rules);
}

function readSettings(settings: WebhookChanges, rules: AddressRules): WebhookChanges {
  const read: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(settings)) {
    if (!Object.hasOwn(READERS, name)) throw new InvalidWebhookError(unknownSetting(name));
    if (value !== undefined) read[name] = READERS[name as keyof WebhookSettings](value, rules);
  }
  return read as WebhookChanges;
}

function unknownSetting(name: string): string {
  if (name === "ordering") return "ordering is set once, when a webhook is added: add another webhook.";
  if (name === "secrets") return "secrets are not changed so: rotate the secret.";
  return `${shown(name)} is no setting of a webhook. They are: ${Object.keys(READERS).join(", ")}.`;
}

/** A new `whsec_…` secret of 32 random bytes. */
export function newSecret(): string {
  return `whsec_${randomBytes(32).toString("base64")}`;
}

/** Throws {@link InvalidWebhookError} for what is no secret. */
export function readSecret(secret: unknown): string {
  const [, kind, base64] = (typeof secret === "string" && /^(whsec_|whsk_)(.+)$/.exec(secret)) || [];
  if (typeof secret === "string" && base64 !== undefined) {
    const bytes = Buffer.from(base64, "base64");
    const { length } = bytes;
    const fits = kind === "whsec_" ? length >= 24 && length <= 64 : length === 64;
    // Node decodes much that is no base64: what does not come out again would be another key at the receiver.
    if (fits && bytes.toString("base64") === base64) return secret;
  }
  throw new InvalidWebhookError(
    'A secret is "whsec_" and the padded base64 of 24 to 64 bytes, or "whsk_" and that of the 64 bytes of an ed25519 key.',
  );
}

function readSecrets(secrets: unknown): readonly string[] {
  if (!Array.isArray(secrets) || secrets.length === 0 || secrets.length > MAX_SECRETS) {
    throw new InvalidWebhookError(`secrets must be 1 to ${MAX_SECRETS} secrets.`);
  }
  return secrets.map(readSecret);
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

function readTypes(types: unknown): readonly string[] {
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
  return [...new Set(types)];
}

/** JSON that contains no empty object or array, which would be a condition that is always or hardly ever met. */
function readFilter(filter: unknown): JsonObject {
  if (typeof filter !== "object" || filter === null || Array.isArray(filter)) {
    throw new InvalidWebhookError(`filter is ${shown(filter)}: use an object, or null for all messages.`);
  }
  checkFilter(filter, "filter", 0);
  const json = JSON.stringify(filter);
  if (Buffer.byteLength(json) > MAX_FILTER_BYTES) {
    throw new InvalidWebhookError(`The filter has more than ${MAX_FILTER_BYTES} bytes as JSON.`);
  }
  return JSON.parse(json) as JsonObject;
}

function checkFilter(value: unknown, path: string, depth: number): void {
  const wrong = wrongInFilter(value, depth);
  if (wrong !== undefined) throw new InvalidWebhookError(`${path.slice(0, 200)} ${wrong}.`);
  if (typeof value !== "object" || value === null) return;
  for (const [key, item] of Object.entries(value)) checkFilter(item, `${path}.${key}`, depth + 1);
}

function wrongInFilter(value: unknown, depth: number): string | undefined {
  if (depth > MAX_FILTER_DEPTH) return `is nested deeper than ${MAX_FILTER_DEPTH}`;
  if (typeof value === "string") return isStorable(value) ? undefined : "has NUL or half a character";
  if (typeof value === "number") {
    const isKept = Number.isFinite(value) && (!Number.isInteger(value) || Number.isSafeInteger(value));
    return isKept
      ? undefined
      : "is a number that JSON does not keep: integers beyond 2^53 are texts in messages";
  }
  if (value === null || typeof value === "boolean") return undefined;
  if (!Array.isArray(value) && !isPlainObject(value)) return `is ${typeof value}, which is no plain JSON`;
  const keys = Object.keys(value);
  if (keys.length === 0) return "is empty";
  if (keys.length > MAX_FILTER_BYTES) return "is too long";
  return keys.every(isStorable) ? undefined : "has a key with NUL or half a character";
}

function isPlainObject(value: unknown): value is object {
  if (typeof value !== "object" || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

/** PostgreSQL's jsonb holds neither NUL nor a lone surrogate. */
function isStorable(text: string): boolean {
  return !/[\0\p{Surrogate}]/u.test(text);
}

/** Those that say who sends what and how, which are ours, and those that belong to one connection. */
const RESERVED_HEADERS = new Set(
  "host connection keep-alive proxy-connection upgrade te trailer expect idempotency-key fencing-token user-agent".split(
    " ",
  ),
);
const RESERVED_PREFIXES = ["content-", "transfer-", "webhook-", "proxy-"];

function readHeaders(headers: unknown): Readonly<Record<string, string>> {
  if (!isPlainObject(headers)) {
    throw new InvalidWebhookError(`headers is ${shown(headers)}: use an object of names and values.`);
  }
  const read = new Map<string, string>();
  let bytes = 0;
  for (const [name, value] of Object.entries(headers)) {
    const lower = name.toLowerCase();
    if (!/^[!#$%&'*+.^_`|~0-9a-z-]+$/.test(lower)) {
      throw new InvalidWebhookError(`${shown(name)} is no name of a header.`);
    }
    if (RESERVED_HEADERS.has(lower) || RESERVED_PREFIXES.some((prefix) => lower.startsWith(prefix))) {
      throw new InvalidWebhookError(`The header ${shown(name)} is set by Fencepost itself.`);
    }
    if (read.has(lower)) throw new InvalidWebhookError(`The header ${shown(name)} is there twice.`);
    // Not shown: it may be a password.
    if (typeof value !== "string" || !/^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/.test(value)) {
      throw new InvalidWebhookError(
        `The value of the header ${shown(name)} must be printable ASCII without spaces around it.`,
      );
    }
    read.set(lower, value);
    bytes += lower.length + value.length;
  }
  if (read.size > MAX_HEADERS || bytes > MAX_HEADER_BYTES) {
    throw new InvalidWebhookError(
      `headers must be up to ${MAX_HEADERS}, of ${MAX_HEADER_BYTES} bytes in all.`,
    );
  }
  return Object.fromEntries(read);
}

function readDescription(text: unknown): string {
  if (typeof text !== "string" || text.length > MAX_DESCRIPTION || !isStorable(text)) {
    throw new InvalidWebhookError(`The description must be a text of up to ${MAX_DESCRIPTION} characters.`);
  }
  return text;
}

function readSchedule(delays: unknown): readonly number[] {
  if (!Array.isArray(delays) || delays.length === 0 || delays.length > MAX_DELAYS) {
    throw new InvalidWebhookError(`retryScheduleMs must be 1 to ${MAX_DELAYS} delays, or null.`);
  }
  return delays.map((delay) =>
    readNumber("retryScheduleMs", delay, { min: 1, max: MAX_DELAY_MS, whole: true }),
  );
}

function readChoice<const Choice extends string>(
  name: string,
  value: unknown,
  choices: readonly Choice[],
): Choice {
  const choice = choices.find((one) => one === value);
  if (choice !== undefined) return choice;
  throw new InvalidWebhookError(
    `${name} is ${shown(value)}: use ${choices.map((one) => `"${one}"`).join(" or ")}.`,
  );
}

function readNumber(
  name: string,
  value: unknown,
  { min, max, whole = false }: { readonly min: number; readonly max: number; readonly whole?: boolean },
): number {
  if (typeof value === "number" && value >= min && value <= max && (!whole || Number.isInteger(value))) {
    return value;
  }
  const kind = whole ? "a whole number" : "a number";
  throw new InvalidWebhookError(`${name} is ${shown(value)}: use ${kind} from ${min} to ${max}.`);
}

/** What was given, for an error. */
function shown(value: unknown): string {
  if (typeof value === "string") return JSON.stringify(value.slice(0, 100));
  return typeof value === "number" || value === null ? String(value) : typeof value;
}
