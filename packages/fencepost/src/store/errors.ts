import type { WebhookId } from "./webhook.ts";

/** Secrets of one webhook that sign at once, at the most: each makes every request longer. */
export const MAX_LIVE_SECRETS = 10;

/** A secret cannot be rotated while so many sign. Nothing was changed. */
export class TooManySecretsError extends Error {
  override readonly name = "TooManySecretsError";
  readonly webhookId: WebhookId;

  constructor(webhookId: WebhookId) {
    super(
      `The webhook ${webhookId} would sign with more than ${MAX_LIVE_SECRETS} secrets. Wait until the overlap of an ` +
        "earlier rotation has ended, or rotate with a shorter one.",
    );
    this.webhookId = webhookId;
  }
}

/** A place in a list that was not given out by a page of it. */
export class InvalidCursorError extends Error {
  override readonly name = "InvalidCursorError";

  constructor(cursor: string) {
    super(
      `${JSON.stringify(cursor.slice(0, 100))} names no page. Take the cursor of the page before, or none.`,
    );
  }
}
