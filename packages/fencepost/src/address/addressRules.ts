import { isIP } from "node:net";
import ipaddr from "ipaddr.js";

/** Where webhooks may be sent. Without either option: over https to public addresses, and nowhere else. */
export interface AddressRuleOptions {
  /** Takes plain http and loopback addresses too; for development and tests only. */
  readonly allowInsecure?: boolean;
  /**
   * Networks that may be sent to though they are not public, in CIDR notation, as `10.20.0.0/16`. A prefix has at
   * least 8 bits, so that no list opens everything.
   */
  readonly allowNetworks?: readonly string[];
}

export interface AddressRules {
  readonly allowInsecure: boolean;
  readonly allowNetworks: readonly Network[];
}

type Network = readonly [address: ipaddr.IPv4 | ipaddr.IPv6, prefixBits: number];

const MIN_PREFIX_BITS = 8;
/** All that is public in IPv6. What lies outside has no owner, or is special in a way that was not foreseen. */
const GLOBAL_UNICAST = ipaddr.IPv6.parseCIDR("2000::/3");

/** An entry of `allowNetworks` that is no network, or too large a one. */
export class InvalidNetworkError extends Error {
  override readonly name = "InvalidNetworkError";

  constructor(network: string, why: string) {
    super(`allowNetworks has ${JSON.stringify(network)}, ${why}.`);
  }
}

/** A url or an address that webhooks are not sent to. The message names it, and the rule that refused it. */
export class RefusedAddressError extends Error {
  override readonly name = "RefusedAddressError";

  constructor(refused: string, rule: string, why: string) {
    super(`${refused} is refused by the rule "${rule}": ${why}`);
  }
}

/** Throws {@link InvalidNetworkError}. */
export function readAddressRules(options: AddressRuleOptions): AddressRules {
  const { allowInsecure = false, allowNetworks = [] } = options;
  return { allowInsecure, allowNetworks: allowNetworks.map(readNetwork) };
}

function readNetwork(text: string): Network {
  // Of the short and octal forms that the library reads, "10/8" would be 0.0.0.10/8.
  if (!ipaddr.isValidCIDR(text) || isIP(text.slice(0, text.indexOf("/"))) === 0) {
    throw new InvalidNetworkError(text, "which is no network in CIDR notation, as 10.20.0.0/16 is");
  }
  const [address, prefixBits] = ipaddr.parseCIDR(text);
  if (prefixBits < MIN_PREFIX_BITS) {
    throw new InvalidNetworkError(text, `but a prefix has at least ${MIN_PREFIX_BITS} bits`);
  }
  const family = address.kind() === "ipv4" ? ipaddr.IPv4 : ipaddr.IPv6;
  const first = family.networkAddressFromCIDR(text).toString();
  if (address.toString() !== first) {
    throw new InvalidNetworkError(text, `which has bits beyond its prefix: write ${first}/${prefixBits}`);
  }
  return [address, prefixBits];
}

/**
 * Checks all that a url tells without a look-up: its scheme, user info, an address in place of a name, and the names
 * of this machine itself. A `URL` has every decimal, octal, hexadecimal and short form of an address in its one
 * normal form. Throws {@link RefusedAddressError}.
 */
export function checkUrl(url: URL, rules: AddressRules): void {
  const { protocol, username, password, host, hostname } = url;
  if (protocol !== "https:" && !(rules.allowInsecure && protocol === "http:")) {
    const schemes = rules.allowInsecure ? "https:// or http://" : "https://";
    throw new RefusedAddressError(`${protocol}//${host}`, "https", `a url must begin with ${schemes}.`);
  }
  if (username !== "" || password !== "") {
    const why = "the url holds a user name or a password; the signature is what authenticates.";
    throw new RefusedAddressError(`${protocol}//${host}`, "userInfo", why);
  }
  const name = hostname.replace(/^\[|\]$/g, "");
  if (isIP(name) !== 0) checkAddress(name, name, rules);
  else if (/(^|\.)localhost\.*$/.test(name)) checkAddress(name, "127.0.0.1", rules);
}

/** Checks one address of a host. Throws {@link RefusedAddressError}. */
export function checkAddress(host: string, address: string, rules: AddressRules): void {
  const rule = refusingRule(address, rules);
  if (rule === undefined) return;
  throw new RefusedAddressError(
    host === address ? address : `${host} (${address})`,
    rule,
    "it is not a public address. Use one that is, or name its network in allowNetworks.",
  );
}

function refusingRule(address: string, { allowInsecure, allowNetworks }: AddressRules): string | undefined {
  // An address with a zone (fe80::1%eth0) means another one on each machine.
  if (isIP(address) === 0 || address.includes("%")) return "notAnAddress";
  // In hexadecimal first: the library takes ::10.0.0.1 for ::ffff:10.0.0.1, which it is not.
  const plain = isIP(address) === 6 ? new URL(`https://[${address}]`).hostname.slice(1, -1) : address;
  const ip = ipaddr.process(plain); // v4-in-v6 becomes the v4 that is connected to
  const range = ip.range();
  const isAllowed = allowNetworks.some(([net, bits]) => net.kind() === ip.kind() && ip.match(net, bits));
  if (isAllowed || (allowInsecure && range === "loopback")) return undefined;
  if (range !== "unicast") return range;
  return ip.kind() === "ipv6" && !ip.match(GLOBAL_UNICAST) ? "unallocated" : undefined;
}
