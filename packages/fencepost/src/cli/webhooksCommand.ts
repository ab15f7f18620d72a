import { setTimeout as sleep } from "node:timers/promises";
import type { Config } from "../config/config.ts";
import type { Dispatcher } from "../dispatcher.ts";
import type { Missed, Ordering, Webhook } from "../store/webhook.ts";
import { alignedLines } from "./alignedLines.ts";
import { NothingToChangeError } from "./errors.ts";
import { print, printJson } from "./print.ts";
import { type SettingOptions, settingsOf } from "./webhookOptions.ts";
import { withDispatcher } from "./withDispatcher.ts";

/** How long `webhooks test --wait` waits for the first outcome, and how often it looks, in milliseconds. */
const WAIT_MS = 60_000;
const LOOK_MS = 100;
/** Webhooks of one page, and pages that are listed at the most. */
const PAGE = 100;
const MAX_PAGES = 100;

interface ConfigOption {
  readonly config: string;
}

export interface AddOptions extends ConfigOption, SettingOptions {
  readonly types: readonly string[];
  readonly ordering: Ordering;
  readonly allowInsecure: boolean;
}

/** `fencepost webhooks add`: prints the signing secret, this once. */
export async function addWebhook(url: string, options: AddOptions): Promise<void> {
  const { types, ordering } = options;
  await withDispatcher(options, async ({ dispatcher, config }) => {
    const webhook = await dispatcher.addWebhook({ ...settingsOf(options), url, types, ordering });
    print(
      `id:     ${webhook.id}`,
      `url:    ${webhook.url}`,
      `types:  ${webhook.types.join(", ")}`,
      `secret: ${webhook.secrets.map(({ secret }) => secret).join(", ")}`,
      "Store the secret at the receiver now: it is not shown again.",
      ...unknownTypeNotes(types, config),
    );
  });
}

/** Types of our own that no projection declares: perhaps they are misspelt. */
function unknownTypeNotes(types: readonly string[], { projections }: Config): readonly string[] {
  const declared = projections.flatMap(({ messages }) => Object.keys(messages));
  const unknown = types.filter(
    (type) => type !== "*" && !type.startsWith("webhook.") && !declared.includes(type),
  );
  if (unknown.length === 0) return [];
  return [`Note: no projection declares ${unknown.join(", ")}. Declared: ${declared.join(", ") || "none"}.`];
}

/** `fencepost webhooks list`: never shows a secret. */
export async function listWebhooks(options: ConfigOption & { readonly json: boolean }): Promise<void> {
  const webhooks = await withDispatcher(options, ({ dispatcher }) => allWebhooks(dispatcher));
  if (options.json) {
    printJson({ webhooks: webhooks.map(withoutSecrets) });
  } else if (webhooks.length === 0) {
    print('There are no webhooks. Add one: fencepost webhooks add <url> --types "*"');
  } else {
    const rows = webhooks.map(({ id, url, types, onUnknown, active, disabledReason, description }) => [
      id,
      url,
      types.join(","),
      onUnknown,
      active ? "active" : `disabled: ${disabledReason ?? "by hand"}`,
      description,
    ]);
    print(...alignedLines([["id", "url", "types", "on unknown", "state", "description"], ...rows]));
  }
}

async function allWebhooks(dispatcher: Dispatcher<never>): Promise<readonly Webhook[]> {
  const webhooks: Webhook[] = [];
  for (let page = 0; page < MAX_PAGES; page++) {
    const last = webhooks.at(-1)?.id;
    const next = await dispatcher.listWebhooks({ limit: PAGE, ...(last !== undefined && { after: last }) });
    webhooks.push(...next);
    if (next.length < PAGE) break;
  }
  return webhooks;
}

/** The values of headers are often secrets too. */
function withoutSecrets({ secrets: _, headers, ...webhook }: Webhook): object {
  return { ...webhook, headerNames: Object.keys(headers) };
}

