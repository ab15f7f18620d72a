// Secrets are sealed before they reach a store, and opened after they leave it.
import { createCipheriv, createDecipheriv, randomBytes } from "node:crypto";
import { decideOutcome } from "./decideDelivery.ts";
import type { AttemptResult, DeliveryStore, RecordedAttempt } from "./deliveryStore.ts";
import type { Webhook, WebhookId, WebhookSecret } from "./webhook.ts";

const KEY_BYTES = 32;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
const CIPHER = "aes-256-gcm";
/** What a sealed text begins with; what does not is plain text. */
const PREFIX = "sealed:v1:";

/** What was given as the keys is none. */
export class InvalidSecretsKeyError extends Error {
  override readonly name = "InvalidSecretsKeyError";

  constructor(position: number) {
    super(
      `Key ${position} of FENCEPOST_SECRETS_KEY is not the base64 of ${KEY_BYTES} bytes. Make one with ` +
        `"openssl rand -base64 ${KEY_BYTES}"; several stand with commas between them.`,
    );
  }
}

/** What was sealed cannot be opened: its key is missing, or it was sealed for something else. */
export class SealedSecretError extends Error {
  override readonly name = "SealedSecretError";

  constructor(context: string, keys: number) {
    const why =
      keys === 0
        ? "and FENCEPOST_SECRETS_KEY is not set"
        : "and none of the keys in FENCEPOST_SECRETS_KEY opens it";
    super(
      `A secret of ${context} is sealed, ${why}. Add the key that it was sealed with to the list (the first one seals, ` +
        "all of them open), or rotate the secret without an overlap.",
    );
  }
}

/** Seals with the first of its keys, and opens with any of them. `context` says what it belongs to: both name it. */
export interface Seal {
  readonly keys: number;
  seal(plain: Buffer, context: string): Buffer;
  /** Throws {@link SealedSecretError}. */
  open(sealed: Buffer, context: string): Buffer;
}

/**
 * The keys of `FENCEPOST_SECRETS_KEY`: base64 of 32 bytes each, with commas between them. Without a key nothing is
 * sealed, and what is cannot be opened. Throws {@link InvalidSecretsKeyError}.
 */
export function readSecretsKeys(text: string | undefined): Seal {
  const names = text === undefined || text.trim() === "" ? [] : text.split(",");
  const keys = names.map((name, i) => {
    const key = Buffer.from(name.trim(), "base64");
    if (key.length !== KEY_BYTES || key.toString("base64") !== name.trim()) {
      throw new InvalidSecretsKeyError(i + 1);
    }
    return key;
  });
  return {
    keys: keys.length,
    seal(plain, context) {
      const [key] = keys;
      if (!key) return plain;
      const nonce = randomBytes(NONCE_BYTES);
      const cipher = createCipheriv(CIPHER, key, nonce).setAAD(Buffer.from(context));
      return Buffer.concat([nonce, cipher.update(plain), cipher.final(), cipher.getAuthTag()]);
    },
    open(sealed, context) {
      for (const key of keys) {
        const plain = openWith(key, sealed, context);
        if (plain) return plain;
      }
      throw new SealedSecretError(context, keys.length);
    },
  };
}

function openWith(key: Buffer, sealed: Buffer, context: string): Buffer | undefined {
  if (sealed.length < NONCE_BYTES + TAG_BYTES) return undefined;
  const decipher = createDecipheriv(CIPHER, key, sealed.subarray(0, NONCE_BYTES), {
    authTagLength: TAG_BYTES,
  });
  decipher.setAAD(Buffer.from(context)).setAuthTag(sealed.subarray(-TAG_BYTES));
  try {
    return Buffer.concat([decipher.update(sealed.subarray(NONCE_BYTES, -TAG_BYTES)), decipher.final()]);
  } catch {
    return undefined; // another key, or another context
  }
}

