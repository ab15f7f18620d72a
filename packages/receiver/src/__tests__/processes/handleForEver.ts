import type { Inbox } from "../../inbox.ts";
import { createReceiver } from "../../receiver.ts";
import { NOW, SECRET, signedRequest } from "../signedRequest.ts";

/** Handles `evt_1`, says so on a line, and never ends. */
export async function handleForEver<Tx extends Base, Base>(
  inbox: Inbox<Tx, Base>,
  effect: (tx: Tx) => void,
): Promise<void> {
  const receiver = createReceiver({ secrets: SECRET, inbox, now: () => NOW });
  await receiver.handle(signedRequest({}), async (_, tx) => {
    effect(tx);
    process.stdout.write("handling\n");
    await new Promise((resolve) => setTimeout(resolve, 3_600_000));
  });
}
