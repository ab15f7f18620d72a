import { asToken, isToken } from "@fencepost/token";
import type { z } from "@hono/zod-openapi";
import { audit } from "../audit/audit.ts";
import type { AuditReport, Findings, NamedMessage } from "../audit/report.ts";
import { readWebhookEvents } from "../audit/webhookEvents.ts";
import type { MessagePlace } from "../store/postgres/audit.ts";
import { cursorOf, placeOf } from "./cursor.ts";
import type { ApiApp, ApiOptions } from "./options.ts";
import { RefusedRequestError } from "./problem.ts";
import { ROUTES } from "./routes.ts";
import type { AuditReport as ShownReport } from "./schemas.ts";

/** Ledgers that one request audits, at the most: it is answered within a minute. */
const MAX_LEDGERS = 1_000;
/** Of each kind of difference, as many are shown. */
const MAX_SHOWN = 1_000;
/** After every event id. */
const LAST_ID = "~".repeat(257);
const PLACE = /^([a-z0-9_-]{1,128}) ([\w:~-]{1,256})$/;

/** What is held against the source, and what a receiver can hold against what it got. */
export function addAuditRoutes(app: ApiApp, options: ApiOptions): void {
  const { dispatcher, database, store, source } = options;
  app.openapi(ROUTES.listWebhookEvents, async (c) => {
    const { limit, cursor, after } = c.req.valid("query");
    const webhook = await dispatcher.getWebhook(c.req.valid("param").id);
    const page = await readWebhookEvents(database, store, webhook, { after: startOf(cursor, after), limit });
    const items = page.events.map(({ token, eventId, type, occurredAt, delivery }) => ({
      fencing_token: token,
      event_id: eventId,
      event_type: type,
      occurred_at: occurredAt.toISOString(),
      delivery_id: delivery?.id ?? null,
      state: delivery?.state ?? null,
    }));
    const next = page.next && cursorOf(`${page.next.token} ${page.next.eventId}`);
    return c.json({ items, next_cursor: next }, 200);
  });

  app.openapi(ROUTES.audit, async (c) => {
    const { from, to } = c.req.valid("query");
    if (!source) throw new RefusedRequestError("not-found", "This process reads no source.");
    if (!(from <= to && to - from < MAX_LEDGERS)) {
      const detail = `from to to are 1 to ${MAX_LEDGERS} ledgers: audit more in parts, or with "fencepost audit".`;
      throw new RefusedRequestError("invalid-request", detail, {
        errors: [
          { in: "query", field: "to", message: `Not before from, and less than ${MAX_LEDGERS} after it.` },
        ],
      });
    }
    const signal = AbortSignal.any([c.req.raw.signal, AbortSignal.timeout(AUDIT_WITHIN_MS)]);
    const range = { fromLedger: from, throughLedger: to };
    return c.json(showReport(await audit(database, { source, store, ...range, signal })), 200);
  });
}

/** Shorter than a request may take: what nobody waits for is not gone on with. */
const AUDIT_WITHIN_MS = 55_000;

function startOf(cursor: string | undefined, after: string | undefined): MessagePlace {
  if (cursor !== undefined) {
    const [token = "", eventId = ""] = placeOf(cursor, PLACE).split(" ");
    return { token, eventId };
  }
  if (after === undefined) return { token: "", eventId: "" };
  if (!isToken(after)) {
    throw new RefusedRequestError("invalid-request", "after is not a fencing token.", {
      errors: [{ in: "query", field: "after", message: "Take the fencing_token of an event." }],
    });
  }
  return { token: asToken(after), eventId: LAST_ID };
}

function showReport(report: AuditReport): z.infer<typeof ShownReport> {
  const { events, messages } = report;
  return {
    stream: report.stream,
    source: report.source,
    from_ledger: report.fromLedger,
    through_ledger: report.throughLedger,
    unread_from: report.unreadFrom,
    differences: report.differences,
    events: {
      agreed: events.agreed,
      missing: show(events.missing, String),
      extra: show(events.extra, String),
      different: show(events.different, String),
      doubled: show(events.doubled, String),
    },
    projections: report.projections.map(({ name, version, behind, stoppedToken }) => ({
      name,
      version,
      behind,
      stopped_token: stoppedToken,
    })),
    messages: {
      count: messages.count,
      missing: show(messages.missing, showMessage),
      without_event: show(messages.withoutEvent, showMessage),
      silent: show(messages.silent, ({ token, type }) => ({ fencing_token: token, event_type: type })),
    },
    webhooks: report.webhooks.map(({ missing, doubled, ...counts }) => ({
      ...counts,
      missing: show(missing, showMessage),
      doubled: show(doubled, showMessage),
    })),
  };
}

function show<Item, Shown>({ count, listed }: Findings<Item>, showItem: (item: Item) => Shown) {
  return { count, listed: listed.slice(0, MAX_SHOWN).map((item) => showItem(item)) };
}

function showMessage({ token, eventId, type }: NamedMessage) {
  return { fencing_token: token, event_id: eventId, event_type: type };
}