/** `fencepost webhooks update`: what is named is changed, for the retries of older deliveries too. */
export async function updateWebhook(
  id: string,
  options: ConfigOption & SettingOptions & { readonly allowInsecure: boolean },
): Promise<void> {
  const changes = settingsOf(options);
  if (Object.keys(changes).length === 0) throw new NothingToChangeError();
  await withDispatcher(options, async ({ dispatcher }) => {
    await dispatcher.updateWebhook(id, changes);
    print(`${id} has changed: ${Object.keys(changes).join(", ")}.`);
  });
}

/** `fencepost webhooks pause`: what is pending waits. */
export async function pauseWebhook(
  id: string,
  options: ConfigOption & { readonly reason?: string },
): Promise<void> {
  await withDispatcher(options, async ({ dispatcher }) => {
    const { disabledReason } = await dispatcher.pauseWebhook(id, options.reason);
    print(`${id} is paused (${disabledReason}). What is pending waits until it is activated.`);
  });
}

/** `fencepost webhooks activate`: tells what was missed, and sends it only when told to. */
export async function activateWebhook(
  id: string,
  options: ConfigOption & { readonly missed: Missed },
): Promise<void> {
  await withDispatcher(options, async ({ dispatcher }) => {
    const { missed } = await dispatcher.activateWebhook(id, options.missed);
    const what = options.missed === "deliver" ? "are delivered now" : "are not delivered";
    print(
      `${id} is active. Messages that it missed, which ${what}: ${missed === 10_000 ? "10,000 or more" : missed}.`,
    );
  });
}

/** `fencepost webhooks delete`. */
export async function deleteWebhook(id: string, options: ConfigOption): Promise<void> {
  await withDispatcher(options, async ({ dispatcher }) => {
    await dispatcher.deleteWebhook(id);
    print(`${id} is deleted. A running "fencepost dev" or "fencepost start" fails what was pending.`);
  });
}

/** `fencepost webhooks rotate-secret`: prints the new one, this once. */
export async function rotateSecret(
  id: string,
  options: ConfigOption & { readonly overlapHours: number },
): Promise<void> {
  await withDispatcher(options, async ({ dispatcher }) => {
    const { secrets } = await dispatcher.rotateSecret(id, { overlapMs: options.overlapHours * 3_600_000 });
    print(
      `secret: ${secrets[0]?.secret}`,
      `It signs from now on, and the ones before it for ${options.overlapHours} hours more. It is not shown again.`,
    );
  });
}

/** `fencepost webhooks replay`: makes the deliveries of a time that are missing, and no others. */
export async function replayWebhook(
  id: string,
  options: ConfigOption & { readonly from: Date; readonly to: Date },
): Promise<void> {
  const { from, to } = options;
  await withDispatcher(options, async ({ dispatcher }) => {
    let next: string | null = null;
    do {
      const report: Awaited<ReturnType<typeof dispatcher.replay>> = await dispatcher.replay(id, {
        from,
        to,
        ...(next !== null && { after: next }),
      });
      const { created, existing, forgotten, bodiless } = report;
      print(`made ${created} deliveries; ${existing} were there already`);
      if (forgotten.length > 0)
        print(`not sent, older than the records of this webhook: ${forgotten.join(", ")}`);
      if (bodiless.length > 0) print(`not sent, their bodies were pruned: ${bodiless.join(", ")}`);
      next = report.next;
    } while (next !== null);
  });
}

/** `fencepost webhooks test`: makes a test delivery, which a running `dev` or `start` sends. */
export async function testWebhook(
  id: string,
  options: ConfigOption & { readonly wait: boolean },
): Promise<void> {
  await withDispatcher(options, async ({ dispatcher }) => {
    const delivery = await dispatcher.sendTest(id);
    print(
      `test delivery ${delivery.id} is queued (event id ${delivery.eventId}). A running "fencepost dev" or ` +
        `"fencepost start" sends it; see it with: fencepost trace ${delivery.id}`,
    );
    if (options.wait) await waitForOutcome(dispatcher, delivery.id);
  });
}

/** Waits until the first attempt has ended. Anything but a success makes the exit code of the command 1. */
async function waitForOutcome(dispatcher: Dispatcher<never>, id: string): Promise<void> {
  const deadline = performance.now() + WAIT_MS;
  for (;;) {
    const { attempts, state, lastStatus, lastError } = await dispatcher.getDelivery(id);
    if (attempts > 0 && state !== "sending") {
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
