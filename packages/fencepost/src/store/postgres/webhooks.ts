// The life of a webhook.

import type { Page } from "../deliveryStore.ts";
import { MAX_LIVE_SECRETS, TooManySecretsError } from "../errors.ts";
import type {
  Missed,
  NewWebhook,
  Webhook,
  WebhookChanges,
  WebhookId,
  WebhookSecret,
  WebhookSettings,
} from "../webhook.ts";
import type { DatabaseClient, Queryable } from "./database.ts";

/** Why a deleted webhook is not active, and why its deliveries failed. */
export const DELETED = "The webhook was deleted.";

/** What a missed message is counted up to, and how many messages are looked at for it. */
const MAX_MISSED = 10_000;
const MAX_LOOKED_AT = 100_000;
/** How long before the webhook was disabled a message may have occurred that was only made afterwards. */
const LATE_BY = "1 hour";

/** Where each setting is kept. */
const SETTING_COLUMNS = {
  url: "url",
  types: "types",
  filter: "filter",
  headers: "headers",
  description: "description",
  onUnknown: "on_unknown",
  retryOn: "retry_on",
  retryScheduleMs: "retry_schedule_ms",
  jitter: "jitter",
  ratePerSecond: "rate_per_second",
  maxInFlight: "max_in_flight",
  disableAfterMs: "disable_after_ms",
} as const satisfies Record<keyof WebhookSettings, string>;

/** Secrets of webhook `w` that have not expired, as `s`, in their order `n`. */
const LIVE_SECRETS = `jsonb_array_elements(w.secrets) WITH ORDINALITY AS t(s, n)
  WHERE coalesce((s ->> 'expires_at')::timestamptz > now(), true)`;

/** Of webhook `w`. */
const WEBHOOK_COLUMNS = `w.id, ${Object.entries(SETTING_COLUMNS)
  .map(([setting, column]) => `w.${column} AS "${setting}"`)
  .join(", ")},
  (SELECT coalesce(jsonb_agg(s ORDER BY n), '[]') FROM ${LIVE_SECRETS}) AS secrets,
  w.ordering, w.active, w.disabled_reason AS "disabledReason", w.disabled_at AS "disabledAt",
  w.failing_since AS "failingSince", w.deliver_from AS "deliverFrom", w.pruned_until AS "prunedUntil",
  w.created_at AS "createdAt"`;

type WebhookRow = Omit<Webhook, "secrets"> & {
  readonly secrets: readonly { readonly secret: string; readonly expires_at: string | null }[];
};

function toWebhook({ secrets, ...row }: WebhookRow): Webhook {
  const toSecret = ({ secret, expires_at }: WebhookRow["secrets"][number]): WebhookSecret => ({
    secret,
    expiresAt: expires_at === null ? null : new Date(expires_at),
  });
  return { ...row, secrets: secrets.map(toSecret) };
}

function settingValue(setting: keyof WebhookSettings, value: unknown): unknown {
  const isJson = setting === "filter" || setting === "headers";
  return isJson && value !== null ? JSON.stringify(value) : value;
}

export async function addWebhook(client: DatabaseClient, webhook: NewWebhook): Promise<Webhook> {
  const settings = Object.keys(SETTING_COLUMNS) as (keyof WebhookSettings)[];
  const secrets = webhook.secrets.map((secret) => ({ secret, expires_at: null }));
  const { rowCount } = await client.query(
    `INSERT INTO fencepost.webhooks (id, secrets, ordering, ${settings.map((setting) => SETTING_COLUMNS[setting]).join(", ")})
     VALUES ($1, $2, $3, ${settings.map((_, i) => `$${i + 4}`).join(", ")})
     ON CONFLICT (id) DO NOTHING`,
    [
      webhook.id,
      JSON.stringify(secrets),
      webhook.ordering,
      ...settings.map((setting) => settingValue(setting, webhook[setting])),
    ],
  );
  if (rowCount === 1) {
    // A fan-out that runs now cannot see this webhook: it looks back once it is committed.
    await queueCatchUp(client, webhook.id);
    await keepPace(client, webhook.id);
  }
  // A statement of its own: the one above cannot see the row that won against it.
  const { rows } = await client.query<WebhookRow>(
    `SELECT ${WEBHOOK_COLUMNS} FROM fencepost.webhooks w WHERE w.id = $1`,
    [webhook.id],
  );
  const [row] = rows;
  if (!row) throw new Error("The database returned no row for the new webhook.");
  return toWebhook(row);
}

