import { expect, it, test } from "vitest";
import { readAddressRules } from "../address/addressRules.ts";
import { InvalidWebhookError } from "./errors.ts";
import { readWebhookInput } from "./webhookInput.ts";

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
