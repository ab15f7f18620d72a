import { describe, expect, it, test } from "vitest";
import {
  checkAddress,
  checkUrl,
  InvalidNetworkError,
  RefusedAddressError,
  readAddressRules,
} from "./addressRules.ts";

const strict = readAddressRules({});
const dev = readAddressRules({ allowInsecure: true });

/** Addresses at both ends of what is not public, and the rule that refuses them. */
const BAD: readonly (readonly [rule: string, ...addresses: string[]])[] = [
  ["unspecified", "0.0.0.0", "0.0.0.1", "0.255.255.255", "::"],
  ["private", "10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.0", "192.168.255.255"],
  ["loopback", "127.0.0.0", "127.0.0.1", "127.0.0.2", "127.255.255.255", "::1"],
  ["linkLocal", "169.254.0.0", "169.254.169.254", "169.254.255.255", "fe80::", "febf:ffff::1"],
  ["carrierGradeNat", "100.64.0.0", "100.100.100.200", "100.127.255.255"],
  // IETF protocol assignments, documentation, 6to4 relays, benchmarking, for future use
  ["reserved", "192.0.0.0", "192.0.0.192", "192.0.0.255", "192.0.2.0", "192.0.2.255", "192.88.99.1"],
  [
    "reserved",
    "198.18.0.0",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.255",
    "240.0.0.0",
    "255.255.255.254",
  ],
  [
    "reserved",
    "2001:1::1",
    "2001:1ff:ffff::",
    "2001:db8::",
    "2001:db8:ffff::1",
    "3fff::",
    "3fff:fff:ffff::1",
  ],
  ["broadcast", "255.255.255.255"],
  ["multicast", "224.0.0.0", "233.252.0.1", "239.255.255.255", "ff00::", "ff02::1", "ffff::"],
  ["as112", "192.31.196.1", "192.175.48.0", "192.175.48.255"],
  ["as112v6", "2001:4:112::1", "2620:4f:8000::1"],
  ["amt", "192.52.193.1", "2001:3::1"],
  ["uniqueLocal", "fc00::", "fd00:ec2::254", "fdff:ffff::1"],
  ["deprecatedSiteLocal", "fec0::1", "feff:ffff::1"],
  ["discard", "100::", "100::ffff:ffff:ffff:ffff"],
  ["benchmarking", "2001:2::1"],
  ["deprecatedOrchid", "2001:10::1"],
  ["orchid2", "2001:20::1"],
  ["droneRemoteIdProtocolEntityTags", "2001:30::1"],
  ["segmentRouting", "5f00::1"],
  // NAT64, 6to4 and Teredo lead to a v4 address, whichever it is
  ["rfc6052", "64:ff9b::10.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::8.8.8.8", "64:ff9b:1::a00:1"],
  ["rfc6145", "::ffff:0:10.0.0.1", "::ffff:0:127.0.0.1"],
  ["6to4", "2002::", "2002:a00:1::", "2002:7f00:1::1", "2002:808:808::1"],
  ["teredo", "2001::", "2001:0:ffff:ffff::1"],
  // v4 in v6: what counts is the v4
  ["loopback", "::ffff:127.0.0.1", "::ffff:7f00:1", "0:0:0:0:0:ffff:127.0.0.1"],
  ["private", "::ffff:10.0.0.1", "::ffff:192.168.1.1", "::ffff:ac10:1"],
  ["linkLocal", "::ffff:169.254.169.254"],
  ["carrierGradeNat", "::ffff:100.64.0.1"],
  ["unspecified", "::ffff:0.0.0.0"],
  [
    "unallocated",
    "::127.0.0.1",
    "::10.0.0.1",
    "::8.8.8.8",
    "::2",
    "100:0:0:1::1",
    "1fff:ffff::1",
    "4000::1",
    "fe00::1",
  ],
];
const badAddresses = BAD.flatMap(([rule, ...addresses]) => addresses.map((address) => ({ address, rule })));

const GOOD = [
  "1.1.1.1",
  "8.8.8.8",
  "9.255.255.255",
  "11.0.0.0",
  "100.63.255.255",
  "100.128.0.0",
  "126.255.255.255",
  "128.0.0.0",
  "169.253.255.255",
  "169.255.0.0",
  "172.15.255.255",
  "172.32.0.0",
  "192.0.1.0",
  "192.167.255.255",
  "192.169.0.0",
  "198.17.255.255",
  "198.20.0.0",
  "223.255.255.255",
  "::ffff:8.8.8.8",
  "2001:4860:4860::8888",
  "2606:4700:4700::1111",
  "2003::1",
  "3ffe:ffff::1",
];

