export { type AdapterOptions, type Answer, answerError } from "./answer.ts";
export type { BodyLimits } from "./body.ts";
export type { ClaimTransaction } from "./claimingInbox.ts";
export {
  decideLatest,
  decideQuery,
  decideReceipt,
  type InboxState,
  type ReceiptDecision,
  type ReceiptStatus,
  type TokenOrder,
} from "./decide.ts";
export {
  AttemptFencedError,
  BodyAlreadyReadError,
  BodyTimeoutError,
  BodyTooLargeError,
  CommitBecameRollbackError,
  EventIdMismatchError,
  InboxBusyError,
  InboxFullError,
  InboxTableMissingError,
  IncompleteBodyError,
  InvalidOptionError,
  InvalidSecretError,
  InvalidSignatureError,
  MalformedBodyError,
  MalformedHeaderError,
  MissingHeaderError,
  NotInTransactionError,
  SqliteMissingError,
  StaleTimestampError,
  UnsupportedByInboxError,
  WebhookRefusedError,
  WrongConsumerError,
} from "./errors.ts";
export { fastifyWebhook } from "./fastifyAdapter.ts";
export { fetchHandler, readFetchRequest } from "./fetchAdapter.ts";
export type { WebhookHeaders } from "./headers.ts";
export type { FoundEntry, Inbox, InboxAnswer, InboxEntry, InboxQuery, LatestEntry } from "./inbox.ts";
export { memoryInbox } from "./memoryInbox.ts";
export type { WebhookMessage, WebhookSource } from "./message.ts";
export { type NodeRequest, nodeHandler, readNodeRequest } from "./nodeAdapter.ts";
export { fromDrizzle, fromPrisma } from "./ormClients.ts";
export { postgresInbox } from "./postgresInbox.ts";
export { ensureInbox, inboxMigration } from "./postgresTables.ts";
export { type AskedEvent, isReceiptQuery, type ReceiptAnswer, type ReceiptQuery } from "./receiptQuery.ts";
export {
  createReceiver,
  type Pruned,
  type Receipt,
  type Receiver,
  type ReceiverOptions,
  type WebhookHandler,
} from "./receiver.ts";
export { type RedisClient, redisInbox } from "./redisInbox.ts";
export type { SqlClient, SqlPool, SqlPoolClient } from "./sqlClient.ts";
export { type SqliteDatabase, sqliteInbox } from "./sqliteInbox.ts";
export { verifyWebhook, type WebhookRequest } from "./verify.ts";