/**
 * A store whose secrets are sealed at rest, each for its own webhook; one that is stored as plain text is read as it is.
 * What was written is returned without secrets that cannot be opened; reading them throws {@link SealedSecretError}. An
 * attempt for which no secret can be opened is recorded as not sent, and says so.
 */
export function sealedSecrets<Tx>(store: DeliveryStore<Tx>, seal: Seal): DeliveryStore<Tx> {
  const sealText = (secret: string, id: WebhookId): string =>
    seal.keys === 0 ? secret : `${PREFIX}${seal.seal(Buffer.from(secret), id).toString("base64")}`;
  const openText = (secret: string, id: WebhookId): string =>
    secret.startsWith(PREFIX)
      ? seal.open(Buffer.from(secret.slice(PREFIX.length), "base64"), id).toString()
      : secret;
  const openAll = (webhook: Webhook): Webhook => ({
    ...webhook,
    secrets: webhook.secrets.map((one) => ({ ...one, secret: openText(one.secret, webhook.id) })),
  });
  const opened = <T>(secret: T, open: (secret: T) => T): readonly T[] => {
    try {
      return [open(secret)];
    } catch (error) {
      if (error instanceof SealedSecretError) return [];
      throw error;
    }
  };
  const openKnown = (secrets: readonly string[], id: WebhookId): readonly string[] =>
    secrets.flatMap((secret) => opened(secret, (text) => openText(text, id)));
  const openWritten = (webhook: Webhook): Webhook => ({
    ...webhook,
    secrets: webhook.secrets.flatMap((secret) =>
      opened<WebhookSecret>(secret, (one) => ({ ...one, secret: openText(one.secret, webhook.id) })),
    ),
  });
  const openIfThere = (webhook: Webhook | undefined): Webhook | undefined => webhook && openWritten(webhook);

  async function refuse(fence: bigint, attempts: readonly RecordedAttempt[]): Promise<void> {
    await store.finish(
      fence,
      attempts.map(({ id, webhookId, tries, policy }) => {
        const error = new SealedSecretError(webhookId, seal.keys).message;
        const result: AttemptResult = {
          outcome: "not_sent",
          status: null,
          error,
          response: null,
          retryAfterMs: null,
        };
        return { id, result, next: decideOutcome(result, tries, policy, Math.random()) };
      }),
    );
  }

  return {
    ...store,
    async addWebhook(webhook) {
      const secrets = webhook.secrets.map((secret) => sealText(secret, webhook.id));
      return openWritten(await store.addWebhook({ ...webhook, secrets }));
    },
    async findWebhook(id) {
      const webhook = await store.findWebhook(id);
      return webhook && openAll(webhook);
    },
    async listWebhooks(page) {
      return (await store.listWebhooks(page)).map(openAll);
    },
    async updateWebhook(id, changes) {
      return openIfThere(await store.updateWebhook(id, changes));
    },
    async rotateSecret(id, secret, overlapMs) {
      return openIfThere(await store.rotateSecret(id, sealText(secret, id), overlapMs));
    },
    async activateWebhook(id, missed) {
      const activated = await store.activateWebhook(id, missed);
      return activated && { ...activated, webhook: openWritten(activated.webhook) };
    },
    async deactivateWebhook(id, reason) {
      return openIfThere(await store.deactivateWebhook(id, reason));
    },
    async recordAttempts(fence, ids, leaseMs) {
      const recorded = (await store.recordAttempts(fence, ids, leaseMs)).map((attempt) => ({
        ...attempt,
        secrets: openKnown(attempt.secrets, attempt.webhookId),
      }));
      const refused = recorded.filter(({ secrets }) => secrets.length === 0);
      if (refused.length > 0) await refuse(fence, refused);
      return recorded.filter(({ secrets }) => secrets.length > 0);
    },
    async review(fence, ids) {
      return (await store.review(fence, ids)).map((claim) => ({
        ...claim,
        secrets: openKnown(claim.secrets, claim.webhookId),
      }));
    },
  };
}
