import type { LookupAddress } from "node:dns";
import { lookup } from "node:dns/promises";
import type { LookupFunction } from "node:net";
import { type AddressRules, checkAddress } from "../address/addressRules.ts";

/** Every address of a name; rejects for a name that has none. */
export type Resolve = (hostname: string) => Promise<LookupAddress[]>;

const resolveAll: Resolve = (hostname) => lookup(hostname, { all: true, order: "verbatim" });

/**
 * The look-up of a connection: one for each, and what it hands on is what it checked, so the connection goes to no
 * other address. One bad address refuses them all. Only for connections that ask for all addresses
 * (`autoSelectFamily`), and never called by them for a host that is an address itself.
 */
export function checkedLookup(rules: AddressRules, resolve: Resolve = resolveAll): LookupFunction {
  async function checkedAddresses(hostname: string): Promise<LookupAddress[]> {
    const found = await resolve(hostname);
    if (found.length === 0) throw new Error(`The name ${hostname} has no address.`);
    for (const { address } of found) checkAddress(hostname, address, rules);
    return found;
  }
  return (hostname, _options, callback) => {
    checkedAddresses(hostname).then(
      (addresses) => callback(null, addresses),
      (error) => callback(error, []),
    );
  };
}
