import { describe, expect, it, test } from "vitest";
import { readAddressRules } from "../address/addressRules.ts";
import type { WebhookChanges } from "../store/webhook.ts";
import { InvalidWebhookError } from "./errors.ts";
import {
  newSecret,
  readSecret,
  readWebhookChanges,
  readWebhookInput,
  type WebhookInput,
} from "./webhookInput.ts";

const strict = readAddressRules({});
const readUrl = (url: string, rules = strict): string => readWebhookInput({ url, types: ["*"] }, rules).url;

test.each([
  ["http://hooks.example/", 'http://hooks.example is refused by the rule "https"'],
  ["https://user:secret@hooks.example/", 'https://hooks.example is refused by the rule "userInfo"'],
  ["https://10.0.0.1/", '10.0.0.1 is refused by the rule "private"'],
  ["https://2130706433/", '127.0.0.1 is refused by the rule "loopback"'],
  ["https://0x7f.1/", '127.0.0.1 is refused by the rule "loopback"'],
  ["https://0251.0376.0251.0376/", '169.254.169.254 is refused by the rule "linkLocal"'],
  ["https://[::1]:8443/", '::1 is refused by the rule "loopback"'],
  ["https://[::ffff:10.0.0.1]/", '::ffff:a00:1 is refused by the rule "private"'],
  ["https://[64:ff9b::10.0.0.1]/", '64:ff9b::a00:1 is refused by the rule "rfc6052"'],
  ["https://localhost./", 'localhost. (127.0.0.1) is refused by the rule "loopback"'],
  ["https://api.localhost/", 'api.localhost (127.0.0.1) is refused by the rule "loopback"'],
  ["https://[fe80::1%25eth0]/", "is not a url"],
])("a webhook is not added for %s", (url, text) => {
  expect(() => readUrl(url)).toThrow(InvalidWebhookError);
  expect(() => readUrl(url)).toThrow(text);
});

it("a webhook is added for a name, whatever it resolves to, and for a public address", () => {
  expect(readUrl("https://HOOKS.example:443/a?b=c")).toBe("https://hooks.example/a?b=c");
  expect(readUrl("https://8.8.8.8/")).toBe("https://8.8.8.8/");
});

it("a webhook is added for loopback in development, and for a network that is allowed", () => {
  const dev = readAddressRules({ allowInsecure: true });
  expect(readUrl("http://127.0.0.1:3000/", dev)).toBe("http://127.0.0.1:3000/");
  expect(() => readUrl("http://10.20.0.1/", dev)).toThrow('10.20.0.1 is refused by the rule "private"');
  const allowing = readAddressRules({ allowNetworks: ["10.20.0.0/16"] });
  expect(readUrl("https://10.20.0.1/", allowing)).toBe("https://10.20.0.1/");
});

const WEBHOOK: WebhookInput = { url: "https://customer.example/hook", types: ["order.paid"] };
const secretOf = (bytes: number): string => `whsec_${Buffer.alloc(bytes, 1).toString("base64")}`;
const keyOf = (bytes: number): string => `whsk_${Buffer.alloc(bytes, 1).toString("base64")}`;
const read = (input: object) => readWebhookInput({ ...WEBHOOK, ...input }, strict);
/** `depth` objects in each other. */
const nested = (depth: number): object => (depth === 0 ? { a: 1 } : { a: nested(depth - 1) });
const DAY_MS = 86_400_000;

it("has defaults for what is left out, and an id and a secret of its own", () => {
  const [one, two] = [read({}), read({ filter: undefined, secrets: undefined })];
  expect(one).toEqual({
    ...WEBHOOK,
    id: expect.stringMatching(/^wh_[0-9a-f]{24}$/),
    filter: null,
    secrets: [expect.stringMatching(/^whsec_.{44}$/)],
    headers: {},
    description: "",
    onUnknown: "resend",
    retryOn: "default",
    retryScheduleMs: null,
    jitter: 0.5,
    ordering: "none",
    ratePerSecond: null,
    maxInFlight: null,
    disableAfterMs: 5 * DAY_MS,
  });
  expect(two).toEqual({ ...one, id: two.id, secrets: two.secrets });
  expect(two.id).not.toBe(one.id);
  expect(two.secrets).not.toEqual(one.secrets);
  expect(newSecret()).not.toBe(newSecret());
});

