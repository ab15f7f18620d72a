import { deriveEventId } from "@fencepost/token";
import type { MessageShapes } from "../config/projection.ts";
import { buildMessage, type Message } from "../message/payload.ts";
import type { StoredEvent } from "../store/postgres/projections.ts";
import { describeIssues } from "./decodeEvent.ts";
import { DuplicateMessageError, UndeclaredMessageError } from "./errors.ts";

export interface Emission {
  readonly type: string;
  readonly data: unknown;
  readonly key: string;
}

/** Turns what a handler emitted for one event into messages, checked against the declared shapes. */
export async function emittedMessages(
  emissions: readonly Emission[],
  event: StoredEvent,
  shapes: MessageShapes,
  network: string,
): Promise<readonly Message[]> {
  const messages = new Map<string, Message>();
  for (const { type, data, key } of emissions) {
    const shape = Object.hasOwn(shapes, type) ? shapes[type] : undefined;
    if (!shape) {
      throw new UndeclaredMessageError(
        `The handler emitted ${JSON.stringify(type)}, which its projection does not declare under messages.`,
      );
    }
    const result = await shape["~standard"].validate(data);
    if (result.issues) {
      throw new UndeclaredMessageError(
        `The data of the message ${JSON.stringify(type)} does not fit its shape: ${describeIssues(result.issues)}`,
      );
    }
    const eventId = deriveEventId(event.token, type, key);
    if (messages.has(eventId)) throw new DuplicateMessageError(type, event.token);
    messages.set(
      eventId,
      buildMessage({
        eventId,
        type,
        token: event.token,
        occurredAt: event.closedAt.toISOString().replace(".000Z", "Z"),
        data: result.value,
        source: { network, contract_id: event.contractId, ledger: event.ledger, tx_hash: event.txHash },
      }),
    );
  }
  return [...messages.values()];
}
