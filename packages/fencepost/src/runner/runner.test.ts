import { setImmediate } from "node:timers/promises";
import { afterEach, describe, expect, test } from "vitest";
import { waitUntil } from "../__tests__/support/waitUntil.ts";
import { createLog } from "../observe/log.ts";
import { backoffMs, type Loop, type LoopOptions, type StepResult, startLoop } from "./runner.ts";

const LONG_MS = 600_000;
let loop: Loop | undefined;
afterEach(() => loop?.stop());

interface Line {
  readonly msg: string;
  readonly loop: string;
  readonly failures: number;
  readonly err: { readonly message: string };
}

function run(step: LoopOptions["step"], options: Partial<LoopOptions> = {}) {
  const log: Line[] = [];
  const errors: unknown[] = [];
  loop = startLoop({
    name: "deliver",
    idleMs: LONG_MS,
    log: createLog("debug", { write: (line) => log.push(JSON.parse(line) as Line) }),
    onError: (error) => errors.push(error),
    step,
    ...options,
  });
  return { loop, log, errors };
}

/** A loop whose steps give these results; what follows them is idle. */
function runSteps(results: readonly (StepResult | Error)[], options: Partial<LoopOptions> = {}) {
  let steps = 0;
  const running = run(async () => {
    const result = results[steps++] ?? "idle";
    if (result instanceof Error) throw result;
    return result;
  }, options);
  const reach = (count: number) => waitUntil(() => steps >= count, { what: `${count} steps` });
  return { ...running, reach, steps: () => steps };
}

async function turns(count = 20): Promise<void> {
  for (let i = 0; i < count; i++) await setImmediate();
}

test("steps follow each other at once while there is progress, then wait", async () => {
  const { reach, steps } = runSteps(Array(50).fill("progress"));
  await reach(51);
  await turns();
  expect(steps()).toBe(51);
});

test("an idle loop steps again when its wait is over", async () => {
  const { reach } = runSteps([], { idleMs: 5 });
  await reach(4);
});

test("a step that asks for a wait gets it", async () => {
  const { reach, steps } = runSteps([{ waitMs: 5 }, { waitMs: LONG_MS }]);
  await reach(2);
  await turns();
  expect(steps()).toBe(2);
});

describe("wake", () => {
  test("ends the wait of an idle loop, once", async () => {
    const { loop, reach, steps } = runSteps([]);
    await reach(1);
    await turns();
    loop.wake();
    await reach(2);
    await turns();
    expect(steps()).toBe(2);
  });

  test("during a step is not lost: the next one follows at once", async () => {
    let steps = 0;
    const { loop } = run(async () => {
      if (++steps < 3) loop.wake();
      return "idle";
    });
    await waitUntil(() => steps === 3, { what: "three steps" });
    await turns();
    expect(steps).toBe(3);
  });

  test("does not end a wait that a step asked for, nor the backoff after an error", async () => {
    for (const result of [{ waitMs: LONG_MS }, new Error("x")]) {
      const { loop, reach, steps } = runSteps([result]);
      await reach(1);
      await turns(2);
      loop.wake();
      await turns(2);
      expect(steps()).toBe(1);
      await loop.stop();
    }
  });
});

describe("stop", () => {
  test.each<[string, StepResult | Error]>([
    ["an idle wait", "idle"],
    ["a wait that was asked for", { waitMs: LONG_MS }],
    ["a backoff", new Error("x")],
  ])("ends %s at once, and no step follows", async (_, result) => {
    const { loop, reach, steps } = runSteps([result]);
    await reach(1);
    await turns();
    await loop.stop();
    loop.wake();
    await turns();
    expect(steps()).toBe(1);
  });

  test("tells the step that runs, and waits for it", async () => {
    let ended = false;
    const { loop } = run(
      (signal) =>
        new Promise((resolve) => {
          signal.addEventListener("abort", async () => {
            await turns();
            ended = true;
            resolve("progress");
          });
        }),
    );
    await loop.stop();
    expect(ended).toBe(true);
    await loop.stop(); // again is no error
  });

  test("logs no error of the step that it interrupts", async () => {
    const { loop, log, errors } = run(
      (signal) =>
        new Promise((_, reject) => {
          signal.addEventListener("abort", () => reject(signal.reason));
        }),
    );
    await loop.stop();
    expect([log, errors]).toEqual([[], []]);
  });
});

describe("errors", () => {
  test("are reported and logged once each, and counted until a step succeeds", async () => {
    const [a, b, c] = [new Error("a"), new Error("b"), new Error("c")];
    const { reach, log, errors } = runSteps([a, b, "progress", c]);
    await reach(5);
    expect(errors).toEqual([a, b, c]);
    expect(log.map(({ msg, loop, failures, err }) => [msg, loop, failures, err.message])).toEqual([
      ["step failed", "deliver", 1, "a"],
      ["step failed", "deliver", 2, "b"],
      ["step failed", "deliver", 1, "c"],
    ]);
  });

  test("are followed by waits that double from 100 ms to 10 s, half of each by chance", () => {
    const longest = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1_000_000].map((failures) => backoffMs(failures, 1));
    expect(longest).toEqual([100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000]);
    expect(backoffMs(3, 0)).toBe(200);
    expect(backoffMs(3, 0.5)).toBe(300);
    expect(backoffMs(1_000_000, 0)).toBe(5_000);
  });
});
