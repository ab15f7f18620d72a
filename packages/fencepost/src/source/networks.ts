import { ledgerToken, type StreamEpoch } from "@fencepost/token";

/** A Stellar network: its stream name, its passphrase, and the day its current life began. */
export interface Network {
  readonly chain: StreamEpoch;
  readonly passphrase: string;
}

const KNOWN = {
  pubnet: {
    chain: { stream: "pubnet", epoch: "20150930" },
    passphrase: "Public Global Stellar Network ; September 2015",
  },
  testnet: {
    chain: { stream: "testnet", epoch: "20251217" },
    passphrase: "Test SDF Network ; September 2015",
  },
} as const satisfies Record<string, Network>;

/** A network of one's own. `name` becomes the stream; `epoch` is the day (yyyymmdd) its ledger 1 was closed. */
export interface CustomNetwork {
  readonly name: string;
  readonly passphrase: string;
  readonly epoch: string;
}

/** Whether a passphrase is that of a network whose pace is known. */
export function hasKnownPace(passphrase: string): boolean {
  return Object.values(KNOWN).some((network) => network.passphrase === passphrase);
}

export type NetworkOption = keyof typeof KNOWN | CustomNetwork;

/** Throws a `TypeError` for an unknown name, and `InvalidTokenError` for a custom name or epoch that cannot be. */
export function resolveNetwork(option: NetworkOption): Network {
  if (typeof option !== "string") {
    const chain = { stream: option.name, epoch: option.epoch };
    ledgerToken({ ...chain, ledger: 0, tx: 0, op: 0, event: 0 }); // throws for a name or a date that no token can have
    return { chain, passphrase: option.passphrase };
  }
  const known = Object.hasOwn(KNOWN, option) ? KNOWN[option] : undefined;
  if (!known) {
    throw new TypeError(
      `source.network is ${JSON.stringify(option)}: use "pubnet", "testnet" or { name, passphrase, epoch }.`,
    );
  }
  return known;
}