const inUrl = (address: string): string => (address.includes(":") ? `[${address}]` : address);
const refusal = (rule: string): RegExp => new RegExp(`is refused by the rule "${rule}": `);

describe("an address that is not public", () => {
  it("stands in a table of at least 60", () => {
    expect(new Set(badAddresses.map(({ address }) => address)).size).toBe(badAddresses.length);
    expect(badAddresses.length).toBeGreaterThanOrEqual(60);
  });

  test.each(badAddresses)("$address is refused by the rule $rule", ({ address, rule }) => {
    const check = (): void => checkAddress("hooks.example", address, strict);
    expect(check).toThrow(RefusedAddressError);
    expect(check).toThrow(`hooks.example (${address}) is refused by the rule "${rule}": `);
  });

  test.each(badAddresses)("https://$address is refused by the rule $rule", ({ address, rule }) => {
    expect(() => checkUrl(new URL(`https://${inUrl(address)}:8443/hook`), strict)).toThrow(refusal(rule));
  });

  test.each([
    ["decimal", "2130706433", "loopback"],
    ["decimal", "167772161", "private"],
    ["decimal", "2852039166", "linkLocal"],
    ["decimal", "0", "unspecified"],
    ["octal", "0177.0.0.1", "loopback"],
    ["octal", "017700000001", "loopback"],
    ["octal", "0300.0250.1.1", "private"],
    ["hexadecimal", "0x7f.1", "loopback"],
    ["hexadecimal", "0x7f000001", "loopback"],
    ["hexadecimal", "0xA9FEA9FE", "linkLocal"],
    ["short", "127.1", "loopback"],
    ["short", "10.1", "private"],
    ["short", "192.168.257", "private"],
    ["mixed", "0x7f.0.1", "loopback"],
    ["dotted at its end", "127.0.0.1.", "loopback"],
    ["full-width", "１２７.0.0.1", "loopback"],
    ["percent-encoded", "%31%32%37.0.0.1", "loopback"],
    ["long v6", "[0:0:0:0:0:0:0:1]", "loopback"],
    ["upper-case v6", "[FE80::1]", "linkLocal"],
    ["v4 in v6, hexadecimal", "[::FFFF:A9FE:A9FE]", "linkLocal"],
  ])("is refused in its %s form %s", (_form, host, rule) => {
    expect(() => checkUrl(new URL(`https://${host}/`), strict)).toThrow(refusal(rule));
  });

  test.each([
    "localhost",
    "LOCALHOST",
    "localhost.",
    "localhost..",
    "api.localhost",
    "a.b.localhost.",
    "loc%61lhost",
    "ⓛocalhost",
  ])("is what the name %s stands for", (host) => {
    expect(() => checkUrl(new URL(`https://${host}/`), strict)).toThrow(refusal("loopback"));
  });

  test.each(["", "hooks", "127.1", "2130706433", "0x7f.0.0.1", "010.0.0.1", "2606:4700::1111%eth0", "[::1]"])(
    "is one that a resolver does not give: %j",
    (address) => {
      expect(() => checkAddress("hooks.example", address, strict)).toThrow(refusal("notAnAddress"));
    },
  );

  test.each(["fe80::1%25eth0", "fe80::1%eth0", "::1%lo"])("with a zone is no url: %s", (address) => {
    expect(URL.canParse(`https://[${address}]/`)).toBe(false);
  });
});

test.each(GOOD)("%s is public", (address) => {
  checkAddress("hooks.example", address, strict);
  checkUrl(new URL(`https://${inUrl(address)}/`), strict);
});

