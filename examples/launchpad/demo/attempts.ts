// How the demo's worker sends: days of retries in seconds. Both sides of the wire need to know.

/** An attempt that has no answer after this is given up, in milliseconds. */
export const TIMEOUT_MS = 2_000;

/** The shortest lease there is for it: this long the webhooks under way wait when their worker is killed. */
export const LEASE_MS = TIMEOUT_MS + 5_000;

export const RETRY_SCHEDULE_MS = [300, 600, 1_000, 1_000, 2_000, 2_000, 2_000, 2_000];
