/** A webhook that cannot be added: a wrong url, no types, a secret that is none. Nothing was stored. */
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

/** There is no delivery with this id. */
export class UnknownDeliveryError extends Error {
  override readonly name = "UnknownDeliveryError";
  readonly deliveryId: string;

  constructor(id: string) {
    super(`There is no delivery ${id}. Find it with "fencepost trace <event id>".`);
    this.deliveryId = id;
  }
}
