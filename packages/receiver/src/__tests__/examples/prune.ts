import { receiver } from "./receiver.ts";

const THIRTY_DAYS_MS = 30 * 86_400_000;

// Once a day, in one process or in all
export async function prune() {
  return receiver.pruneInbox({ olderThan: new Date(Date.now() - THIRTY_DAYS_MS) });
}
