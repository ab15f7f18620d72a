import { readdir, readFile } from "node:fs/promises";
import { describe, expect, test } from "vitest";
import { messageBody, NOW, OTHER_SECRET, SECRET, signedRequest } from "./__tests__/signedRequest.ts";
import { thrown } from "./__tests__/thrown.ts";
import { deferred } from "./deferred.ts";
import {
  BodyTooLargeError,
  createReceiver,
  InvalidOptionError,
  InvalidSecretError,
  InvalidSignatureError,
  memoryInbox,
  type ReceiverOptions,
  StaleTimestampError,
} from "./index.ts";

function receiverWith(options: Partial<ReceiverOptions<unknown>> = {}) {
  return createReceiver({ secrets: SECRET, inbox: memoryInbox({ max: 100 }), now: () => NOW, ...options });
}

describe("a receiver with a memory inbox", () => {
  test("applies an event once, however often its request is posted again", async () => {
    const receiver = receiverWith();
    const applied: string[] = [];
    const outcomes = [];
    for (const attempt of [1, 2, 3]) {
      const request = signedRequest({ timestamp: NOW.getTime() / 1_000 + attempt }); // a retry is signed anew
      const receipt = await receiver.handle(request, ({ eventId }) => applied.push(eventId));
      outcomes.push(receipt.outcome);
    }
    expect(outcomes).toEqual(["applied", "already", "already"]);
    expect(applied).toEqual(["evt_1"]);
  });

  test("applies one of eight that come at once, and answers the others when it is applied", async () => {
    const receiver = receiverWith();
    const end = deferred();
    let runs = 0;
    let answered = 0;
    const receipts = Array.from({ length: 8 }, async () => {
      const receipt = await receiver.handle(signedRequest({}), () => {
        runs++;
        return end.promise;
      });
      answered++;
      return receipt.outcome;
    });
    await new Promise((resolve) => setImmediate(resolve));
    expect([runs, answered]).toEqual([1, 0]);
    end.resolve();
    expect((await Promise.all(receipts)).sort()).toEqual([...Array(7).fill("already"), "applied"]);
    expect(runs).toBe(1);
  });

  test("forgets an event whose handler fails, so that the next attempt applies", async () => {
    const receiver = receiverWith();
    const error = new Error("no");
    const failing = receiver.handle(signedRequest({}), () => Promise.reject(error));
    expect(await thrown(() => failing)).toBe(error);
    const synchronously = receiver.handle(signedRequest({}), () => {
      throw error;
    });
    expect(await thrown(() => synchronously)).toBe(error);
    expect((await receiver.handle(signedRequest({}), () => {})).outcome).toBe("applied");
  });

  test("neither records nor applies a request that is refused", async () => {
    const receiver = receiverWith();
    let runs = 0;
    const forged = signedRequest({ secrets: [OTHER_SECRET] });
    const late = signedRequest({ timestamp: 5 });
    const refusals = [
      await thrown(() => receiver.handle(forged, () => ++runs)),
      await thrown(() => receiver.handle(late, () => ++runs)),
    ];
    expect(refusals).toEqual([expect.any(InvalidSignatureError), expect.any(StaleTimestampError)]);
    expect(runs).toBe(0);
    expect((await receiver.handle(signedRequest({}), () => ++runs)).outcome).toBe("applied");
  });
});

test("a receiver stops pruning after a million events, and says that there is more to do", async () => {
  const endless = { ...memoryInbox({ max: 1 }), prune: async (_: string, __: Date, limit: number) => limit };
  const { pruneInbox } = createReceiver({ secrets: SECRET, inbox: endless, now: () => NOW });
  expect(await pruneInbox({ olderThan: new Date(0) })).toEqual({ removed: 1_000_000, complete: false });
});

describe("the options of a receiver", () => {
  test("are a limit of 1 MiB, 300 s of tolerance and the clock of the machine, unless given", async () => {
    const receiver = createReceiver({ secrets: SECRET, inbox: memoryInbox({ max: 1 }) });
    const now = Math.floor(Date.now() / 1_000);
    expect(receiver.verify(signedRequest({ timestamp: now - 200 })).eventId).toBe("evt_1");
    expect(await thrown(() => receiver.verify(signedRequest({ timestamp: now - 301 })))).toBeInstanceOf(
      StaleTimestampError,
    );
    for (const body of ["x".repeat(1_048_577), "ü".repeat(524_289), new Uint8Array(1_048_577)]) {
      const request = { headers: {}, body };
      expect(await thrown(() => receiver.verify(request))).toBeInstanceOf(BodyTooLargeError);
    }
  });

  test("may narrow the tolerance and the size of a body, and hold several secrets", async () => {
    const strict = receiverWith({
      secrets: [OTHER_SECRET, SECRET],
      toleranceSeconds: 10,
      maxBodyBytes: 1_000,
    });
    const at = (seconds: number) => signedRequest({ timestamp: NOW.getTime() / 1_000 + seconds });
    expect(strict.verify(at(10)).eventId).toBe("evt_1");
    expect(await thrown(() => strict.verify(at(11)))).toBeInstanceOf(StaleTimestampError);
    const large = signedRequest({ body: messageBody("evt_1", "x".repeat(1_000)) });
    expect(await thrown(() => strict.verify(large))).toBeInstanceOf(BodyTooLargeError);
  });

  test.each([
    [InvalidSecretError, { secrets: "swordfish" }],
    [InvalidSecretError, { secrets: "" }],
    [InvalidSecretError, { secrets: [SECRET, ""] }],
    [InvalidOptionError, { secrets: [] }],
    [InvalidOptionError, { secrets: Array<string>(17).fill(SECRET) }],
    [InvalidOptionError, { secrets: undefined as unknown as string }],
    [InvalidOptionError, { toleranceSeconds: 0 }],
    [InvalidOptionError, { toleranceSeconds: Number.NaN }],
    [InvalidOptionError, { toleranceSeconds: Number.POSITIVE_INFINITY }],
    [InvalidOptionError, { maxBodyBytes: -1 }],
    [InvalidOptionError, { bodyTimeoutMs: 1.5 }],
    [InvalidOptionError, { consumer: "" }],
    [InvalidOptionError, { consumer: "x".repeat(257) }],
  ])("throw %o when they are made of %j", (error, options) => {
    expect(() => receiverWith(options)).toThrow(error);
  });
});

test("nothing of Node is imported at once but node:crypto, so that the package runs where Fetch runs", async () => {
  const folder = new URL("./", import.meta.url);
  const files = (await readdir(folder)).filter((name) => /(?<!\.test)\.ts$/.test(name));
  const imports = new Set<string>();
  for (const name of files) {
    const source = await readFile(new URL(name, folder), "utf8");
    for (const [, module = ""] of source.matchAll(/^(?:import|export) (?!type )[^;]*? from "([^"]+)"/gm)) {
      if (!module.startsWith("./")) imports.add(module);
    }
    expect(source).not.toMatch(/\b(?:Buffer|process)\.\w/);
  }
  expect([...imports].sort()).toEqual(["@fencepost/token", "node:crypto"]);
});
