import type { FencingToken } from "@fencepost/token";
import type { StandardSchemaV1 } from "@standard-schema/spec";
import type { NodePgDatabase } from "drizzle-orm/node-postgres";
import type { PgTable } from "drizzle-orm/pg-core";
import { isMessageType } from "../message/payload.ts";
import type { ScValue } from "../xdr/scValue.ts";
import { type Contract, type ContractWithId, type EventData, isDiscovered } from "./contract.ts";

/** An event as a handler sees it. */
export interface ProjectedEvent<Name extends string = string, Data = unknown> {
  readonly token: FencingToken;
  readonly name: Name;
  /** What the contract's schema made of topics and value. */
  readonly data: Data;
  readonly contractId: string;
  readonly ledger: number;
  readonly closedAt: Date;
  readonly txHash: string;
  /** Topics and value with their types, without any loss. */
  readonly topics: readonly ScValue[];
  readonly value: ScValue;
}

/**
 * The tables of the projection's own schema. What a handler runs is part of the transaction of its batch, and can
 * only be undone by throwing: no transactions of its own, one statement at a time, nothing after it returned.
 */
export type ProjectionDb = Pick<
  NodePgDatabase,
  | "select"
  | "selectDistinct"
  | "selectDistinctOn"
  | "insert"
  | "update"
  | "delete"
  | "execute"
  | "$count"
  | "with"
  | "$with"
>;

export type MessageShapes = { readonly [type: string]: StandardSchemaV1 };

/**
 * Puts a message into the transaction of the handler. Twice with one type for one event needs a `key`. The data is
 * read when the handler has returned: do not change it after.
 */
export type Emit<Messages extends MessageShapes> = <Type extends keyof Messages & string>(
  type: Type,
  data: StandardSchemaV1.InferInput<Messages[Type]>,
  options?: { readonly key?: string },
) => void;

export interface HandlerContext<Event, Messages extends MessageShapes> {
  readonly event: Event;
  readonly db: ProjectionDb;
  readonly emit: Emit<Messages>;
}

type Contracts = { readonly [alias: string]: Contract };

type HandlersOf<C extends Contracts, Messages extends MessageShapes> = {
  readonly [Key in HandlerKey<C>]?: (
    context: HandlerContext<EventFor<C, Key>, Messages>,
  ) => Promise<void> | void;
};

type HandlerKey<C extends Contracts> = {
  [Alias in keyof C & string]: `${Alias}:${keyof C[Alias]["events"] & string}`;
}[keyof C & string];

type EventFor<C extends Contracts, Key extends string> = Key extends `${infer Alias}:${infer Name}`
  ? Alias extends keyof C
    ? Name extends keyof C[Alias]["events"] & string
      ? ProjectedEvent<Name, EventData<C[Alias]["events"][Name]>>
      : never
    : never
  : never;

export interface ProjectionInput<C extends Contracts, Messages extends MessageShapes> {
  /** 1 to 48 of a-z 0-9 _, beginning with a letter: the schema of its views. */
  readonly name: string;
  /** Raised when tables, messages or handlers change: the new version is built beside the old one. */
  readonly version: number;
  readonly contracts: C;
  readonly tables: { readonly [alias: string]: PgTable };
  /** Every message type that a handler may emit, and the shape of its data. */
  readonly messages?: Messages;
  readonly on: HandlersOf<C, Messages>;
}

/** A projection without its types: what the engine runs. */
export interface Projection {
  readonly kind: "projection";
  readonly name: string;
  readonly version: number;
  readonly contracts: Contracts;
  readonly tables: { readonly [alias: string]: PgTable };
  readonly messages: MessageShapes;
  readonly on: { readonly [key: string]: Handler | undefined };
}

type Handler = (context: HandlerContext<ProjectedEvent, MessageShapes>) => Promise<void> | void;

/**
 * Declares a projection: tables that handlers keep up to date from events, and the messages that they emit, in
 * one transaction with its cursor. Throws a `TypeError` for a name, a version, a message type or a handler key
 * that cannot be.
 */
