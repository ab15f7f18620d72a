import { generateKeyPairSync, type KeyObject, sign } from "node:crypto";
import fc from "fast-check";
import { Webhook } from "standardwebhooks";
import { describe, expect, test } from "vitest";
import {
  ATTEMPT_TIME,
  messageBody,
  NOW,
  OTHER_SECRET,
  SECRET,
  type SignedRequest,
  signedRequest,
} from "./__tests__/signedRequest.ts";
import { thrown } from "./__tests__/thrown.ts";
import {
  BodyAlreadyReadError,
  EventIdMismatchError,
  InvalidSecretError,
  InvalidSignatureError,
  MalformedBodyError,
  MalformedHeaderError,
  MissingHeaderError,
  StaleTimestampError,
  verifyWebhook,
  WebhookRefusedError,
  type WebhookRequest,
} from "./index.ts";

function verify(request: WebhookRequest, more: { secrets?: string | string[]; now?: Date } = {}) {
  return verifyWebhook({ secrets: SECRET, now: NOW, ...request, ...more });
}

/** The request with some headers replaced, or left out where undefined. */
function withHeaders(headers: Record<string, string | string[] | undefined>, request = signedRequest({})) {
  return { ...request, headers: { ...request.headers, ...headers } };
}

describe("a verified webhook", () => {
  test("says everything that was sent", () => {
    const request = signedRequest({ id: "evt_123" });
    expect(verify(request)).toEqual({
      eventId: "evt_123",
      type: "pool.assets_locked",
      fencingToken: "testnet-20251217-0063092990-0000027-0006-0000000002",
      timestamp: new Date("2026-06-19T00:21:26Z"),
      attemptTimestamp: ATTEMPT_TIME,
      attempt: 1,
      data: { amount: "170141183460469231731687303715884105727" },
      source: { network: "testnet", contractId: "CABC", ledger: 63_092_990, txHash: "ab".repeat(32) },
      raw: request.body,
    });
  });

  test("of another sender of Standard Webhooks needs a type, a timestamp and data only", () => {
    const body = JSON.stringify({ type: "a.b", timestamp: "2026-06-19T00:21:26.123456Z", data: 1 });
    const { headers } = signedRequest({ id: "msg_1", body });
    expect(verify({ headers: { ...headers, "webhook-attempt": "x" }, body })).toEqual({
      eventId: "msg_1",
      type: "a.b",
      timestamp: new Date("2026-06-19T00:21:26.123Z"),
      attemptTimestamp: ATTEMPT_TIME,
      data: 1,
      raw: new TextEncoder().encode(body),
    });
  });

  test("leaves out what it does not know of a source instead of refusing it", () => {
    const body = JSON.stringify({ ...JSON.parse(messageBody("evt_1")), source: { network: 5, ledger: 7 } });
    expect(verify(signedRequest({ body })).source).toEqual({ ledger: 7 });
  });

  test("keeps any data of JSON as it was", () => {
    fc.assert(
      fc.property(fc.jsonValue(), (data) => {
        const body = messageBody("evt_1", data);
        expect(verify(signedRequest({ body })).data).toEqual(JSON.parse(body).data);
      }),
    );
  });

  test("has headers in any case, in a Headers object, as arrays, or as node lists them", () => {
    const { headers, body } = signedRequest({ secrets: [OTHER_SECRET, SECRET] });
    const upper = Object.fromEntries(Object.entries(headers).map(([k, v]) => [k.toUpperCase(), v]));
    const [first = "", second = ""] = (headers["webhook-signature"] ?? "").split(" ");
    for (const form of [
      headers,
      upper,
      new Headers(headers),
      { ...headers, "webhook-id": ["evt_1"], "webhook-signature": [first, second] },
      { ...headers, "webhook-signature": `${first}, ${second}` },
      { ...headers, "webhook-signature": `${second}, ${first}` },
      { ...headers, "Webhook-Id": "evt_1", cookie: undefined },
    ]) {
      expect(verify({ headers: form, body }).eventId).toBe("evt_1");
    }
  });

  test("may have its body as text", () => {
    const { headers, body } = signedRequest({ body: messageBody("evt_1", "grüße 🌍") });
    expect(verify({ headers, body: body.toString() }).data).toBe("grüße 🌍");
  });
});

