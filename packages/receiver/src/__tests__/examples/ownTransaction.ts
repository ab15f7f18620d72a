import { answerError, isReceiptQuery, readFetchRequest } from "@fencepost/receiver";
import type pg from "pg";
import { receiver, recordLock } from "./receiver.ts";

export async function receive(request: Request, client: pg.PoolClient): Promise<Response> {
  try {
    const received = receiver.open(await readFetchRequest(request));
    if (isReceiptQuery(received)) return Response.json(await receiver.answerQuery(received));
    await client.query("BEGIN");
    try {
      const { outcome } = await receiver.once(client, received, recordLock);
      await client.query("COMMIT"); // answer with 200 only after this
      return Response.json({ outcome });
    } catch (error) {
      await client.query("ROLLBACK");
      throw error;
    }
  } catch (error) {
    const answer = answerError(error); // the sender reads more of it than the status
    return new Response(answer.body, answer);
  }
}
