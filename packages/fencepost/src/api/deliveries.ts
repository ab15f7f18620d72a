import type { z } from "@hono/zod-openapi";
import { isResolved } from "../dispatcher.ts";
import { openProducer } from "../ingest/append.ts";
import type { Database } from "../store/postgres/database.ts";
import type { ApiApp, ApiOptions } from "./options.ts";
import { RefusedRequestError } from "./problem.ts";
import { ROUTES } from "./routes.ts";
import type { NewEvent, StoredEvent } from "./schemas.ts";
import { showDelivery, showDeliveryWithAttempts } from "./view.ts";

/** Events of callers, and what becomes of a delivery. */
export function addDeliveryRoutes(
  app: ApiApp,
  { dispatcher, database }: Pick<ApiOptions, "dispatcher" | "database">,
): void {
  app.openapi(ROUTES.dispatchEvent, async (c) => {
    const body = c.req.valid("json");
    const { event_type, event_id = "", data, fencing_token } = body;
    if (body.stream !== undefined) return c.json(await appendEvent(database, dispatcher, body), 202);
    const { created, existing, forgotten } = await dispatcher.dispatch({
      event_type,
      event_id,
      data,
      ...(fencing_token !== undefined && { fencing_token }),
    });
    return c.json(
      {
        event_id,
        matched: created.length + existing.length + forgotten.length,
        created: created.map(showDelivery),
        existing: existing.map(showDelivery),
        forgotten: [...forgotten],
      },
      202,
    );
  });

  app.openapi(ROUTES.getDelivery, async (c) => {
    const { id } = c.req.valid("param");
    const delivery = await dispatcher.getDelivery(id);
    return c.json(showDeliveryWithAttempts(delivery, await dispatcher.listAttempts(id)), 200);
  });

  app.openapi(ROUTES.redeliver, async (c) => {
    const delivery = await dispatcher.redeliver(c.req.valid("param").id);
    return c.json(showDelivery(delivery), 202);
  });

  app.openapi(ROUTES.resolve, async (c) => {
    const { resolution } = c.req.valid("json");
    const delivery = await dispatcher.resolve(c.req.valid("param").id, resolution);
    if (!isResolved(delivery, resolution)) {
      const { id, state } = delivery;
      const detail = `The delivery ${id} is ${state}: only what is in doubt or failed is settled.`;
      throw new RefusedRequestError("wrong-state", detail);
    }
    return c.json(showDelivery(delivery), 200);
  });

  app.openapi(ROUTES.attempt, async (c) => {
    const delivery = await dispatcher.attempt(c.req.valid("param").id);
    return c.json(showDelivery(delivery), 200);
  });
}

/** Stores the event of a producer; the dispatcher makes its deliveries. */
async function appendEvent(
  database: Database,
  dispatcher: ApiOptions["dispatcher"],
  { stream = "", epoch = "", n = "", event_type, data, occurred_at }: z.infer<typeof NewEvent>,
): Promise<z.infer<typeof StoredEvent>> {
  const producer = openProducer(database, { stream, epoch });
  const occurredAt = occurred_at === undefined ? {} : { occurredAt: new Date(occurred_at) };
  const [appended] = await producer.append([{ n: BigInt(n), type: event_type, data, ...occurredAt }]);
  if (!appended) throw new Error("An event that was appended is told.");
  if (appended.isNew) dispatcher.wake();
  return { event_id: appended.eventId, fencing_token: appended.token, stored: appended.isNew };
}
