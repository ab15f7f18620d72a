import { readFetchRequest } from "@fencepost/receiver";
import type pg from "pg";
import { receiver, recordLock } from "./receiver.ts";

export async function receive(request: Request, client: pg.PoolClient) {
  const message = receiver.verify(await readFetchRequest(request)); // a WebhookRefusedError has the status
  await client.query("BEGIN");
  try {
    await receiver.once(client, message, recordLock);
    await client.query("COMMIT"); // answer with 200 only after this
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  }
}
