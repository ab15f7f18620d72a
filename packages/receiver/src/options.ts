import { InvalidOptionError } from "./errors.ts";

/** Checks an option that is a count, a size or a time. Throws {@link InvalidOptionError}. */
export function positiveInteger(option: string, value: number): number {
  if (!Number.isSafeInteger(value) || value < 1) {
    throw new InvalidOptionError(option, "a whole number of 1 or more", value);
  }
  return value;
}

/** 7 days: the sender's default schedule ends after about 76 hours, and a person may still resolve what is in doubt. */
const DEFAULT_RETRY_HORIZON_MS = 7 * 86_400_000;

/** How long a sender may still send an event, in milliseconds. Throws {@link InvalidOptionError}. */
export function retryHorizon(given: number | undefined): number {
  return given === undefined ? DEFAULT_RETRY_HORIZON_MS : positiveInteger("retryHorizonMs", given);
}
