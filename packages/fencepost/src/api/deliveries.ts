import { isResolved } from "../dispatcher.ts";
import type { ApiApp, ApiOptions } from "./options.ts";
import { RefusedRequestError } from "./problem.ts";
import { ROUTES } from "./routes.ts";
import { showDelivery, showDeliveryWithAttempts } from "./view.ts";

/** Events of callers, and what becomes of a delivery. */
export function addDeliveryRoutes(app: ApiApp, { dispatcher }: Pick<ApiOptions, "dispatcher">): void {
  app.openapi(ROUTES.dispatchEvent, async (c) => {
    const { event_type, event_id, data, fencing_token } = c.req.valid("json");
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