describe("a signature", () => {
  // The body of the spec's vector is no message, so it is refused for that, after its signature was accepted.
  const vector: SignedRequest = {
    headers: {
      "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
      "webhook-timestamp": "1614265330",
      "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    },
    body: Buffer.from('{"test": 2432232314}'),
  };
  const vectorTime = new Date(1_614_265_330_000);

  test("of the published v1 vector is right", async () => {
    expect(await thrown(() => verify(vector, { now: vectorTime }))).toBeInstanceOf(MalformedBodyError);
    const changed = { ...vector, body: Buffer.from('{"test": 2432232315}') };
    expect(await thrown(() => verify(changed, { now: vectorTime }))).toBeInstanceOf(InvalidSignatureError);
  });

  test("of the published v1a vector is right, alone and beside others", async () => {
    const v1 = vector.headers["webhook-signature"]!;
    const v1a =
      "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==";
    const key = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=";
    // Accepted, and then refused for its body.
    const accepts = async (signature: string, secrets: string[], body = vector.body) => {
      const request = { ...withHeaders({ "webhook-signature": signature }, vector), body };
      const error = await thrown(() => verify(request, { secrets, now: vectorTime }));
      if (!(error instanceof InvalidSignatureError)) expect(error).toBeInstanceOf(MalformedBodyError);
      return error instanceof MalformedBodyError;
    };
    const fake = `v1a,${"A".repeat(85)}A==`;
    expect(await accepts(v1a, [key])).toBe(true);
    expect(await accepts(`${v1} ${v1a}`, [key])).toBe(true);
    expect(await accepts(`v1,AAAA ${fake} ${v1a}`, [OTHER_SECRET, key])).toBe(true);
    expect(await accepts(`${v1} ${fake}`, [SECRET, key])).toBe(true);
    expect(await accepts(v1a, [OTHER_SECRET])).toBe(false);
    expect(await accepts(v1, [key])).toBe(false);
    expect(await accepts(fake, [key])).toBe(false);
    expect(await accepts(v1a, [key], Buffer.from('{"test": 2432232315}'))).toBe(false);
    expect(await accepts(v1a.replace("v1a,", "v1,"), [key])).toBe(false);
    expect(await accepts(v1a.replace("Ag==", "Ah=="), [key])).toBe(false); // the same bytes in another spelling
    expect(await accepts(v1a.slice(0, -4), [key])).toBe(false);
    expect(await accepts(`${`${fake} `.repeat(7)}${v1a}`, [key])).toBe(true);
    expect(await accepts(`${`${fake} `.repeat(8)}${v1a}`, [key])).toBe(false); // no more than eight are tried
  });

  test("by any ed25519 key is accepted by its public key, and by no other, over any bytes", async () => {
    const [mine, other] = [0, 1].map(() => generateKeyPairSync("ed25519"));
    const publicKey = ({ publicKey }: { publicKey: KeyObject }) =>
      `whpk_${publicKey.export({ format: "der", type: "spki" }).subarray(-32).toString("base64")}`;
    await fc.assert(
      fc.asyncProperty(fc.jsonValue(), async (data) => {
        const request = signedRequest({ body: messageBody("evt_1", data), secrets: [] });
        const content = Buffer.concat([Buffer.from(`evt_1.${ATTEMPT_TIME}.`), request.body]);
        const signature = `v1a,${sign(null, content, mine!.privateKey).toString("base64")}`;
        const signed = withHeaders({ "webhook-signature": signature }, request);
        expect(verify(signed, { secrets: [publicKey(other!), publicKey(mine!)] }).eventId).toBe("evt_1");
        const error = await thrown(() => verify(signed, { secrets: publicKey(other!) }));
        expect(error).toBeInstanceOf(InvalidSignatureError);
      }),
      { numRuns: 30 },
    );
  });

  test("made by the npm package standardwebhooks is accepted, and one made as we sign is accepted by it", () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.stringMatching(/^[A-Za-z0-9_:~-]{1,256}$/), (data, id) => {
        const body = messageBody(id, data);
        const theirs = new Webhook(SECRET);
        const headers = {
          "webhook-id": id,
          "webhook-timestamp": String(ATTEMPT_TIME),
          "webhook-signature": theirs.sign(id, NOW, body),
        };
        expect(verify({ headers, body: Buffer.from(body) }).eventId).toBe(id);

        // Their package reads the clock of the machine.
        const timestamp = Math.floor(Date.now() / 1_000);
        const ours = signedRequest({ id, body, timestamp, secrets: [OTHER_SECRET, SECRET] });
        expect(theirs.verify(ours.body, ours.headers)).toEqual(JSON.parse(body));
      }),
    );
  });

  test("is over the bytes, whatever they are, and is checked before they are read", async () => {
    await fc.assert(
      fc.asyncProperty(fc.uint8Array({ maxLength: 500 }), async (body) => {
        const request = signedRequest({ body });
        expect(await thrown(() => verify(request))).toBeInstanceOf(MalformedBodyError);
        const unsigned = withHeaders({ "webhook-signature": "v1,AAAA" }, request);
        expect(await thrown(() => verify(unsigned))).toBeInstanceOf(InvalidSignatureError);
      }),
    );
  });

  test("does not survive one changed bit anywhere", async () => {
    const parts = ["webhook-id", "webhook-timestamp", "webhook-signature", "body"] as const;
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(...parts), fc.nat(), fc.nat({ max: 7 }), async (part, at, bit) => {
        const request = signedRequest({ id: "evt_123" });
        const bytes = part === "body" ? request.body : Buffer.from(request.headers[part]!, "latin1");
        bytes[at % bytes.length]! ^= 1 << bit;
        const tampered =
          part === "body" ? request : withHeaders({ [part]: bytes.toString("latin1") }, request);
        expect(await thrown(() => verify(tampered))).toBeInstanceOf(WebhookRefusedError);
      }),
      { numRuns: 2_000 },
    );
  });

  test("does not survive a byte more or less, or an id that takes bytes from the timestamp", async () => {
    const request = signedRequest({});
    for (const body of [request.body.subarray(1), Buffer.concat([request.body, Buffer.from(" ")])]) {
      expect(await thrown(() => verify({ ...request, body }))).toBeInstanceOf(InvalidSignatureError);
    }
    const shifted = withHeaders({ "webhook-id": `evt_1.${ATTEMPT_TIME}`, "webhook-timestamp": "1" });
    expect(await thrown(() => verify(shifted))).toBeInstanceOf(MalformedHeaderError);
  });

  test("has one spelling: base64 that decodes to the same bytes is refused", async () => {
    const { headers } = signedRequest({});
    const signature = headers["webhook-signature"]!;
    const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const last = signature.at(-2)!;
    const other = `${signature.slice(0, -2)}${letters[letters.indexOf(last) + 1]}=`;
    expect(Buffer.from(other.slice(3), "base64")).toEqual(Buffer.from(signature.slice(3), "base64"));
    expect(await thrown(() => verify(withHeaders({ "webhook-signature": other })))).toBeInstanceOf(
      InvalidSignatureError,
    );
  });

  test("may stand among others, of versions that are not known", async () => {
    const { headers } = signedRequest({});
    const good = headers["webhook-signature"]!;
    const among = `v1a,${"A".repeat(86)}== v2,x  v1,wrong ${good} v1`;
    expect(verify(withHeaders({ "webhook-signature": among })).eventId).toBe("evt_1");
    for (const bad of [good.replace("v1,", "v2,"), good.replace("v1,", "v1a,"), good.slice(3), "v1,", "v1"]) {
      const error = await thrown(() => verify(withHeaders({ "webhook-signature": bad })));
      expect(error).toBeInstanceOf(InvalidSignatureError);
    }
  });

  test("by any live secret is enough while a secret is rotated", async () => {
    const byOld = signedRequest({ secrets: [SECRET] });
    const byBoth = signedRequest({ secrets: [OTHER_SECRET, SECRET] });
    for (const secrets of [[OTHER_SECRET, SECRET], [SECRET]]) {
      expect(verify(byOld, { secrets }).eventId).toBe("evt_1");
      expect(verify(byBoth, { secrets }).eventId).toBe("evt_1");
    }
    expect(verify(byBoth, { secrets: OTHER_SECRET }).eventId).toBe("evt_1");
    const error = await thrown(() => verify(byOld, { secrets: OTHER_SECRET }));
    expect(error).toBeInstanceOf(InvalidSignatureError);
    expect(error).toMatchObject({ eventId: "evt_1", status: 401 });
  });
});

