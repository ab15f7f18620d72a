/** A webhook that cannot be added or changed so: a wrong url, no types, a secret that is none. Nothing was stored. */
export class InvalidWebhookError extends Error {
  override readonly name = "InvalidWebhookError";
}

/** There is no webhook with this id. */
export class UnknownWebhookError extends Error {
  override readonly name = "UnknownWebhookError";

  constructor(id: string) {
    super(`There is no webhook ${id}. List them with "fencepost webhooks list".`);
  }
}

/** Nothing is sent to a webhook that is not active. Nothing was stored. */
export class InactiveWebhookError extends Error {
  override readonly name = "InactiveWebhookError";

  constructor(id: string, reason: string | null) {
    super(`The webhook ${id} is not active${reason === null ? "" : ` (${reason})`}. Activate it first.`);
  }
}

/** There is no delivery with this id. */
export class UnknownDeliveryError extends Error {
  override readonly name = "UnknownDeliveryError";
  readonly deliveryId: string;

  constructor(id: string) {
    super(`There is no delivery ${id}. Find it with "fencepost trace <event id>".`);
    this.deliveryId = id;
  }
}

/** A delivery of a deleted webhook is never sent again. */
export class DeletedWebhookError extends Error {
  override readonly name = "DeletedWebhookError";
  readonly deliveryId: string;

  constructor(deliveryId: string, webhookId: string) {
    super(
      `The delivery ${deliveryId} is not sent again: its webhook ${webhookId} was deleted. ` +
        "Add a webhook, and replay the time to it.",
    );
    this.deliveryId = deliveryId;
  }
}

/** A range of time that is none. Nothing was stored. */
export class InvalidRangeError extends Error {
  override readonly name = "InvalidRangeError";

  constructor() {
    super("A range of time has two valid dates, and its `from` is before its `to`.");
  }
}
