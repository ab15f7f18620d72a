// What the options of the webhook commands stand for. Only their form is read here: which values a webhook takes is
// decided where it is added.
import { InvalidArgumentError } from "commander";
import type { JsonObject, WebhookChanges } from "../store/webhook.ts";

/** As commander hands them over; what was not given is not there. */
export interface SettingOptions {
  readonly url?: string;
  readonly types?: readonly string[];
  readonly filter?: JsonObject | None;
  readonly header?: Readonly<Record<string, string>>;
  readonly description?: string;
  readonly onUnknown?: WebhookChanges["onUnknown"];
  readonly retryOn?: WebhookChanges["retryOn"];
  readonly rate?: number | None;
  readonly maxInFlight?: number | None;
}

/** In place of null, which commander takes for an option without a value. */
type None = "none";

export function settingsOf(options: SettingOptions): WebhookChanges {
  const { url, types, filter, header, description, onUnknown, retryOn, rate, maxInFlight } = options;
  return {
    ...(url !== undefined && { url }),
    ...(types !== undefined && { types }),
    ...(filter !== undefined && { filter: orNull(filter) }),
    ...(header !== undefined && { headers: header }),
    ...(description !== undefined && { description }),
    ...(onUnknown !== undefined && { onUnknown }),
    ...(retryOn !== undefined && { retryOn }),
    ...(rate !== undefined && { ratePerSecond: orNull(rate) }),
    ...(maxInFlight !== undefined && { maxInFlight: orNull(maxInFlight) }),
  };
}

function orNull<T>(value: T | None): T | null {
  return value === "none" ? null : value;
}

export function readTypes(text: string): readonly string[] {
  return text.split(",").map((type) => type.trim());
}

/** `none`: all messages. */
export function readFilter(text: string): JsonObject | None {
  if (text === "none") return text;
  try {
    return JSON.parse(text) as JsonObject;
  } catch {
    throw new InvalidArgumentError(`Write JSON, as '{"pool": {"id": 7}}', or none.`);
  }
}

/** `name: value`; given again, another one. */
export function readHeader(
  text: string,
  before: Readonly<Record<string, string>> = {},
): Readonly<Record<string, string>> {
  const [, name, value] = /^([^:]+):(.*)$/.exec(text) ?? [];
  if (name === undefined || value === undefined) throw new InvalidArgumentError("Write it as 'name: value'.");
  return { ...before, [name.trim()]: value.trim() };
}

/** `none`: no limit. */
export function readLimit(text: string): number | None {
  return text === "none" ? text : readNumber(text);
}

export function readNumber(text: string): number {
  const number = Number(text);
  if (text.trim() === "" || !Number.isFinite(number)) throw new InvalidArgumentError("It is no number.");
  return number;
}

export function readCount(text: string): number {
  return readWhole(text, "a whole number");
}

export function readLedger(text: string): number {
  return readWhole(text, "a ledger number");
}

function readWhole(text: string, what: string): number {
  const number = readNumber(text);
  if (!Number.isInteger(number) || number < 1) throw new InvalidArgumentError(`Use ${what} from 1.`);
  return number;
}

export function readTime(text: string): Date {
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) throw new InvalidArgumentError("Write a time as 2026-06-19T00:21:26Z.");
  return time;
}
