import { createHash } from "node:crypto";
import { testEventId } from "@fencepost/token";
import type { z } from "@hono/zod-openapi";
import type { WebhookChanges, WebhookId } from "../store/webhook.ts";
import { pageOf, placeOf } from "./cursor.ts";
import type { ApiApp, ApiOptions } from "./options.ts";
import { ROUTES } from "./routes.ts";
import { DELIVERY_ID, WEBHOOK_ID, type WebhookChanges as WebhookChangesSchema } from "./schemas.ts";
import { showDelivery, showWebhook } from "./view.ts";

/** Webhooks, and what belongs to one. */
export function addWebhookRoutes(app: ApiApp, { dispatcher }: Pick<ApiOptions, "dispatcher">): void {
  app.openapi(ROUTES.createWebhook, async (c) => {
    const { ordering, secrets, url, types, ...changes } = c.req.valid("json");
    const seed = c.get("seed");
    const webhook = await dispatcher.addWebhook(
      {
        ...readSettings(changes),
        url,
        types,
        ...(ordering !== undefined && { ordering }),
        ...(secrets !== undefined && { secrets }),
      },
      seed && webhookIdOf(seed),
    );
    return c.json({ ...showWebhook(webhook), secrets: webhook.secrets.map(({ secret }) => secret) }, 201);
  });

  app.openapi(ROUTES.listWebhooks, async (c) => {
    const { limit, cursor } = c.req.valid("query");
    const after = cursor === undefined ? {} : { after: placeOf(cursor, WEBHOOK_ID) };
    const found = await dispatcher.listWebhooks({ ...after, limit: limit + 1 });
    return c.json(pageOf(found, limit, showWebhook), 200);
  });

  app.openapi(ROUTES.getWebhook, async (c) => {
    const { id } = c.req.valid("param");
    return c.json(showWebhook(await dispatcher.getWebhook(id)), 200);
  });

  app.openapi(ROUTES.updateWebhook, async (c) => {
    const { id } = c.req.valid("param");
    const webhook = await dispatcher.updateWebhook(id, readSettings(c.req.valid("json")));
    return c.json(showWebhook(webhook), 200);
  });

  app.openapi(ROUTES.deleteWebhook, async (c) => {
    await dispatcher.deleteWebhook(c.req.valid("param").id);
    return c.body(null, 204);
  });

  app.openapi(ROUTES.rotateSecret, async (c) => {
    const { id } = c.req.valid("param");
    const { secret, overlap_ms } = c.req.valid("json");
    const webhook = await dispatcher.rotateSecret(id, {
      ...(secret !== undefined && { secret }),
      ...(overlap_ms !== undefined && { overlapMs: overlap_ms }),
    });
    const [newest] = webhook.secrets;
    return c.json({ ...showWebhook(webhook), secrets: newest ? [newest.secret] : [] }, 200);
  });

  app.openapi(ROUTES.testWebhook, async (c) => {
    const seed = c.get("seed");
    const delivery = await dispatcher.sendTest(c.req.valid("param").id, seed && testEventId(seed));
    return c.json(showDelivery(delivery), 202);
  });

  app.openapi(ROUTES.activateWebhook, async (c) => {
    const { webhook, missed } = await dispatcher.activateWebhook(
      c.req.valid("param").id,
      c.req.valid("json").missed,
    );
    return c.json({ ...showWebhook(webhook), missed }, 200);
  });

  app.openapi(ROUTES.pauseWebhook, async (c) => {
    const webhook = await dispatcher.pauseWebhook(c.req.valid("param").id, c.req.valid("json").reason);
    return c.json(showWebhook(webhook), 200);
  });

  app.openapi(ROUTES.listDeliveries, async (c) => {
    const { limit, cursor, state, needs_person } = c.req.valid("query");
    const after = cursor === undefined ? {} : { after: placeOf(cursor, DELIVERY_ID) };
    const found = await dispatcher.listDeliveries(
      c.req.valid("param").id,
      { ...(state !== undefined && { state }), needsPerson: needs_person === "true" },
      { ...after, limit: limit + 1 },
    );
    return c.json(pageOf(found, limit, showDelivery), 200);
  });

  app.openapi(ROUTES.replay, async (c) => {
    const { from, to, cursor, limit = REPLAY_LIMIT } = c.req.valid("json");
    const report = await dispatcher.replay(c.req.valid("param").id, {
      from: new Date(from),
      to: new Date(to),
      ...(cursor !== undefined && { after: cursor }),
      maxMessages: limit,
    });
    const { created, existing, forgotten, bodiless, next } = report;
    return c.json(
      { created, existing, forgotten: [...forgotten], bodiless: [...bodiless], next_cursor: next },
      200,
    );
  });
}

const REPLAY_LIMIT = 1_000;

/** The id of the webhook that a request makes, however often it is carried out. */
function webhookIdOf(seed: Buffer): WebhookId {
  return `wh_${createHash("sha256").update(seed).digest("hex").slice(0, 24)}` as WebhookId;
}

function readSettings(body: z.infer<typeof WebhookChangesSchema>): WebhookChanges {
  const named = {
    url: body.url,
    types: body.types,
    filter: body.filter as WebhookChanges["filter"],
    headers: body.headers,
    description: body.description,
    onUnknown: body.on_unknown,
    retryOn: body.retry_on,
    retryScheduleMs: body.retry_schedule_ms,
    jitter: body.jitter,
    ratePerSecond: body.rate_per_second,
    maxInFlight: body.max_in_flight,
    disableAfterMs: body.disable_after_ms,
  } satisfies { [Name in keyof WebhookChanges]-?: WebhookChanges[Name] | undefined };
  return Object.fromEntries(Object.entries(named).filter(([, value]) => value !== undefined));
}
