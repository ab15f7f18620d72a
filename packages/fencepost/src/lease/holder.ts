/** Who holds a lease: a process, and the database backend that lives exactly as long as it does. */
export interface Holder {
  /** Random, one for each start of a process. */
  readonly id: string;
  readonly pid: number;
  /** When that backend started, as the database writes it: process ids recur. */
  readonly startedAt: string;
}

/** A cursor row that is led under a term. */
export type LeaseKey =
  | { readonly kind: "stream"; readonly stream: string }
  | { readonly kind: "projection"; readonly name: string; readonly version: number };

export function leaseName(key: LeaseKey): string {
  return key.kind === "stream" ? `ingest ${key.stream}` : `project ${key.name} v${key.version}`;
}