const accepted: readonly (readonly [what: string, input: object, expected?: object])[] = [
  ["types, each once", { types: ["a", "*", "a.b-c", "a"] }, { types: ["a", "*", "a.b-c"] }],
  ["a type of the system", { types: ["webhook.disabled"] }],
  ["several secrets of both kinds", { secrets: [secretOf(24), secretOf(64), keyOf(64)] }],
  [
    "the key of the vector",
    {
      secrets: [
        "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
      ],
    },
  ],
  ["a filter", { filter: { a: [1, { b: null }], "\u{1f4e6} ü": { c: [true, "", 0.5, -1] } } }],
  ["a filter as deep as the limit", { filter: nested(30) }],
  ["a filter as long as the limit", { filter: { a: "x".repeat(4_096 - 8) } }],
  ["no filter", { filter: null }],
  [
    "headers, their names in lower case",
    { headers: { "X-Key": "a b:c", Authorization: "Bearer x" } },
    {
      headers: { "x-key": "a b:c", authorization: "Bearer x" },
    },
  ],
  [
    "as many headers as there may be",
    {
      headers: Object.fromEntries(Array.from({ length: 20 }, (_, i) => [`x-${i}`, "a"])),
    },
  ],
  ["asking", { onUnknown: "ask" }],
  ["holding", { onUnknown: "hold" }],
  ["retrying all", { retryOn: "all" }],
  ["a schedule of one delay", { retryScheduleMs: [1] }],
  ["a schedule of fifty", { retryScheduleMs: Array(50).fill(7 * DAY_MS) }],
  ["no jitter", { jitter: 0 }],
  ["all jitter", { jitter: 1 }],
  ["strict order", { ordering: "strict" }],
  ["a slow rate", { ratePerSecond: 0.01 }],
  ["a fast rate", { ratePerSecond: 10_000 }],
  ["one at once", { maxInFlight: 1 }],
  ["a thousand at once", { maxInFlight: 1_000 }],
  ["a minute to fail", { disableAfterMs: 60_000 }],
  ["never disabled", { disableAfterMs: null }],
  ["a description", { description: "\u{1f4e6}".repeat(250) }],
];
test.each(accepted.map(([what, input, expected = input]) => [what, input, expected] as const))(
  "is read with %s",
  (_what, input, expected) => {
    expect(read(input)).toMatchObject(expected);
  },
);

