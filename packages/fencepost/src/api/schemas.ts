// What goes in and out of the HTTP interface. Names are snake_case, times ISO 8601 in UTC.
import { z } from "@hono/zod-openapi";

const DAY_MS = 86_400_000;

const time = () => z.iso.datetime().openapi({ example: "2026-06-19T00:21:26.000Z" });
/** With any offset. */
const anyTime = () => z.iso.datetime({ offset: true }).openapi({ example: "2026-06-19T00:00:00Z" });
const count = () => z.int().min(0);
/** Beyond 2^53 a JSON number is not safe: a decimal string. */
const bigNumber = () =>
  z
    .string()
    .regex(/^\d{1,20}$/)
    .openapi({ example: "63092990" });

export const WEBHOOK_ID = /^wh_[0-9A-Za-z]{1,64}$/;
export const DELIVERY_ID = /^dlv_[0-9a-z]{1,64}$/;
const webhookId = () => z.string().regex(WEBHOOK_ID).openapi({ example: "wh_4bd0f2a1c6e85d937f10ab2c" });
const deliveryId = () => z.string().regex(DELIVERY_ID).openapi({ example: "dlv_42" });

const secret = () =>
  z
    .string()
    .max(256)
    .regex(/^(?:whsec_|whsk_)[A-Za-z0-9+/]+={0,2}$/)
    .openapi({ example: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwAbCdEfGhIjK=" });

const OnUnknown = z.enum(["resend", "hold", "ask"]).openapi({
  description:
    "When bytes left and no answer came: send again (at least once), hold for a person (at most once), or ask the endpoint (exactly once).",
});
const RetryOn = z.enum(["default", "all"]).openapi({
  description: "Answers that are sent again: 408, 425, 429 and 5xx, or all but 2xx and 410.",
});
const Ordering = z.enum(["none", "strict"]).openapi({
  description: "strict: one at a time, in the order of the messages; what failed blocks what comes after it.",
});
const DeliveryState = z.enum(["pending", "sending", "success", "failed", "in_doubt"]);
const JsonObject = z.record(z.string(), z.unknown());

/** PostgreSQL holds neither NUL nor a lone surrogate. */
function isStorable(text: string): boolean {
  return !/\p{Surrogate}/u.test(text) && !text.includes("\0");
}

// ── requests ────────────────────────────────────────────────────────────────────────────────────────────
// Bounds that a schema cannot say (which addresses, which secrets) are checked where webhooks are read.
const settings = {
  url: z.string().min(1).max(2_048).openapi({ example: "https://example.com/hooks" }),
  types: z
    .array(
      z
        .string()
        .max(128)
        .regex(/^(?:\*|[\w-]+(?:\.[\w-]+)*)$/),
    )
    .min(1)
    .max(100)
    .openapi({
      description: '"*" stands for every type but those of the system, webhook.…',
      example: ["pool.assets_locked"],
    }),
  filter: JsonObject.nullable().openapi({ description: "Only messages whose data contain it; null: all." }),
  headers: z
    .record(z.string().max(128), z.string().max(1_024))
    .openapi({ description: "Sent with each attempt. Their values are never shown again." }),
  description: z.string().max(500),
  on_unknown: OnUnknown,
  retry_on: RetryOn,
  retry_schedule_ms: z
    .array(
      z
        .int()
        .min(1)
        .max(7 * DAY_MS),
    )
    .min(1)
    .max(50)
    .nullable()
    .openapi({ description: "Delays before the second, third, … attempt; null: the default." }),
  jitter: z.number().min(0).max(1),
  rate_per_second: z.number().min(0.01).max(10_000).nullable().openapi({ description: "null: no limit." }),
  max_in_flight: z.int().min(1).max(1_000).nullable().openapi({ description: "null: no limit." }),
  disable_after_ms: z
    .int()
    .min(60_000)
    .max(365 * DAY_MS)
    .nullable()
    .openapi({ description: "Disabled once every attempt has failed for so long; null: never." }),
};

export const NewWebhook = z
  .strictObject({
    ...z.object(settings).partial().shape,
    url: settings.url,
    types: settings.types,
    ordering: Ordering.optional(),
    secrets: z
      .array(secret())
      .min(1)
      .max(5)
      .optional()
      .openapi({ description: "whsec_… or whsk_…, newest first; one is made when left out." }),
  })
  .openapi("NewWebhook");

export const WebhookChanges = z
  .strictObject(z.object(settings).partial().shape)
  .openapi("WebhookChanges", { description: "Only what is named changes." });

export const RotateSecret = z
  .strictObject({
    secret: secret().optional().openapi({ description: "One is made when left out." }),
    overlap_ms: z
      .int()
      .min(0)
      .max(30 * DAY_MS)
      .optional()
      .openapi({ description: "How long the earlier secrets still sign; a day unless given." }),
  })
  .openapi("RotateSecret");

export const Activate = z
  .strictObject({
    missed: z.enum(["skip", "deliver"]).optional().openapi({ description: "skip unless given." }),
  })
  .openapi("Activate");

export const Pause = z
  .strictObject({
    reason: z.string().min(1).max(500).refine(isStorable, "has NUL or half a character").optional(),
  })
  .openapi("Pause");

export const NewEvent = z
  .strictObject({
    event_type: z
      .string()
      .max(128)
      .regex(/^[\w-]+(?:\.[\w-]+)*$/)
      .openapi({ description: "Not webhook.…: these are of the system.", example: "order.paid" }),
    event_id: z
      .string()
      .regex(/^[\w:~-]{1,256}$/)
      .optional()
      .openapi({
        description: "Your own id of the event; needed unless stream is given.",
        example: "order_4711",
      }),
    // What JSON cannot hold is told from what is missing.
    data: z
      .unknown()
      .refine((data) => data !== undefined, "is missing")
      .openapi({ description: "Any JSON." }),
    fencing_token: z
      .string()
      .max(128)
      .optional()
      .openapi({ example: "pubnet-20150930-0063092990-0000027-0006-0000000002" }),
    stream: z
      .string()
      .regex(/^[a-z0-9_]{1,32}$/)
      .optional()
      .openapi({
        description:
          "The stream of a producer that counts its own events: then epoch and n are needed too, and the id follows from them.",
        example: "billing",
      }),
    epoch: z
      .string()
      .regex(/^\d{8}$/)
      .optional()
      .openapi({ description: "The day of the stream's epoch.", example: "20260101" }),
    n: z
      .string()
      .regex(/^\d{1,20}$/)
      .optional()
      .openapi({ description: "The number of the event in its stream, in digits.", example: "4711" }),
    occurred_at: anyTime().optional().openapi({ description: "Only with stream; now unless given." }),
  })
  .superRefine((event, context) => {
    const isProduced = event.stream !== undefined;
    const [needed, refused] = isProduced
      ? ([
          ["epoch", "n"],
          ["event_id", "fencing_token"],
        ] as const)
      : ([["event_id"], ["epoch", "n", "occurred_at"]] as const);
    const refuse = (field: string, message: string): void =>
      context.addIssue({ code: "custom", path: [field], message });
    for (const field of needed) if (event[field] === undefined) refuse(field, "is missing");
    for (const field of refused) {
      if (event[field] !== undefined)
        refuse(field, isProduced ? "does not go with stream" : "needs a stream");
    }
  })
  .openapi("NewEvent");

export const ReplayRange = z
  .strictObject({
    from: anyTime().openapi({ description: "The first message that counts is not older." }),
    to: anyTime().openapi({ description: "The last message that counts is older." }),
    cursor: z.string().max(512).optional().openapi({ description: "next_cursor of the answer before." }),
    limit: z
      .int()
      .min(1)
      .max(1_000)
      .optional()
      .openapi({ description: "Messages looked at; 1,000 unless given." }),
  })
  .openapi("ReplayRange");

export const Resolve = z
  .strictObject({
    resolution: z.enum(["delivered", "resend", "skip"]).openapi({
      description: "It arrived; it is to be sent again; or it is given up and blocks nothing any more.",
    }),
  })
  .openapi("Resolve");

// ── what paths and queries hold ─────────────────────────────────────────────────────────────────────────
export const WebhookPath = z.object({ id: webhookId() });
export const DeliveryPath = z.object({ id: deliveryId() });
export const TracePath = z.object({
  token: z
    .string()
    .regex(/^[\w:~.-]{1,256}$/)
    .openapi({ description: "A fencing token, an event id or a delivery id.", example: "order_4711" }),
});

export const PageQuery = z.object({
  limit: z.coerce.number().int().min(1).max(100).default(50),
  cursor: z.string().max(512).optional().openapi({ description: "next_cursor of the page before." }),
});
export const DeliveriesQuery = PageQuery.extend({
  state: DeliveryState.optional(),
  needs_person: z
    .enum(["true"])
    .optional()
    .openapi({ description: "Only those that wait for a person, or block a strict webhook." }),
});

export const IDEMPOTENCY_KEY = /^[\x21-\x7e]{1,255}$/;
export const IdempotencyHeader = z.object({
  "idempotency-key": z
    .string()
    .regex(IDEMPOTENCY_KEY)
    .optional()
    .openapi({ description: "Makes a repeat of this very request safe, for a day.", example: "6f0c4c9e" }),
});

// ── answers ─────────────────────────────────────────────────────────────────────────────────────────────
export const Webhook = z
  .object({
    id: webhookId(),
    ...z.object(settings).omit({ headers: true }).shape,
    header_names: z.array(z.string()),
    ordering: Ordering,
    active: z.boolean(),
    disabled_reason: z.string().nullable(),
    disabled_at: time().nullable(),
    failing_since: time().nullable(),
    deliver_from: time().openapi({ description: "Events from before it are not offered to this webhook." }),
    pruned_until: time().nullable().openapi({ description: "Deliveries until then may be gone." }),
    created_at: time(),
  })
  .openapi("Webhook");

export const WebhookWithSecrets = Webhook.extend({
  secrets: z.array(z.string()).openapi({ description: "New ones, shown this once." }),
}).openapi("WebhookWithSecrets");

export const ActivatedWebhook = Webhook.extend({
  missed: count().openapi({ description: "Messages of the time it was not active; 10,000: or more." }),
}).openapi("ActivatedWebhook");

export const Delivery = z
  .object({
    id: deliveryId(),
    event_id: z.string(),
    webhook_id: webhookId(),
    state: DeliveryState,
    attempts: count(),
    last_status: z.int().nullable(),
    last_error: z.string().nullable(),
    next_at: time().nullable().openapi({ description: "null in doubt: it waits for a person." }),
    blocked_by: deliveryId().nullable(),
    created_at: time(),
    finished_at: time().nullable(),
  })
  .openapi("Delivery");

export const Attempt = z
  .object({
    number: z.int(),
    url: z.string(),
    timestamp: bigNumber().openapi({ description: "The signed one, in unix seconds." }),
    started_at: time(),
    finished_at: time().nullable(),
    outcome: z.enum(["delivered", "rejected", "not_sent", "unknown"]).nullable(),
    status: z.int().nullable(),
    error: z.string().nullable(),
    response: z.string().nullable(),
    late_outcome: z.string().nullable().openapi({ description: "Reported after the claim was lost." }),
  })
  .openapi("Attempt");

export const DeliveryWithAttempts = Delivery.extend({
  attempt_list: z.array(Attempt).openapi({ description: "The oldest first, up to 1,000." }),
}).openapi("DeliveryWithAttempts");

export const DispatchedEvent = z
  .object({
    event_id: z.string(),
    matched: count().openapi({ description: "Webhooks that take it; 0: nobody does." }),
    created: z.array(Delivery),
    existing: z.array(Delivery).openapi({ description: "As they stand; nothing was sent for them." }),
    forgotten: z
      .array(webhookId())
      .openapi({ description: "Whether they had it cannot be known any more: not sent." }),
  })
  .openapi("DispatchedEvent");

/** A producer's event: its deliveries are made from the outbox. */
export const StoredEvent = z
  .object({
    event_id: z.string(),
    fencing_token: z.string(),
    stored: z.boolean().openapi({ description: "false: it was there before, and nothing was done." }),
  })
  .openapi("StoredEvent");

export const WebhookEventsQuery = PageQuery.extend({
  after: z
    .string()
    .max(128)
    .optional()
    .openapi({ description: "A fencing token: what comes after all that it stands for. Not with cursor." }),
});

const WebhookEvent = z
  .object({
    fencing_token: z.string(),
    event_id: z.string(),
    event_type: z.string(),
    occurred_at: time(),
    delivery_id: z.string().nullable().openapi({ description: "null: there is none yet, or it was pruned." }),
    state: DeliveryState.nullable(),
  })
  .openapi("WebhookEvent");

export const WebhookEventPage = z
  .object({
    items: z.array(WebhookEvent),
    next_cursor: z.string().nullable().openapi({ description: "null: this was the last page." }),
  })
  .openapi("WebhookEventPage");

export const AuditQuery = z.object({
  from: z.coerce.number().int().min(1).max(2_147_483_647).openapi({ description: "The first ledger." }),
  to: z.coerce.number().int().min(1).max(2_147_483_647).openapi({ description: "The last ledger." }),
});

const findings = <Item extends z.ZodType>(item: Item) =>
  z.object({ count: count(), listed: z.array(item).openapi({ description: "The first 1,000." }) });
const NamedMessage = z.object({ fencing_token: z.string(), event_id: z.string(), event_type: z.string() });

export const AuditReport = z
  .object({
    stream: z.string(),
    source: z.string().openapi({ description: "What was read again." }),
    from_ledger: count(),
    through_ledger: count(),
    unread_from: count()
      .nullable()
      .openapi({ description: "The first ledger that the source could not be asked about." }),
    differences: count().openapi({ description: "0, and unread_from null: all is as it must be." }),
    events: z.object({
      agreed: count(),
      missing: findings(z.string()),
      extra: findings(z.string()),
      different: findings(z.string()),
      doubled: findings(z.string()),
    }),
    projections: z.array(
      z.object({ name: z.string(), version: count(), behind: count(), stopped_token: z.string().nullable() }),
    ),
    messages: z.object({
      count: count(),
      missing: findings(NamedMessage),
      without_event: findings(NamedMessage),
      silent: findings(NamedMessage.omit({ event_id: true })),
    }),
    webhooks: z.array(
      z.object({
        id: webhookId(),
        active: z.boolean(),
        due: count(),
        states: z.record(DeliveryState, count()),
        waiting: count(),
        unknown: count(),
        missing: findings(NamedMessage),
        doubled: findings(NamedMessage),
      }),
    ),
  })
  .openapi("AuditReport");

export const ReplayReport = z
  .object({
    created: count(),
    existing: count(),
    forgotten: z
      .array(z.string())
      .openapi({ description: "Older than the records of this webhook: not sent." }),
    bodiless: z.array(z.string()).openapi({ description: "Their bodies were pruned: not sent." }),
    next_cursor: z.string().nullable().openapi({ description: "null: this was the last page." }),
  })
  .openapi("ReplayReport");

const page = <Item extends z.ZodType>(item: Item) =>
  z.object({
    items: z.array(item),
    next_cursor: z.string().nullable().openapi({ description: "null: this was the last page." }),
  });
export const WebhookPage = page(Webhook).openapi("WebhookPage");
export const DeliveryPage = page(Delivery).openapi("DeliveryPage");

const Leader = z.object({ pid: z.int(), lease_until: time() }).nullable();

export const Streams = z
  .object({
    items: z.array(
      z.object({
        stream: z.string(),
        epoch: z.string(),
        next_ledger: count().nullable(),
        latest_ledger: count().nullable(),
        lag: count().nullable(),
        seq: bigNumber(),
        term: bigNumber(),
        leader: Leader,
        halted: z.string().nullable(),
        gaps: z.array(z.object({ from_ledger: count(), to_ledger: count(), accepted: z.boolean() })),
        conflicts: count(),
        catching_up: count(),
      }),
    ),
  })
  .openapi("Streams");

export const Projections = z
  .object({
    items: z.array(
      z.object({
        name: z.string(),
        version: z.int(),
        state: z.enum(["live", "building", "retired"]),
        stream: z.string(),
        cursor: bigNumber(),
        seq: bigNumber(),
        term: bigNumber(),
        leader: Leader,
        stopped: z.object({ token: z.string(), event: z.string(), error: z.string(), at: time() }).nullable(),
        quarantined: count(),
        skipped: count(),
      }),
    ),
  })
  .openapi("Projections");

export const Trace = z
  .object({
    token: z.string().nullable(),
    event: z
      .object({
        token: z.string(),
        stream: z.string(),
        seq: bigNumber(),
        type: z.string(),
        contract_id: z.string().nullable(),
        tx_hash: z.string(),
        ledger: count(),
        closed_at: time(),
        stored_at: time(),
        late: z.boolean(),
        topics: z.array(z.string()).openapi({ description: "Base64 XDR." }),
        value: z.string().openapi({ description: "Base64 XDR." }),
        undecodable: z.string().nullable(),
        conflicts: count(),
      })
      .nullable(),
    projections: z.array(
      z.object({
        name: z.string(),
        version: z.int(),
        state: z.enum(["live", "building", "retired"]),
        stage: z.enum(["waiting", "stopped", "skipped", "set_aside", "passed"]),
        reason: z.string().nullable(),
      }),
    ),
    messages: z.array(
      z.object({
        event_id: z.string(),
        type: z.string().nullable(),
        projection: z.string().nullable(),
        state: z.enum(["emitted", "suppressed", "dispatched", "test"]).nullable(),
        occurred_at: time().nullable(),
        created_at: time().nullable(),
        in_outbox: z.boolean(),
        deliveries: z.array(DeliveryWithAttempts),
      }),
    ),
    truncated: z.boolean().openapi({ description: "More is on record than is listed." }),
  })
  .openapi("Trace");

export const Health = z.object({ status: z.literal("ok") }).openapi("Health");