export function defineProjection<C extends Contracts, Messages extends MessageShapes = Record<never, never>>(
  input: ProjectionInput<C, Messages>,
): Projection {
  const { name, version, contracts, tables } = input;
  const messages: MessageShapes = input.messages ?? {};
  // 48: the schema of a version is named <name>_v<version>, and PostgreSQL cuts names at 63 bytes.
  if (!/^[a-z][a-z0-9_]{0,47}$/.test(name) || /_v\d+$/.test(name) || isReservedSchema(name)) {
    throw new TypeError(
      `The projection name ${JSON.stringify(name)} cannot be a schema: use 1 to 48 of a-z 0-9 _, beginning with ` +
        'a letter, not ending in _v and digits, and not "public", "fencepost", "information_schema" or "pg_…".',
    );
  }
  if (!Number.isInteger(version) || version < 1 || version > 1_000_000) {
    throw new TypeError(`The version of projection ${name} is ${version}: use 1, 2, 3 …`);
  }
  const aliasOf = new Map<string, string>();
  for (const [alias, contract] of Object.entries(contracts)) {
    if (alias.includes(":")) {
      throw new TypeError(
        `Projection ${name} calls a contract ${JSON.stringify(alias)}: leave out the colon.`,
      );
    }
    // Two handlers for one event could emit one message twice, and which is kept would be left to chance.
    const known = isDiscovered(contract) ? contract.id.rule : contract.id;
    const other = aliasOf.get(known);
    if (other !== undefined) {
      throw new TypeError(`Projection ${name} has the contract ${known} twice, as ${other} and as ${alias}.`);
    }
    aliasOf.set(known, alias);
  }
  const streams = new Set(Object.values(contracts).map(producerOf));
  if (streams.size > 1) {
    throw new TypeError(
      `Projection ${name} follows more than one stream: make one for each producer, and one for the chain.`,
    );
  }
  for (const [type, schema] of Object.entries(messages)) {
    if (!isMessageType(type)) {
      throw new TypeError(
        `Projection ${name} declares the message type ${JSON.stringify(type)}: use up to 128 of ` +
          "a-z A-Z 0-9 _ - in parts between dots.",
      );
    }
    if (Object.values(contracts).some((contract) => producerOf(contract) && type in contract.events)) {
      throw new TypeError(
        `Projection ${name} declares the message type ${type}, which the producer's own event is sent as. Rename it.`,
      );
    }
    if (typeof schema?.["~standard"]?.validate !== "function") {
      throw new TypeError(`The message ${type} of projection ${name} has no schema: use z.object({ … }).`);
    }
  }
  for (const [key, handler] of Object.entries(input.on)) {
    const [alias = "", event = ""] = splitOnce(key);
    const contract = Object.hasOwn(contracts, alias) ? contracts[alias] : undefined;
    if (!contract || !Object.hasOwn(contract.events, event)) {
      throw new TypeError(
        `Projection ${name} handles ${JSON.stringify(key)}, but no contract of its declares it.`,
      );
    }
    if (typeof handler !== "function") {
      throw new TypeError(`The handler ${JSON.stringify(key)} of projection ${name} is not a function.`);
    }
  }
  // A handler takes exactly the events of its key, so the loss of that type is sound.
  const on = input.on as unknown as Projection["on"];
  return { kind: "projection", name, version, contracts, tables, messages, on };
}

/** The producer's stream that a projection follows; undefined: that of the chain. */
export function producedStream({ contracts }: Pick<Projection, "contracts">): string | undefined {
  return Object.values(contracts).map(producerOf)[0];
}

function producerOf(contract: Contract): string | undefined {
  return isDiscovered(contract) ? undefined : (contract as ContractWithId).stream;
}

/** Under which alias a projection has the contract of an event: by its id, or else by a rule that found it. */
export function contractOf(
  { contracts }: Pick<Projection, "contracts">,
  event: { readonly contractId: string | null; readonly foundBy: readonly string[] },
): { readonly alias: string; readonly contract: Contract } | undefined {
  const all = Object.entries(contracts);
  const found =
    all.find(([, contract]) => contract.id === event.contractId) ??
    all.find(([, contract]) => isDiscovered(contract) && event.foundBy.includes(contract.id.rule));
  return found && { alias: found[0], contract: found[1] };
}

/** How the events of a projection are found: by contract ids, and by the rules that find others. */
export function contractsToRead({ contracts }: Pick<Projection, "contracts">): {
  readonly contractIds: readonly string[];
  readonly rules: readonly string[];
} {
  const all = Object.values(contracts);
  return {
    contractIds: all.flatMap((contract) => (isDiscovered(contract) ? [] : [contract.id])),
    rules: all.flatMap((contract) => (isDiscovered(contract) ? [contract.id.rule] : [])),
  };
}

function isReservedSchema(name: string): boolean {
  return ["public", "fencepost", "information_schema"].includes(name) || name.startsWith("pg_");
}

function splitOnce(key: string): readonly [string, string] {
  const at = key.indexOf(":");
  return [key.slice(0, at), key.slice(at + 1)];
}
