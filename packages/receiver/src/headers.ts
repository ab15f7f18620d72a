import { MalformedHeaderError, MissingHeaderError } from "./errors.ts";

/** The headers of a request: a Fetch `Headers`, node's `request.headers`, or any plain object. */
export type WebhookHeaders =
  | { get(name: string): string | null }
  | { readonly [name: string]: string | readonly string[] | undefined };

/** The form of an event id. No dot: it would let one signature stand for two splits into id, timestamp and body. */
export const EVENT_ID = /^[A-Za-z0-9_:~-]{1,256}$/;

/** The value of a header that may be given once. Throws {@link MissingHeaderError}, {@link MalformedHeaderError}. */
export function oneHeader(headers: WebhookHeaders, name: string, eventId?: string): string {
  const [value, ...others] = headerValues(headers, name);
  if (value === undefined || value === "") throw new MissingHeaderError(name, eventId);
  if (others.some((other) => other !== value)) {
    throw new MalformedHeaderError(name, "is given more than once", eventId);
  }
  return value;
}

/** Every value of a header, whatever the case of its name. */
export function headerValues(headers: WebhookHeaders, name: string): string[] {
  if (isHeaders(headers)) {
    const value = headers.get(name);
    return value === null ? [] : [value];
  }
  return Object.entries(headers)
    .filter(([key]) => key.toLowerCase() === name)
    .flatMap(([, value]) => value ?? []);
}

/** The event id that a request claims, where it has the form of one; for errors. It is not verified. */
export function claimedEventId(headers: WebhookHeaders): string | undefined {
  const [id = ""] = headerValues(headers, "webhook-id");
  return EVENT_ID.test(id) ? id : undefined;
}

function isHeaders(headers: WebhookHeaders): headers is { get(name: string): string | null } {
  return typeof headers["get" as keyof WebhookHeaders] === "function";
}