const TOO_MANY_HEADERS = Object.fromEntries(Array.from({ length: 21 }, (_, i) => [`x-${i}`, "a"]));
const refused: readonly (readonly [string, object, string])[] = [
  ["no url", { url: undefined }, "undefined is not a url"],
  ["a url that is none", { url: "customer.example/hook" }, '"customer.example/hook" is not a url'],
  ["a url that is no text", { url: 7n }, "bigint is not a url"],
  ["a url that is too long", { url: `https://customer.example/${"a".repeat(2_048)}` }, "2048 characters"],
  ["a url of another scheme", { url: "ftp://customer.example/" }, "https"],
  ["a url with user info", { url: "https://a:b@customer.example/" }, "userInfo"],
  ["a url with a fragment", { url: "https://customer.example/#a" }, "fragment"],
  ["no types", { types: undefined }, "types must name"],
  ["empty types", { types: [] }, "types must name"],
  ["types that are one text", { types: "order.paid" }, "types must name"],
  ["too many types", { types: Array.from({ length: 101 }, (_, i) => `t${i}`) }, "types must name"],
  ["a type with a space", { types: ["order paid"] }, '"order paid" is not a message type'],
  ["a type with a wildcard in it", { types: ["order.*"] }, '"order.*" is not a message type'],
  ["a type that is no text", { types: [null] }, "is not a message type"],
  ["a type that is too long", { types: ["a".repeat(129)] }, "is not a message type"],
  [
    "a policy that is none",
    { onUnknown: "forget" },
    'onUnknown is "forget": use "resend" or "hold" or "ask"',
  ],
  ["another policy that is none", { retryOn: null }, 'retryOn is null: use "default" or "all"'],
  ["a description that is too long", { description: "a".repeat(501) }, "description"],
  ["a description that is no text", { description: 1 }, "description"],
  ["a description that cannot be stored", { description: "a\0b" }, "description"],
  ["a description with half a character", { description: "a\ud83d" }, "description"],
  ["a filter that is a text", { filter: "a" }, 'filter is "a"'],
  ["a filter that is a list", { filter: [{ a: 1 }] }, "filter is object"],
  ["an empty filter", { filter: {} }, "filter is empty"],
  ["a filter with an empty object", { filter: { a: { b: {} } } }, "filter.a.b is empty"],
  ["a filter with an empty list", { filter: { a: [1, []] } }, "filter.a.1 is empty"],
  ["a filter that is too long", { filter: { a: "ü".repeat(2_100) } }, "more than 4096 bytes"],
  ["a filter that is too deep", { filter: nested(33) }, "nested deeper than 32"],
  ["a filter with NUL", { filter: { a: "x\0" } }, "filter.a has NUL"],
  ["a filter with a key that has NUL", { filter: { "a\0": 1 } }, "filter has a key with NUL"],
  ["a filter with half a character", { filter: { a: ["\udc00"] } }, "filter.a.0 has NUL or half a character"],
  ["a filter with NaN", { filter: { a: Number.NaN } }, "filter.a is a number"],
  ["a filter with a large integer", { filter: { a: 2 ** 53 } }, "filter.a is a number"],
  ["a filter with a bigint", { filter: { a: 1n } }, "filter.a is bigint"],
  ["a filter with nothing", { filter: { a: undefined } }, "filter.a is undefined"],
  ["a filter with a date", { filter: { a: new Date(0) } }, "filter.a is object, which is no plain JSON"],
  ["a filter that is too wide", { filter: { a: Array(5_000).fill(1) } }, "filter.a is too long"],
  ["headers that are none", { headers: [] }, "headers is object"],
  ["a header without a name", { headers: { "": "a" } }, '"" is no name'],
  ["a header with a space in its name", { headers: { "x y": "a" } }, '"x y" is no name'],
  ["a header with a line break in its name", { headers: { "x\n": "a" } }, "is no name"],
  ["a header twice", { headers: { "X-A": "a", "x-a": "b" } }, "is there twice"],
  ["a header of two lines", { headers: { "x-a": "a\r\nhost: b" } }, 'The value of the header "x-a"'],
  ["a header in Unicode", { headers: { "x-a": "ü" } }, 'The value of the header "x-a"'],
  ["an empty header", { headers: { "x-a": "" } }, 'The value of the header "x-a"'],
  ["a header with a space in front", { headers: { "x-a": " a" } }, 'The value of the header "x-a"'],
  ["a header that is no text", { headers: { "x-a": 1 } }, 'The value of the header "x-a"'],
  ["too many headers", { headers: TOO_MANY_HEADERS }, "up to 20"],
  ["headers that are too long", { headers: { "x-a": "a".repeat(4_096) } }, "4096 bytes"],
  ...[
    ..."host connection transfer-encoding content-type content-length Content-Encoding keep-alive upgrade te".split(
      " ",
    ),
    ..."trailer expect user-agent idempotency-key fencing-token webhook-id Webhook-Signature webhook-x".split(
      " ",
    ),
    ..."proxy-authorization proxy-connection".split(" "),
  ].map(
    (name) => [`the header ${name}`, { headers: { [name]: "a" } }, "is set by Fencepost itself"] as const,
  ),
  ["a schedule of nothing", { retryScheduleMs: [] }, "1 to 50 delays"],
  ["a schedule that is too long", { retryScheduleMs: Array(51).fill(1) }, "1 to 50 delays"],
  ["a schedule that is a number", { retryScheduleMs: 1_000 }, "1 to 50 delays"],
  ["a delay of nothing", { retryScheduleMs: [1, 0] }, "retryScheduleMs is 0"],
  ["a delay that is too long", { retryScheduleMs: [7 * DAY_MS + 1] }, "from 1 to 604800000"],
  ["a delay that is no whole number", { retryScheduleMs: [1.5] }, "a whole number"],
  ["a delay that is no number", { retryScheduleMs: ["5"] }, 'retryScheduleMs is "5"'],
  ["too much jitter", { jitter: 1.1 }, "jitter is 1.1"],
  ["jitter that is none", { jitter: Number.NaN }, "jitter is NaN"],
  ["a rate of nothing", { ratePerSecond: 0 }, "from 0.01 to 10000"],
  ["a rate that is too fast", { ratePerSecond: 10_001 }, "from 0.01 to 10000"],
  ["an infinite rate", { ratePerSecond: Number.POSITIVE_INFINITY }, "from 0.01 to 10000"],
  ["none at once", { maxInFlight: 0 }, "from 1 to 1000"],
  ["half of one at once", { maxInFlight: 1.5 }, "a whole number"],
  ["a second to fail", { disableAfterMs: 1_000 }, "from 60000"],
  ["a setting that is none", { colour: "red" }, '"colour" is no setting of a webhook'],
  ["a setting from beneath", { toString: "red" }, '"toString" is no setting of a webhook'],
];

