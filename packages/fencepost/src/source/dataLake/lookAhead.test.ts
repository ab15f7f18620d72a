import { expect, test } from "vitest";
import { never } from "../../__tests__/support/windows.ts";
import { openLookAhead } from "./lookAhead.ts";

/** A look-ahead over numbers whose items are given, or refused, by hand. */
function byHand(limits: { items: number; bytes?: number }) {
  const begun: number[] = [];
  const ended: number[] = [];
  const answers = new Map<number, { give: (item: string | null) => void; refuse: (error: Error) => void }>();
  const lookAhead = openLookAhead<string>({
    fetch: (index, signal) => {
      begun.push(index);
      signal.addEventListener("abort", () => ended.push(index));
      return new Promise((resolve, reject) => answers.set(index, { give: resolve, refuse: reject }));
    },
    sizeOf: (item) => item.length,
    bytes: 1_000,
    ...limits,
  });
  const give = (index: number, item: string | null = `item ${index}`) => answers.get(index)!.give(item);
  return {
    lookAhead,
    begun,
    ended,
    give,
    refuse: (i: number, error: Error) => answers.get(i)!.refuse(error),
  };
}

test("fetches as many as it may while the first is used, in order, up to the last", async () => {
  const { lookAhead, begun, give } = byHand({ items: 3 });
  const first = lookAhead.take(10, 14, never);
  give(10);
  expect(await first).toBe("item 10");
  expect(begun).toEqual([10]); // nothing is known yet of how large they are
  const second = lookAhead.take(11, 14, never);
  expect(begun).toEqual([10, 11, 12, 13]);
  give(13);
  give(12);
  give(11);
  expect(await second).toBe("item 11");
  expect(await lookAhead.take(12, 14, never)).toBe("item 12");
  expect(await lookAhead.take(13, 14, never)).toBe("item 13");
  expect(begun).toEqual([10, 11, 12, 13, 14]);
});

test("keeps no more bytes than it may, taking those on their way for as large as the largest", async () => {
  const { lookAhead, begun, give } = byHand({ items: 10, bytes: 250 });
  const first = lookAhead.take(0, 99, never);
  give(0, "x".repeat(100));
  await first;
  const second = lookAhead.take(1, 99, never);
  expect(begun).toEqual([0, 1, 2]);
  give(1, "x".repeat(100));
  await second;
  const third = lookAhead.take(2, 99, never);
  expect(begun).toEqual([0, 1, 2, 3]);
  give(2, "x".repeat(300)); // more than all of it: still given, alone
  await third;
  const fourth = lookAhead.take(3, 99, never);
  expect(begun).toEqual([0, 1, 2, 3]);
  give(3);
  await fourth;
});

test("what failed, or was not there, when it was fetched early is fetched anew when it is asked for", async () => {
  const { lookAhead, begun, give, refuse } = byHand({ items: 3 });
  const first = lookAhead.take(1, 9, never);
  give(1);
  await first;
  const second = lookAhead.take(2, 9, never);
  refuse(3, new Error("away"));
  give(4, null);
  give(2);
  await second;
  for (const index of [3, 4]) {
    const before = begun.length;
    const taken = lookAhead.take(index, index, never);
    await expect.poll(() => begun.length).toBe(before + 1);
    give(index, `later ${index}`);
    expect(await taken).toBe(`later ${index}`);
  }
});

test("what fails when it is asked for throws, and is fetched anew the next time", async () => {
  const { lookAhead, give, refuse } = byHand({ items: 3 });
  const first = lookAhead.take(1, 1, never);
  refuse(1, new Error("away"));
  await expect(first).rejects.toThrow("away");
  const again = lookAhead.take(1, 1, never);
  give(1, null);
  expect(await again).toBeNull();
});

test("several readers share the room, and what one has left behind makes room after a while", async () => {
  const { lookAhead, begun, ended, give } = byHand({ items: 4 });
  const take = async (index: number, last: number) => {
    const taken = lookAhead.take(index, last, never);
    give(index);
    return taken;
  };
  await take(1, 9);
  await take(2, 9);
  expect(begun).toEqual([1, 2, 3, 4, 5]);
  await take(100, 100);
  await take(200, 209);
  expect(await take(3, 9)).toBe("item 3");
  expect([begun.slice(5), ended]).toEqual([[100, 200, 6], []]);
  for (let index = 201; index < 218; index++) await take(index, 300);
  expect(ended).toEqual([4, 5, 6]);
  await take(218, 300);
  expect(begun.slice(-3)).toEqual([219, 220, 221]);
});

test("an abort ends what is on its way, and is thrown", async () => {
  const { lookAhead, ended, give, refuse } = byHand({ items: 3 });
  const first = lookAhead.take(1, 9, never);
  give(1);
  await first;
  const stop = new AbortController();
  const second = lookAhead.take(2, 9, stop.signal);
  stop.abort(new Error("stopped"));
  expect(ended).toEqual([2, 3, 4]);
  refuse(2, new Error("aborted"));
  await expect(second).rejects.toThrow("stopped");
});
