import { generateKeyPairSync, randomBytes } from "node:crypto";
import { verifyWebhook } from "@fencepost/receiver";
import { asCallerEventId, asToken, type EventId } from "@fencepost/token";
import fc from "fast-check";
import { Webhook } from "standardwebhooks";
import { expect, it } from "vitest";
import { newSecret } from "../dispatch/webhookInput.ts";
import { buildMessage } from "../message/payload.ts";
import type { RecordedAttempt } from "../store/deliveryStore.ts";
import { attemptHeaders, signatureOf } from "./sign.ts";

const TOKEN = asToken("testnet-20251217-0063092990-0000027-0006-0000000002");

type Attempt = Parameters<typeof attemptHeaders>[0];

/** A new ed25519 key, as the sender and as the receiver has it. */
function newKeys(): { readonly secret: string; readonly publicKey: string } {
  const { privateKey, publicKey } = generateKeyPairSync("ed25519");
  const own = privateKey.export({ type: "pkcs8", format: "der" }).subarray(-32);
  const open = publicKey.export({ type: "spki", format: "der" }).subarray(-32);
  return {
    secret: `whsk_${Buffer.concat([own, open]).toString("base64")}`,
    publicKey: `whpk_${open.toString("base64")}`,
  };
}

function attemptOf(overrides: Partial<RecordedAttempt> = {}): Attempt & { readonly body: Buffer } {
  const eventId = asCallerEventId("order:42~a");
  const occurredAt = "2026-06-19T00:21:26Z";
  const { body } = buildMessage({ eventId, type: "order.paid", token: TOKEN, occurredAt, data: { n: 1n } });
  return {
    eventId,
    token: TOKEN,
    number: 3,
    headers: {},
    secrets: [newSecret()],
    timestamp: 1_781_828_486n,
    body,
    ...overrides,
  };
}