async function queueCatchUp(client: DatabaseClient, id: WebhookId): Promise<void> {
  await client.query(
    `INSERT INTO fencepost.catch_ups (webhook_id, after_time)
     SELECT id, deliver_from FROM fencepost.webhooks WHERE id = $1
     ON CONFLICT (webhook_id) DO UPDATE SET after_time = excluded.after_time, after_event_id = ''`,
    [id],
  );
}

/**
 * Only webhooks with a limit or an order have a row of their pace. What was claimed at a lower rate keeps none waiting
 * longer than this rate can. The webhook's own is locked by this transaction.
 */
async function keepPace(client: DatabaseClient, id: WebhookId): Promise<void> {
  await client.query(
    `WITH gone AS (
       DELETE FROM fencepost.webhook_pace p USING fencepost.webhooks w
       WHERE p.webhook_id = $1 AND w.id = $1
         AND w.rate_per_second IS NULL AND w.max_in_flight IS NULL AND w.ordering <> 'strict'
     )
     INSERT INTO fencepost.webhook_pace (webhook_id)
     SELECT id FROM fencepost.webhooks
     WHERE id = $1 AND (rate_per_second IS NOT NULL OR max_in_flight IS NOT NULL OR ordering = 'strict')
     ON CONFLICT (webhook_id) DO UPDATE SET free_at = least(webhook_pace.free_at, now() + (
       SELECT greatest(1, 1 / rate_per_second) * interval '1 second' FROM fencepost.webhooks WHERE id = $1
     ))`,
    [id],
  );
}

export async function findWebhook(db: Queryable, id: WebhookId): Promise<Webhook | undefined> {
  const { rows } = await db.query<WebhookRow>(
    `SELECT ${WEBHOOK_COLUMNS} FROM fencepost.webhooks w WHERE w.id = $1 AND w.deleted_at IS NULL`,
    [id],
  );
  return rows.map(toWebhook)[0];
}

export async function listWebhooks(db: Queryable, { after = "", limit }: Page): Promise<readonly Webhook[]> {
  const { rows } = await db.query<WebhookRow>(
    `SELECT ${WEBHOOK_COLUMNS} FROM fencepost.webhooks w
     WHERE w.id > $1 AND w.deleted_at IS NULL ORDER BY w.id LIMIT $2`,
    [after, limit],
  );
  return rows.map(toWebhook);
}

export async function updateWebhook(
  client: DatabaseClient,
  id: WebhookId,
  changes: WebhookChanges,
): Promise<Webhook | undefined> {
  const changed = (Object.keys(SETTING_COLUMNS) as (keyof WebhookSettings)[]).filter(
    (setting) => changes[setting] !== undefined,
  );
  if (changed.length > 0) {
    await client.query(
      `UPDATE fencepost.webhooks SET ${changed.map((setting, i) => `${SETTING_COLUMNS[setting]} = $${i + 2}`).join(", ")}
       WHERE id = $1 AND deleted_at IS NULL`,
      [id, ...changed.map((setting) => settingValue(setting, changes[setting]))],
    );
    await keepPace(client, id);
  }
  return findWebhook(client, id);
}

