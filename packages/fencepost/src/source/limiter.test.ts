import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { never, noWait } from "../__tests__/support/windows.ts";
import { createLimiter } from "./limiter.ts";

/** Calls that end when they are told to. */
function calls() {
  const open: (() => void)[] = [];
  let most = 0;
  let underWay = 0;
  return {
    most: () => most,
    underWay: () => underWay,
    async work(): Promise<void> {
      underWay++;
      most = Math.max(most, underWay);
      await new Promise<void>((resolve) => open.push(resolve));
      underWay--;
    },
    async endOne(): Promise<void> {
      open.shift()?.();
      await sleep(0);
    },
  };
}

const clock = () => {
  const waits: number[] = [];
  let time = 0;
  return {
    waits,
    now: () => time,
    async wait(ms: number): Promise<void> {
      waits.push(ms);
      time += ms;
    },
  };
};

test("no more calls are under way than are allowed, and each begins in its turn", async () => {
  const limiter = createLimiter({ maxInFlight: 3 }, clock());
  const { work, most, underWay, endOne } = calls();
  const order: number[] = [];
  const all = Array.from({ length: 8 }, (_, i) =>
    limiter.run(async () => {
      order.push(i);
      await work();
    }, never),
  );
  await sleep(0);
  expect(underWay()).toBe(3);
  for (let i = 0; i < 8; i++) await endOne();
  await Promise.all(all);
  expect(most()).toBe(3);
  expect(order).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
});

test("calls begin no faster than so many in a second", async () => {
  const time = clock();
  const limiter = createLimiter({ maxInFlight: 10, requestsPerSecond: 4 }, time);
  for (let i = 0; i < 4; i++) await limiter.run(async () => {}, never);
  expect(time.waits).toEqual([250, 250, 250]);
});

test("a provider that is busy is asked half as much, down to one call, and more again as calls succeed", async () => {
  const limiter = createLimiter({ maxInFlight: 4 }, { now: () => 0, wait: noWait });
  const mostAtOnce = async (): Promise<number> => {
    const { work, most, underWay, endOne } = calls();
    const all = Array.from({ length: 6 }, () => limiter.run(work, never));
    await sleep(0);
    for (let i = 0; i < 6; i++) {
      if (underWay() > 0) await endOne();
    }
    await Promise.all(all);
    return most();
  };
  expect(await mostAtOnce()).toBe(4);
  limiter.slower();
  expect(await mostAtOnce()).toBe(2);
  for (let i = 0; i < 5; i++) limiter.slower();
  expect(await mostAtOnce()).toBe(1);
  for (let i = 0; i < 100; i++) await limiter.run(async () => {}, never);
  expect(await mostAtOnce()).toBe(4);
});

test("one that waits gives up when it is told to, and takes nobody's turn with it", async () => {
  const limiter = createLimiter({ maxInFlight: 1 }, clock());
  const { work, endOne } = calls();
  const first = limiter.run(work, never);
  const stop = new AbortController();
  const second = expect(limiter.run(work, stop.signal)).rejects.toThrow("enough");
  const third = limiter.run(async () => "third", never);
  await sleep(0);
  stop.abort(new Error("enough"));
  await second;
  await endOne();
  await first;
  expect(await third).toBe("third");
});

test("a call that fails gives its place back", async () => {
  const limiter = createLimiter({ maxInFlight: 1 }, clock());
  await expect(limiter.run(() => Promise.reject(new Error("no")), never)).rejects.toThrow("no");
  expect(await limiter.run(async () => "yes", never)).toBe("yes");
});
