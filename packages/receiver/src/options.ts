import { InvalidOptionError } from "./errors.ts";

/** Checks an option that is a count, a size or a time. Throws {@link InvalidOptionError}. */
export function positiveInteger(option: string, value: number): number {
  if (!Number.isSafeInteger(value) || value < 1) {
    throw new InvalidOptionError(option, "a whole number of 1 or more", value);
  }
  return value;
}
