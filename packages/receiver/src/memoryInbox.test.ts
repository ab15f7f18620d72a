import { setImmediate as nextTurn } from "node:timers/promises";
import type { EventId } from "@fencepost/token";
import { describe, expect, test } from "vitest";
import { inboxConformance } from "./__tests__/inboxConformance.ts";
import { entry } from "./__tests__/inboxUnderTest.ts";
import { NOW } from "./__tests__/signedRequest.ts";
import { thrown } from "./__tests__/thrown.ts";
import { InboxFullError, InvalidOptionError, memoryInbox } from "./index.ts";

describe("a memory inbox", () => {
  inboxConformance({
    create: async (options) => memoryInbox({ max: 1_000, ...options }),
    untilWaiting: async () => nextTurn(), // nothing but promises keeps a duplicate from where it waits
    transactional: false,
  });

  const handle = (inbox: ReturnType<typeof memoryInbox>, id: string) =>
    inbox.transaction((tx) => inbox.record(tx, entry(id), async ({ state }) => state));

  test("forgets the oldest event when it is full", async () => {
    const inbox = memoryInbox({ max: 2 });
    for (const id of ["evt_1", "evt_2", "evt_3"]) expect(await handle(inbox, id)).toBe("absent");
    expect(await handle(inbox, "evt_3")).toBe("present");
    expect(await handle(inbox, "evt_2")).toBe("present");
    expect(await handle(inbox, "evt_1")).toBe("absent");
    expect(await handle(inbox, "evt_2")).toBe("absent");
  });

  test("refuses a new event by name while as many are being handled as it may hold", async () => {
    const inbox = memoryInbox({ max: 1 });
    await inbox.transaction((tx) =>
      inbox.record(tx, entry("evt_1"), async () => {
        const error = await thrown(() => handle(inbox, "evt_2"));
        expect(error).toBeInstanceOf(InboxFullError);
        expect(error).toMatchObject({ eventId: "evt_2" });
      }),
    );
    expect(await handle(inbox, "evt_1")).toBe("present");
    expect(await handle(inbox, "evt_2")).toBe("absent");
  });

  test("knows nothing from before its start, nor of attempts as old as one that it has forgotten", async () => {
    const inbox = memoryInbox({ max: 1, now: () => NOW });
    const ask = () => inbox.ask({ consumer: "default", events: [], now: NOW, toleranceSeconds: 300 });
    const start = Math.ceil(NOW.getTime() / 1_000);
    expect((await ask()).retainedSince).toEqual(new Date((start + 300) * 1_000));
    const late = { ...entry("evt_1"), attemptTimestamp: start + 900 };
    await inbox.transaction((tx) => inbox.record(tx, late, async () => {}));
    expect((await ask()).retainedSince).toEqual(new Date((start + 300) * 1_000));
    await handle(inbox, "evt_2");
    expect((await ask()).retainedSince).toEqual(new Date((start + 901) * 1_000));
  });

  test("refuses to fence off more events than it may hold, and forgets no fence for another", async () => {
    const inbox = memoryInbox({ max: 2 });
    const ask = (id: string) => {
      const events = [{ eventId: id as EventId, before: 5 }];
      return inbox.ask({ consumer: "default", events, now: NOW, toleranceSeconds: 300 });
    };
    for (const id of ["evt_1", "evt_2", "evt_2"]) await ask(id);
    const error = await thrown(() => ask("evt_3"));
    expect(error).toBeInstanceOf(InboxFullError);
    expect(error).toMatchObject({ eventId: "evt_3" });
    const found = await inbox.transaction((tx) => inbox.record(tx, entry("evt_1"), async (it) => it));
    expect(found).toEqual({ state: "absent", fencedBefore: 5 });
  });

  test.each([0, -1, 1.5, Number.NaN, "9"])("has no size of %j", (max) => {
    expect(() => memoryInbox({ max: max as number })).toThrow(InvalidOptionError);
  });
});
