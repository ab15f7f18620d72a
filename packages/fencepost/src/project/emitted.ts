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

/**
 * Turns what a handler emitted for one event into messages, checked against the declared shapes. Throws
 * {@link UndeclaredMessageError}, {@link DuplicateMessageError} or `InvalidMessageError`.
 */
export async function emittedMessages(
  emissions: readonly Emission[],
  event: StoredEvent,
  shapes: MessageShapes,
): Promise<readonly Message[]> {
  const network = event.token.slice(0, event.token.indexOf("-"));
  const messages = new Map<string, Message>();
  for (const { type, data, key } of emissions) {
    const shape = Object.hasOwn(shapes, type) ? shapes[type] : undefined;
    if (!shape) throw new UndeclaredMessageError(type, event.token, "is not declared under messages");
    const result = await shape["~standard"].validate(data);
    if (result.issues) {
      throw new UndeclaredMessageError(
        type,
        event.token,
        `does not fit its shape: ${describeIssues(result.issues)}`,
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
        // What a producer that is no chain has stored is of no transaction.
        ...(event.txHash !== "" && {
          source: { network, contract_id: event.contractId, ledger: event.ledger, tx_hash: event.txHash },
        }),
      }),
    );
  }
  return [...messages.values()];
}