test.each(refused)("is refused with %s by name", (_what, wrong, text) => {
  expect(() => read(wrong)).toThrow(InvalidWebhookError);
  expect(() => read(wrong)).toThrow(text);
  expect(() => read(wrong)).not.toThrow(/.{1000}/);
});

test.each<readonly [string, object, string]>([
  ["no secret", { secrets: [] }, "secrets must be"],
  ["too many secrets", { secrets: Array.from({ length: 6 }, () => secretOf(32)) }, "secrets must be"],
  ["secrets that are one text", { secrets: secretOf(32) }, "secrets must be"],
  ["a secret without its prefix", { secrets: [secretOf(32).slice(6)] }, "A secret is"],
  ["a secret of 23 bytes", { secrets: [secretOf(23)] }, "A secret is"],
  ["a secret of 65 bytes", { secrets: [secretOf(65)] }, "A secret is"],
  ["a secret that no receiver decodes", { secrets: [secretOf(32).replace("=", "")] }, "A secret is"],
  ["a secret that is no text", { secrets: [{}] }, "A secret is"],
  ["a key of 32 bytes", { secrets: [keyOf(32)] }, "A secret is"],
  ["the public key", { secrets: ["whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="] }, "A secret is"],
  ["a sealed secret", { secrets: ["sealed:v1:AAAA"] }, "A secret is"],
  ["an order that is none", { ordering: "seq" }, 'ordering is "seq"'],
])("is refused with %s by name, which is not shown", (_what, wrong, text) => {
  expect(() => read(wrong)).toThrow(InvalidWebhookError);
  expect(() => read(wrong)).toThrow(text);
  expect(() => read(wrong)).not.toThrow(/whsec_AQ|whsk_AQ/);
});

describe("a change", () => {
  const change = (changes: object) => readWebhookChanges(changes as WebhookChanges, strict);

  it("names what changes, and nothing else", () => {
    expect(change({})).toEqual({});
    expect(change({ url: "https://A.example", description: undefined, filter: null, jitter: 0 })).toEqual({
      url: "https://a.example/",
      filter: null,
      jitter: 0,
    });
  });

  const optional = refused.filter(([, wrong]) => Object.values(wrong)[0] !== undefined);
  test.each(optional)("is refused with %s by name", (_what, wrong, text) => {
    expect(() => change(wrong)).toThrow(InvalidWebhookError);
    expect(() => change(wrong)).toThrow(text);
  });

  test.each([
    ["ordering", { ordering: "none" }, "set once"],
    ["secrets", { secrets: [secretOf(32)] }, "rotate"],
    ["an id", { id: "wh_a" }, '"id" is no setting'],
    ["whether it is active", { active: true }, '"active" is no setting'],
  ])("of %s is refused", (_what, wrong, text) => {
    expect(() => change(wrong)).toThrow(text);
  });
});

it("a secret is read as it is", () => {
  for (const secret of [secretOf(24), keyOf(64), newSecret()]) expect(readSecret(secret)).toBe(secret);
});