export async function rotateSecret(
  db: Queryable,
  id: WebhookId,
  secret: string,
  overlapMs: number,
): Promise<Webhook | undefined> {
  const { rows } = await db.query<WebhookRow>(
    `UPDATE fencepost.webhooks w
     SET secrets = jsonb_build_array(jsonb_build_object('secret', $2::text, 'expires_at', NULL)) || (
       SELECT coalesce(jsonb_agg(jsonb_build_object('secret', s -> 'secret', 'expires_at', ending) ORDER BY n), '[]')
       FROM (
         SELECT s, n, least((s ->> 'expires_at')::timestamptz, now() + $3 * interval '1 millisecond') AS ending
         FROM ${LIVE_SECRETS}
       ) earlier WHERE ending > now()
     )
     WHERE w.id = $1 AND w.deleted_at IS NULL AND ($3::float8 <= 0 OR (SELECT count(*) FROM ${LIVE_SECRETS}) < $4)
     RETURNING ${WEBHOOK_COLUMNS}`,
    [id, secret, overlapMs, MAX_LIVE_SECRETS],
  );
  if (rows.length === 0 && (await findWebhook(db, id))) throw new TooManySecretsError(id);
  return rows.map(toWebhook)[0];
}

export async function activateWebhook(
  client: DatabaseClient,
  id: WebhookId,
  missed: Missed,
): Promise<{ readonly webhook: Webhook; readonly missed: number } | undefined> {
  const { rows } = await client.query<{ active: boolean }>(
    "SELECT active FROM fencepost.webhooks WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE",
    [id],
  );
  const [before] = rows;
  if (!before) return undefined;
  const count = before.active ? 0 : await countMissed(client, id);
  if (!before.active) {
    await client.query(
      `UPDATE fencepost.webhooks
       SET active = true, disabled_reason = NULL, disabled_at = NULL, failing_since = NULL, told = true,
           deliver_from = CASE WHEN $2 THEN now() ELSE deliver_from END
       WHERE id = $1`,
      [id, missed === "skip"],
    );
    await queueCatchUp(client, id);
  }
  const webhook = await findWebhook(client, id);
  return webhook && { webhook, missed: count };
}

async function countMissed(client: DatabaseClient, id: WebhookId): Promise<number> {
  const { rows } = await client.query<{ missed: bigint }>(
    `SELECT count(*) AS missed FROM (
       SELECT FROM fencepost.webhooks w
       CROSS JOIN LATERAL (
         SELECT event_id, type, state, created_at FROM fencepost.messages m
         WHERE m.occurred_at >= greatest(w.deliver_from, w.disabled_at - interval '${LATE_BY}')
         ORDER BY m.occurred_at, m.event_id LIMIT ${MAX_LOOKED_AT}
       ) m
       JOIN fencepost.message_bodies b ON b.event_id = m.event_id
       WHERE w.id = $1 AND m.state = 'emitted' AND m.created_at >= w.disabled_at
         AND coalesce(m.created_at > w.pruned_until, true)
         AND fencepost.takes(w.types, w.filter, m.type, CASE WHEN w.filter IS NOT NULL THEN fencepost.message_data(b.body) END)
         AND NOT EXISTS (
           SELECT FROM fencepost.deliveries d WHERE d.event_id = m.event_id AND d.webhook_id = w.id
         )
       LIMIT ${MAX_MISSED}
     ) missed`,
    [id],
  );
  return Number(rows[0]?.missed ?? 0n);
}

export async function deactivateWebhook(
  db: Queryable,
  id: WebhookId,
  reason: string,
): Promise<Webhook | undefined> {
  await db.query(
    `UPDATE fencepost.webhooks SET active = false, disabled_reason = $2, disabled_at = now()
     WHERE id = $1 AND active AND deleted_at IS NULL`,
    [id, reason],
  );
  return findWebhook(db, id);
}

/** The row stays: its id is never used again. What could be used against its owner does not. */
export async function deleteWebhook(db: Queryable, id: WebhookId): Promise<boolean> {
  const { rows } = await db.query(
    `WITH gone AS (
       UPDATE fencepost.webhooks
       SET active = false, disabled_reason = $2, disabled_at = now(), deleted_at = now(), told = true,
           secrets = '[]', headers = '{}'
       WHERE id = $1 AND deleted_at IS NULL
       RETURNING id
     ), paced AS (
       DELETE FROM fencepost.webhook_pace p USING gone WHERE p.webhook_id = gone.id
     ), looking_back AS (
       DELETE FROM fencepost.catch_ups c USING gone WHERE c.webhook_id = gone.id
     )
     SELECT FROM gone`,
    [id, DELETED],
  );
  return rows.length > 0;
}