describe("a url", () => {
  test.each(["http:", "ftp:", "ws:"])("with the scheme %s is refused outside development", (scheme) => {
    expect(() => checkUrl(new URL(`${scheme}//hooks.example/`), strict)).toThrow(
      `${scheme}//hooks.example is refused by the rule "https": a url must begin with https://.`,
    );
  });

  test.each([
    "https://user@hooks.example/",
    "https://user:secret@hooks.example/",
    "https://:secret@hooks.example/",
  ])("with user info is refused, and the user info is not told: %s", (url) => {
    expect(() => checkUrl(new URL(url), strict)).toThrow(
      /^https:\/\/hooks\.example is refused by the rule "userInfo": [^@]+$/,
    );
  });

  test.each([
    "https://hooks.example/",
    "https://notlocalhost/",
    "https://localhost.example/",
    "https://10.example/",
  ])("with a name is for the look-up to judge: %s", (url) => checkUrl(new URL(url), strict));
});

describe("development", () => {
  test.each([
    "http://127.0.0.1:3000/",
    "http://localhost:3000/",
    "http://api.localhost/",
    "http://[::1]:3000/",
    "http://[::ffff:127.0.0.1]/",
    "https://127.0.0.1/",
    "http://hooks.example/",
  ])("takes %s", (url) => checkUrl(new URL(url), dev));

  test.each([
    ["http://0.0.0.0:3000/", "unspecified"],
    ["http://192.168.1.2/", "private"],
    ["http://169.254.169.254/", "linkLocal"],
    ["ftp://localhost/", "https"],
    ["http://user@localhost/", "userInfo"],
  ])("does not take %s", (url, rule) => {
    expect(() => checkUrl(new URL(url), dev)).toThrow(refusal(rule));
  });
});

describe("allowNetworks", () => {
  const rules = readAddressRules({ allowNetworks: ["10.20.0.0/16", "fd12:3456::/32", "127.0.0.1/32"] });

  test.each(["10.20.0.0", "10.20.255.255", "::ffff:10.20.1.1", "fd12:3456:ffff::1", "127.0.0.1", "8.8.8.8"])(
    "opens %s",
    (address) => checkAddress("hooks.example", address, rules),
  );

  test.each([
    ["10.19.255.255", "private"],
    ["10.21.0.0", "private"],
    ["fd12:3457::1", "uniqueLocal"],
    ["127.0.0.2", "loopback"],
    ["::1", "loopback"],
    ["64:ff9b::10.20.0.1", "rfc6052"],
    ["::10.20.0.1", "unallocated"],
  ])("leaves %s refused by the rule %s", (address, rule) => {
    expect(() => checkAddress("hooks.example", address, rules)).toThrow(refusal(rule));
  });

  it("opens no plain http", () => {
    expect(() => checkUrl(new URL("http://10.20.0.1/"), rules)).toThrow(refusal("https"));
  });

  it("opens the names of this machine with its address", () => {
    checkUrl(new URL("https://localhost/"), rules);
  });

  test.each(["10.0.0.0/8", "172.16.0.0/12", "192.168.1.1/32", "fd00::/8", "fd00::1/128"])(
    "takes %s",
    (network) => {
      readAddressRules({ allowNetworks: [network] });
    },
  );

  test.each([
    ["0.0.0.0/0", "a prefix has at least 8 bits"],
    ["::/0", "a prefix has at least 8 bits"],
    ["10.0.0.0/7", "a prefix has at least 8 bits"],
    ["fc00::/7", "a prefix has at least 8 bits"],
    ["::ffff:0.0.0.0/0", "a prefix has at least 8 bits"],
    ["10.20.0.1/16", "write 10.20.0.0/16"],
    ["fd00::1/64", "write fd00::/64"],
    ["10.0.0.1", "no network in CIDR notation"],
    ["10/8", "no network in CIDR notation"],
    ["0x0a.0.0.0/8", "no network in CIDR notation"],
    ["012.0.0.0/8", "no network in CIDR notation"],
    ["10.0.0.0/33", "no network in CIDR notation"],
    ["10.0.0.0/-1", "no network in CIDR notation"],
    ["10.0.0.0/8/8", "no network in CIDR notation"],
    ["fd00::/129", "no network in CIDR notation"],
    ["fd00::%eth0/64", "write fd00::/64"],
    ["internal.example/8", "no network in CIDR notation"],
    ["", "no network in CIDR notation"],
  ])("does not take %j", (network, why) => {
    const read = (): unknown => readAddressRules({ allowNetworks: ["192.168.0.0/16", network] });
    expect(read).toThrow(InvalidNetworkError);
    expect(read).toThrow(`allowNetworks has ${JSON.stringify(network)}, `);
    expect(read).toThrow(why);
  });
});
