import { setTimeout as sleep } from "node:timers/promises";
import { createDispatcher, type Dispatcher } from "../dispatch/dispatcher.ts";
import type { DeliveryId, OnUnknown } from "../store/deliveryStore.ts";
import type { Database, Queryable } from "../store/postgres/database.ts";
import { postgresStore } from "../store/postgres/postgresStore.ts";
import { alignedLines } from "./alignedLines.ts";
import { loadConfig } from "./loadConfig.ts";
import { print } from "./print.ts";
import { type OpenedDatabase, withProjectDatabase } from "./project.ts";

/** How long `webhooks test --wait` waits for the first outcome, and how often it looks, in milliseconds. */
const WAIT_MS = 60_000;
const LOOK_MS = 100;

export interface AddOptions {
  readonly config: string;
  readonly types: readonly string[];
  readonly onUnknown: OnUnknown;
  readonly description: string;
  /** Take http urls for a database that is not the embedded one. */
  readonly allowInsecure: boolean;
}

/** `fencepost webhooks add`: prints the signing secret, this once. */
export async function addWebhook(url: string, options: AddOptions): Promise<void> {
  const { config, types, onUnknown, description, allowInsecure } = options;
  await withProjectDatabase(config, async (opened, project) => {
    const insecure = allowInsecure || opened.place.kind === "embedded";
    const webhook = await dispatcherOn(opened, insecure).addWebhook({ url, types, onUnknown, description });
    print(
      `id:     ${webhook.id}`,
      `url:    ${webhook.url}`,
      `types:  ${webhook.types.join(", ")}`,
      `secret: ${webhook.secrets.join(", ")}`,
      "Store the secret at the receiver now: it is not shown again.",
    );
    const declared = await declaredTypes(project.configPath);
    const unknown = types.filter((type) => type !== "*" && declared && !declared.includes(type));
    if (unknown.length > 0) {
      print(
        `Note: no projection declares ${unknown.join(", ")}. Declared: ${declared?.join(", ") || "none"}.`,
      );
    }
  });
}

/** The message types of the project's projections, where its config can be loaded. */
async function declaredTypes(configPath: string): Promise<readonly string[] | undefined> {
  const loaded = await loadConfig(configPath).catch(() => undefined);
  return loaded?.config.projections.flatMap((projection) => Object.keys(projection.messages));
}

/** `fencepost webhooks list`: never shows a secret. */
export async function listWebhooks(options: { readonly config: string }): Promise<void> {
  await withProjectDatabase(options.config, async (opened) => {
    const webhooks = await dispatcherOn(opened, false).listWebhooks();
    const rows = webhooks.map(({ id, url, types, onUnknown, active, disabledReason, description }) => [
      id,
      url,
      types.join(","),
      onUnknown,
      active ? "active" : `disabled: ${disabledReason ?? "by hand"}`,
      description,
    ]);
    if (rows.length === 0) print('There are no webhooks. Add one: fencepost webhooks add <url> --types "*"');
    else print(...alignedLines([["id", "url", "types", "on unknown", "state", "description"], ...rows]));
  });
}

/** `fencepost webhooks test`: makes a test delivery, which a running `dev` or `start` sends. */
export async function testWebhook(
  id: string,
  options: { readonly config: string; readonly wait: boolean },
): Promise<void> {
  await withProjectDatabase(options.config, async (opened) => {
    const delivery = await dispatcherOn(opened, false).sendTest(id);
    const active = (await postgresStore(opened.database).findWebhook(delivery.webhookId))?.active;
    print(
      `test delivery ${delivery.id} is queued (event id ${delivery.eventId}). A running "fencepost dev" or ` +
        `"fencepost start" sends it; see it with: fencepost trace ${delivery.id}`,
    );
    if (!active) print("The webhook is disabled: the delivery waits until it is active again.");
    else if (options.wait) await waitForOutcome(opened.database, delivery.id);
  });
}

/** Waits until the first attempt has ended. Anything but a success makes the exit code of the command 1. */
async function waitForOutcome(database: Database, id: DeliveryId): Promise<void> {
  const store = postgresStore(database);
  const deadline = performance.now() + WAIT_MS;
  for (;;) {
    const delivery = await store.findDelivery(id);
    if (delivery && delivery.attempts > 0 && delivery.state !== "sending") {
      const { state, lastStatus, lastError } = delivery;
      print(
        state === "success"
          ? `delivered: the endpoint answered ${lastStatus}.`
          : `not delivered: ${lastError}`,
      );
      if (state !== "success") process.exitCode = 1;
      return;
    }
    if (performance.now() > deadline) {
      print(
        `There is no outcome after ${WAIT_MS / 1000} s. Is "fencepost dev" or "fencepost start" running?`,
      );
      process.exitCode = 1;
      return;
    }
    await sleep(LOOK_MS);
  }
}

function dispatcherOn({ database }: OpenedDatabase, allowInsecure: boolean): Dispatcher<Queryable> {
  return createDispatcher({ store: postgresStore(database), now: () => new Date(), allowInsecure });
}