it("signs the vector of Standard Webhooks as the specification does", () => {
  const signature = signatureOf("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", {
    eventId: "msg_p5jXN8AQM9LWM0D4loKWxJek",
    timestamp: 1_614_265_330n,
    body: Buffer.from('{"test": 2432232314}'),
  });
  expect(signature).toBe("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
});

it("signs the vector of Standard Webhooks for ed25519 as the specification does, with or without its public half", () => {
  const secret =
    "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
  const seed = Buffer.from(secret.slice(5), "base64").subarray(0, 32);
  for (const form of [secret, `whsk_${seed.toString("base64")}`, secret]) {
    const signature = signatureOf(form, {
      eventId: "msg_p5jXN8AQM9LWM0D4loKWxJek",
      timestamp: 1_614_265_330n,
      body: Buffer.from('{"test": 2432232314}'),
    });
    expect(signature).toBe(
      "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==",
    );
  }
});

it("is verified by the receiver library with the public half of each of several keys, and with no other", () => {
  const keys = [newKeys(), newKeys()];
  const attempt = attemptOf({ secrets: [newSecret(), ...keys.map(({ secret }) => secret)] });
  const request = { headers: attemptHeaders(attempt), body: attempt.body, now: new Date(1_781_828_486_000) };
  for (const { publicKey } of keys) {
    expect(verifyWebhook({ ...request, secrets: publicKey })).toMatchObject({ eventId: attempt.eventId });
  }
  expect(() => verifyWebhook({ ...request, secrets: newKeys().publicKey })).toThrow("signature");
});

it("is verified by the package standardwebhooks also where ed25519 signatures stand beside its own", () => {
  const secret = newSecret();
  const timestamp = BigInt(Math.floor(Date.now() / 1_000));
  const attempt = attemptOf({ secrets: [newKeys().secret, secret], timestamp });
  expect(new Webhook(secret).verify(attempt.body, attemptHeaders(attempt))).toMatchObject({
    type: "order.paid",
  });
});

it("sends the customer's own headers beside ours, which win whatever their case", () => {
  const attempt = attemptOf({
    token: null,
    headers: {
      Authorization: "Bearer abc",
      "X-Team": "payments",
      "Webhook-Id": "other",
      "WEBHOOK-SIGNATURE": "v1,none",
      "webhook-attempt": "99",
      "Content-Type": "text/plain",
      "content-length": "1",
      Host: "internal.example",
      "Fencing-Token": "none",
    },
  });
  expect(attemptHeaders(attempt)).toEqual({
    ...attemptHeaders({ ...attempt, headers: {} }),
    authorization: "Bearer abc",
    "x-team": "payments",
  });
});

it("sets these headers and no others", () => {
  const attempt = attemptOf();
  expect(attemptHeaders(attempt)).toEqual({
    "content-type": "application/json",
    "user-agent": "fencepost",
    "webhook-id": "order:42~a",
    "webhook-timestamp": "1781828486",
    "webhook-signature": signatureOf(attempt.secrets[0]!, attempt),
    "webhook-attempt": "3",
    "idempotency-key": "order:42~a",
    "fencing-token": TOKEN,
  });
});

it("leaves the fencing token out where a message has none", () => {
  expect(attemptHeaders(attemptOf({ token: null }))).not.toHaveProperty("fencing-token");
});

it("is verified by the receiver library with each of several secrets, and with no other", () => {
  const secrets = [newSecret(), newSecret(), newSecret()];
  const attempt = attemptOf({ secrets });
  const request = { headers: attemptHeaders(attempt), body: attempt.body, now: new Date(1_781_828_486_000) };
  for (const secret of secrets) {
    expect(verifyWebhook({ ...request, secrets: secret })).toMatchObject({
      eventId: attempt.eventId,
      attempt: 3,
    });
  }
  expect(() => verifyWebhook({ ...request, secrets: newSecret() })).toThrow("signature");
});

it("is verified by the package standardwebhooks with each of several secrets, and with no other", () => {
  const secrets = [newSecret(), newSecret(), newSecret()];
  // That package reads the clock itself, so this attempt is of now.
  const attempt = attemptOf({ secrets, timestamp: BigInt(Math.floor(Date.now() / 1_000)) });
  const headers = attemptHeaders(attempt);
  for (const secret of secrets) {
    expect(new Webhook(secret).verify(attempt.body, headers)).toMatchObject({ type: "order.paid" });
  }
  expect(() => new Webhook(newSecret()).verify(attempt.body, headers)).toThrow("No matching signature");
});

it("signs what the package standardwebhooks signs, for any secret, id, second and text", () => {
  fc.assert(
    fc.property(
      fc.uint8Array({ minLength: 24, maxLength: 64 }),
      fc.stringMatching(/^[A-Za-z0-9_:~-]{1,64}$/),
      fc.integer({ min: 0, max: 2 ** 40 }),
      fc.string({ unit: "binary" }),
      (key, id, seconds, text) => {
        const secret = `whsec_${Buffer.from(key).toString("base64")}`;
        const expected = new Webhook(secret).sign(id, new Date(seconds * 1_000), text);
        const attempt = { eventId: id as EventId, timestamp: BigInt(seconds), body: Buffer.from(text) };
        expect(signatureOf(secret, attempt)).toBe(expected);
      },
    ),
  );
});

it("signs the bytes as they are, also those that are not text", () => {
  const secret = newSecret();
  const attempt = { eventId: "bytes", timestamp: 1n };
  const bytes = randomBytes(1_000);
  const other = Buffer.from(bytes);
  other[500] = (other[500]! + 1) % 256;
  expect(signatureOf(secret, { ...attempt, body: bytes })).not.toBe(
    signatureOf(secret, { ...attempt, body: other }),
  );
  // Both are U+FFFD once they are read as text.
  const [one, two] = [Buffer.from([0xff]), Buffer.from([0xfe])];
  expect(signatureOf(secret, { ...attempt, body: one })).not.toBe(
    signatureOf(secret, { ...attempt, body: two }),
  );
});
