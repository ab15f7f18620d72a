import { contractOf, type Projection, producedStream } from "../config/projection.ts";
import { EventContentMismatchError, type Message } from "../message/payload.ts";
import type { DatabaseClient } from "../store/postgres/database.ts";
import { insertMessages } from "../store/postgres/messages.ts";
import { insertMisfits, type ProjectionRow, type StoredEvent } from "../store/postgres/projections.ts";
import { type Decoder, UndecodableValueError } from "../xdr/decode.ts";
import { declaredName, decodeEvent, projectedEvent, readData } from "./decodeEvent.ts";
import { type Emission, emittedMessages } from "./emitted.ts";
import { TooManyMessagesError, UnawaitedWorkError } from "./errors.ts";
import { handlerDatabase } from "./handlerDatabase.ts";
import { NO_XDR, producedName, readProduced } from "./producedEvent.ts";

export interface ApplyContext {
  readonly projection: Projection;
  readonly decoder: Decoder;
}

export interface Applied {
  readonly messages: number;
  /** Events that do not fit what is declared for them: set aside, each with its reason. */
  readonly misfits: readonly { readonly token: StoredEvent["token"]; readonly reason: string }[];
}

/** The handler of an event failed, or a message of its: the batch is rolled back. */
export class EventFailed extends Error {
  override readonly name = "EventFailed";
  readonly event: StoredEvent;
  /** `alias:name` of the handler. */
  readonly handler: string;

  constructor(event: StoredEvent, handler: string, cause: unknown) {
    super(`${handler} failed at ${event.token}`, { cause });
    this.event = event;
    this.handler = handler;
  }
}

/** Messages of one event, at the most: they are in memory together. */
const MAX_MESSAGES_PER_EVENT = 1_000;
/** Bodies that are held before they are stored, in bytes. */
const MAX_HELD_BYTES = 4 * 1024 * 1024;

/**
 * Runs the handlers over the events, in their order and in the transaction of `client`, and stores what they
 * emitted and what was set aside. Throws {@link EventFailed} at the first event that fails.
 */
export async function applyEvents(
  client: DatabaseClient,
  context: ApplyContext,
  row: ProjectionRow,
  events: readonly StoredEvent[],
): Promise<Applied> {
  const applied = await runHandlers(client, context, events, (held) => storeMessages(client, row, held));
  await insertMisfits(client, row, applied.misfits);
  return applied;
}

/**
 * Runs the handlers over the events, in their order and in the transaction of `client`. `keep` gets what they emitted,
 * some at a time. Throws {@link EventFailed} at the first event that fails.
 */
export async function runHandlers(
  client: DatabaseClient,
  context: ApplyContext,
  events: readonly StoredEvent[],
  keep: (held: readonly EmittedMessage[]) => Promise<void>,
): Promise<Applied> {
  const misfits: { token: StoredEvent["token"]; reason: string }[] = [];
  let held: EmittedMessage[] = [];
  let heldBytes = 0;
  let messages = 0;
  for (const event of events) {
    if (event.skipped) continue;
    const outcome = await handleEvent(client, context, event);
    if ("misfit" in outcome) misfits.push({ token: event.token, reason: outcome.misfit });
    else {
      messages += outcome.emitted.length;
      held.push(...outcome.emitted);
      heldBytes += outcome.emitted.reduce((sum, { message }) => sum + message.body.length, 0);
    }
    if (heldBytes > MAX_HELD_BYTES) {
      await keep(held);
      held = [];
      heldBytes = 0;
    }
  }
  await keep(held);
  return { messages, misfits };
}

export interface EmittedMessage {
  readonly event: StoredEvent;
  readonly handler: string;
  readonly message: Message;
}

type Outcome = { readonly emitted: readonly EmittedMessage[] } | { readonly misfit: string };

const NOTHING: Outcome = { emitted: [] };

async function handleEvent(
  client: DatabaseClient,
  { projection, decoder }: ApplyContext,
  event: StoredEvent,
): Promise<Outcome> {
  const found = contractOf(projection, event);
  if (!found) return NOTHING;
  const { alias, contract } = found;
  const shapes = contract.events;
  let handler = alias;
  try {
    const isProduced = producedStream(projection) !== undefined;
    const name = isProduced ? producedName(event, shapes) : declaredName(event, shapes, decoder);
    if (name === null) return NOTHING;
    const shape = shapes[name];
    const run = projection.on[`${alias}:${name}`];
    if (!shape || !run) return NOTHING;
    handler = `${alias}:${name}`;
    const decoded = isProduced ? NO_XDR : decodeEvent(event, decoder);
    const read = isProduced ? await readProduced(shape, event) : await readData(shape, decoded);
    if ("misfit" in read) return read;

    const scope = handlerDatabase(client);
    const emissions: Emission[] = [];
    let returned = false;
    try {
      await run({
        event: projectedEvent(event, decoded, name, read.data),
        db: scope.db,
        emit(type, data, options) {
          if (returned) throw new UnawaitedWorkError("emitted a message after it had returned");
          if (emissions.length === MAX_MESSAGES_PER_EVENT) {
            throw new TooManyMessagesError(event.token, MAX_MESSAGES_PER_EVENT);
          }
          emissions.push({ type, data, key: options?.key ?? "" });
        },
      });
    } finally {
      returned = true;
      scope.close();
    }
    scope.check();
    const messages = await emittedMessages(emissions, event, projection.messages);
    return { emitted: messages.map((message) => ({ event, handler, message })) };
  } catch (cause) {
    // What ingest could decode and this version of the SDK cannot.
    if (cause instanceof UndecodableValueError) return { misfit: cause.message };
    throw new EventFailed(event, handler, cause);
  }
}

/** Emits, or keeps silent what a rebuild makes for events that the version before it handled. */
async function storeMessages(
  client: DatabaseClient,
  row: ProjectionRow,
  held: readonly EmittedMessage[],
): Promise<void> {
  const isSilent = ({ event }: EmittedMessage): boolean =>
    row.emitAfter === null || event.seq <= row.emitAfter;
  const silent = held.filter(isSilent).map(({ message }) => message);
  const loud = held.filter((item) => !isSilent(item)).map(({ message }) => message);
  // A silent message that is on record with other content was sent as it was then: it stays.
  await insertMessages(client, silent, "suppressed", row.name);
  const { mismatched } = await insertMessages(client, loud, "emitted", row.name);
  const first = held.find(({ message }) => message === mismatched[0]);
  if (first) {
    const { eventId, token } = first.message;
    throw new EventFailed(first.event, first.handler, new EventContentMismatchError(eventId, token));
  }
}
