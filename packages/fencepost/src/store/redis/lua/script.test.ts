import { Redis } from "ioredis";
import { afterAll, beforeAll, describe, expect, it, test } from "vitest";
import { hasRedis, startRedis } from "../../../__tests__/support/redisServer.ts";
import { waitUntil } from "../../../__tests__/support/waitUntil.ts";
import { messageOf } from "../../conformance/conformingStore.ts";
import {
  DELIVERED,
  EVERYTHING,
  ended,
  LEASE_MS,
  REFUSED,
  webhookOf,
} from "../../conformance/deliverySteps.ts";
import { redisStore } from "../redisStore.ts";
import { script } from "./script.ts";

describe("a script", () => {
  test.each([
    ["names itself", `return call("HLEN", QUEUE)`, ["queue"]],
    ["a helper of it names", `return members(STRICT, "a", 1)`, ["strict"]],
    ["a helper of a helper names", `if is_active(webhook("a")) then return 1 end`, ["webhooks"]],
    [
      "names beside others",
      `return { call("HLEN", CONTENTS), keep_webhook("a", {}) }`,
      ["webhooks", "contents"],
    ],
  ])("declares the keys that it %s, and no other", (_what, lines, keys) => {
    expect(script(lines).keys).toEqual(keys);
  });

  it("declares nothing for what stands in a comment, in a text or as a field", () => {
    const { keys, source } = script(
      `local d = { QUEUE } -- webhook(id), HELD\nreturn "STRICT unblock" .. d.webhook`,
    );
    expect(keys).toEqual(["queue"]);
    expect(source).not.toContain("local function");
  });
});

describe.skipIf(!hasRedis)("the scripts of a store", () => {
  let server: Awaited<ReturnType<typeof startRedis>>;
  let client: Redis;
  beforeAll(async () => {
    server = await startRedis();
    client = new Redis(server.url);
  });
  afterAll(async () => {
    client.disconnect();
    await server.stop();
  });

  it("touch only keys that they declare, whatever the store does", async () => {
    const monitor = await client.monitor();
    const undeclared: string[] = [];
    let declared: readonly string[] = [];
    let scripts = 0;
    let commands = 0;
    let isOver = false;
    monitor.on("monitor", (_time: string, [name, ...args]: string[], source: string) => {
      if (name === "echo") isOver = true;
      if (source === "lua") {
        commands++;
        // Each names its key first, if it has one.
        if (name !== "TIME" && !declared.includes(args[0] ?? "")) undeclared.push(`${name} ${args[0]}`);
      } else if (/^eval(sha)?$/i.test(name ?? "")) {
        scripts++;
        declared = args.slice(2, 2 + Number(args[1]));
      }
    });

    const store = redisStore(client);
    const strict = await store.addWebhook(
      webhookOf("wh_strict", { ordering: "strict", filter: { order: 1 } }),
    );
    const limited = await store.addWebhook(webhookOf("wh_limited", { ratePerSecond: 100, maxInFlight: 10 }));
    for (let i = 0; i < 4; i++) await store.dispatch(messageOf(`order:${i}`), {});
    for (const result of [DELIVERED, REFUSED]) {
      for (const { id, fence } of await store.claim(EVERYTHING)) {
        const [recorded] = await store.recordAttempts(fence, [id], LEASE_MS);
        await store.extend(fence, [id], LEASE_MS);
        await store.review(fence, [id]);
        await store.finish(fence, [ended(recorded!, result)]);
        await store.finish(fence, [ended(recorded!, result)]);
        await store.settle(fence, [{ id, next: { state: "success" }, error: null }]);
      }
    }
    const [held] = await store.claim(EVERYTHING);
    if (held) await store.release(held.fence, [held.id]);
    for (const { id } of await store.listDeliveries(strict.id, {}, { limit: 10 })) {
      await store.listAttempts(id);
      await store.redeliver(id);
      await store.claim({ ...EVERYTHING, only: id });
      await store.resolve(id, "skip");
    }
    await store.updateWebhook(limited.id, { types: ["order.sent"], description: "a" });
    await store.rotateSecret(limited.id, "whsec_b", 1);
    await store.deactivateWebhook(limited.id, "Paused.");
    await store.activateWebhook(limited.id, "deliver");
    await store.replay(limited.id, { from: new Date(0), to: new Date(9e12), limit: 10 });
    await store.deliveriesOf(messageOf("order:1").eventId);
    await store.listUntold();
    await store.markTold({ id: limited.id, reason: "", disabledAt: new Date() });
    await store.deleteWebhook(strict.id);
    await store.endDeleted(10);
    await store.prune({ before: new Date(9e12), limit: 100 });
    await store.listWebhooks({ limit: 10 });
    await client.echo("the end");
    await waitUntil(() => isOver, { what: "everything was seen" });
    monitor.disconnect();
    expect(undeclared).toEqual([]);
    expect([scripts > 100, commands > 500]).toEqual([true, true]);
  });
});
