export type { AdapterOptions } from "./answer.ts";
export type { BodyLimits } from "./body.ts";
export { decideReceipt, type InboxState, type ReceiptDecision } from "./decide.ts";
export {
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
  StaleTimestampError,
  WebhookRefusedError,
} from "./errors.ts";
export { fetchHandler, readFetchRequest } from "./fetchAdapter.ts";
export type { WebhookHeaders } from "./headers.ts";
export type { Inbox, InboxEntry } from "./inbox.ts";
export { type MemoryTransaction, memoryInbox } from "./memoryInbox.ts";
export type { WebhookMessage, WebhookSource } from "./message.ts";
export { type NodeRequest, nodeHandler, readNodeRequest } from "./nodeAdapter.ts";
export {
  ensureInbox,
  inboxMigration,
  postgresInbox,
  type SqlClient,
  type SqlPool,
  type SqlPoolClient,
} from "./postgresInbox.ts";
export {
  createReceiver,
  type Receipt,
  type Receiver,
  type ReceiverOptions,
  type WebhookHandler,
} from "./receiver.ts";
export { verifyWebhook, type WebhookRequest } from "./verify.ts";
