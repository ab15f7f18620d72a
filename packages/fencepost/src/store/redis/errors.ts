import type { EventId } from "@fencepost/token";
import type { DispatchReport } from "../deliveryStore.ts";

/** A server that gives no answer, or refuses who asks. */
export class RedisUnreachableError extends Error {
  override readonly name = "RedisUnreachableError";

  constructor(urls: readonly string[], cause: unknown) {
    const hosts = urls
      .map((url) => (URL.canParse(url) ? new URL(url).host : "an url that is none"))
      .join(", ");
    super(
      `Redis at ${hosts} cannot be used: ${cause instanceof Error ? cause.message : cause}. ` +
        "Check that it runs, its address, and the user and password in the url.",
      { cause },
    );
  }
}

/** A server that may throw records away. Nothing was stored. */
export class EvictionPolicyError extends Error {
  override readonly name = "EvictionPolicyError";
  readonly server: string;
  readonly policy: string;

  constructor(server: string, policy: string) {
    super(
      `The Redis server ${server} has the maxmemory-policy ${policy}: when its memory is full it deletes keys, and ` +
        "with them deliveries that wait, and the records by which nothing is sent twice. " +
        `Run "CONFIG SET maxmemory-policy noeviction" on it, and set it in its configuration.`,
    );
    this.server = server;
    this.policy = policy;
  }
}

/** A server that does not know what the store needs. */
export class RedisVersionError extends Error {
  override readonly name = "RedisVersionError";

  constructor(server: string, version: string) {
    super(`The Redis server ${server} has the version ${version}. Use Redis 7 or later, or Valkey.`);
  }
}

/** Keys cannot begin with this. */
export class InvalidPrefixError extends Error {
  override readonly name = "InvalidPrefixError";

  constructor(prefix: string) {
    super(
      `The prefix ${JSON.stringify(prefix.slice(0, 100))} is not 1 to 64 of A-Z a-z 0-9 _ . : - . Choose another.`,
    );
  }
}

/** An id that a webhook cannot have: it is part of texts in Redis. Nothing was stored. */
export class InvalidWebhookIdError extends Error {
  override readonly name = "InvalidWebhookIdError";

  constructor(id: string) {
    super(
      `The webhook id ${JSON.stringify(id.slice(0, 100))} is not 1 to 64 of A-Z a-z 0-9 _ - . Choose another.`,
    );
  }
}

/**
 * Part of Redis did not answer, so that some deliveries of a message may not be made. Those of the report are. Dispatch
 * it again: what exists is left as it is.
 */
export class DispatchIncompleteError extends Error {
  override readonly name = "DispatchIncompleteError";
  readonly eventId: EventId;
  /** What the rest of Redis did. */
  readonly report: DispatchReport;

  constructor(eventId: EventId, report: DispatchReport, failures: readonly unknown[]) {
    super(
      `Deliveries of ${eventId} may be missing: ${failures.length} parts of Redis failed, while ` +
        `${report.created.length} deliveries were made. Dispatch it again: what exists is left as it is.`,
      { cause: failures[0] },
    );
    this.eventId = eventId;
    this.report = report;
  }
}