describe("the time of an attempt", () => {
  const at = (seconds: number) => ({ now: new Date((ATTEMPT_TIME + seconds) * 1_000) });

  test.each([-300, -299, 0, 299, 300, 300.999])("may be %d s away", (seconds) => {
    expect(verify(signedRequest({}), at(seconds)).eventId).toBe("evt_1");
  });

  test.each([-301, 301, 86_400])("may not be %d s away", async (seconds) => {
    const error = await thrown(() => verify(signedRequest({}), at(seconds)));
    expect(error).toBeInstanceOf(StaleTimestampError);
    expect(error).toMatchObject({ eventId: "evt_1", status: 401, ageSeconds: seconds });
  });

  test("is refused by a clock that does not work", async () => {
    const now = new Date(Number.NaN);
    expect(await thrown(() => verify(signedRequest({}), { now }))).toBeInstanceOf(StaleTimestampError);
  });

  test("has the tolerance that it is given", async () => {
    const check = (toleranceSeconds: number) =>
      verifyWebhook({ ...signedRequest({}), secrets: SECRET, ...at(11), toleranceSeconds });
    expect(check(11).eventId).toBe("evt_1");
    expect(await thrown(() => check(10))).toBeInstanceOf(StaleTimestampError);
  });
});

describe("a request is refused by name", () => {
  test.each(["webhook-id", "webhook-timestamp", "webhook-signature"])("without %s", async (header) => {
    for (const value of [undefined, "", []]) {
      const error = await thrown(() => verify(withHeaders({ [header]: value })));
      expect(error).toBeInstanceOf(MissingHeaderError);
      expect(error).toMatchObject({ status: 400, message: expect.stringContaining(header) });
      expect(error).toHaveProperty("eventId", header === "webhook-id" ? undefined : "evt_1");
    }
  });

  test.each([
    ["webhook-id", "a.b"],
    ["webhook-id", "a b"],
    ["webhook-id", "a".repeat(257)],
    ["webhook-id", ["evt_1", "evt_2"]],
    ["Webhook-Id", "evt_2"],
    ["webhook-timestamp", "now"],
    ["webhook-timestamp", "-5"],
    ["webhook-timestamp", "1e9"],
    ["webhook-timestamp", "1614265330.5"],
    ["webhook-timestamp", "9".repeat(13)],
    ["webhook-timestamp", [String(ATTEMPT_TIME), "1"]],
    ["webhook-signature", "v1,A ".repeat(1_000)],
  ])("with %s as %j", async (header, value) => {
    const error = await thrown(() => verify(withHeaders({ [header]: value })));
    expect(error).toBeInstanceOf(MalformedHeaderError);
    expect(error).toMatchObject({ status: 400, message: expect.stringContaining(header.toLowerCase()) });
  });

  test.each([
    "",
    "{",
    "[]",
    "null",
    "5",
    "{}",
    '{"type":"","timestamp":"2026-06-19T00:21:26Z"}',
    '{"type":5,"timestamp":"2026-06-19T00:21:26Z"}',
    '{"type":"a"}',
    '{"type":"a","timestamp":1781828486}',
    '{"type":"a","timestamp":"yesterday"}',
    '{"type":"a","timestamp":"2026-06-19T00:21:26Z","fencing_token":"1"}',
    '{"type":"a","timestamp":"2026-06-19T00:21:26Z","fencing_token":null}',
  ])("with the body %j", async (body) => {
    const error = await thrown(() => verify(signedRequest({ body })));
    expect(error).toBeInstanceOf(MalformedBodyError);
    expect(error).toMatchObject({ status: 400, eventId: "evt_1" });
  });

  test.each(["evt_2", "", 1, null])(
    "with the body of event %j under another webhook-id",
    async (event_id) => {
      const body = JSON.stringify({ type: "a", timestamp: "2026-06-19T00:21:26Z", event_id });
      const error = await thrown(() => verify(signedRequest({ body })));
      expect(error).toBeInstanceOf(EventIdMismatchError);
      expect(error).toMatchObject({ status: 400, eventId: "evt_1" });
    },
  );

  test("with a body that is not UTF-8 where JSON allows any text", async () => {
    const body = Buffer.from(messageBody("evt_1", "\u00ff"), "latin1");
    expect(await thrown(() => verify(signedRequest({ body })))).toBeInstanceOf(MalformedBodyError);
  });

  test("with a body that was parsed before", async () => {
    const { headers, body } = signedRequest({});
    const parsed = JSON.parse(body.toString()) as Uint8Array;
    for (const wrong of [parsed, undefined as unknown as Uint8Array]) {
      expect(await thrown(() => verify({ headers, body: wrong }))).toBeInstanceOf(BodyAlreadyReadError);
    }
  });

  test("always, whatever the headers and the body are, unless it is signed", async () => {
    const header = fc.oneof(fc.string(), fc.array(fc.string()), fc.constant(undefined));
    const headers = fc.record({
      "webhook-id": fc.oneof(fc.constant("evt_1"), header),
      "webhook-timestamp": fc.oneof(fc.constant(String(ATTEMPT_TIME)), header),
      "webhook-signature": fc.oneof(
        fc.string().map((s) => `v1,${s}`),
        header,
      ),
    });
    await fc.assert(
      fc.asyncProperty(headers, fc.uint8Array(), async (given, body) => {
        expect(await thrown(() => verify({ headers: given, body }))).toBeInstanceOf(WebhookRefusedError);
      }),
    );
  });
});

describe("a secret is refused by name, and never shown,", () => {
  test.each([
    "",
    "whsec_",
    "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS",
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS ",
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2La-aS_",
    `whsec_${Buffer.alloc(23).toString("base64")}`,
    `whsec_${Buffer.alloc(65).toString("base64")}`,
    "whpk_",
    `whpk_${Buffer.alloc(31).toString("base64")}`,
    `whpk_${Buffer.alloc(33).toString("base64")}`,
    `whpk_${Buffer.alloc(31).toString("base64")}\n`,
    `whsk_${Buffer.alloc(64, 1).toString("base64")}`,
  ])("when it is %j", async (secret) => {
    const error = await thrown(() => verify(signedRequest({}), { secrets: [SECRET, secret] }));
    expect(error).toBeInstanceOf(InvalidSecretError);
    const { message } = error as Error;
    expect(message).toContain("Secret 2 of 2");
    if (secret.length > 6) expect(message).not.toContain(secret.slice(6).trim());
  });

  test("and those of 24 and of 64 bytes are taken", () => {
    for (const size of [24, 64]) {
      const secret = `whsec_${Buffer.alloc(size, 1).toString("base64")}`;
      expect(verify(signedRequest({ secrets: [secret] }), { secrets: secret }).eventId).toBe("evt_1");
    }
  });
});
