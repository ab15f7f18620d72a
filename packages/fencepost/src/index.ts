export { InvalidNetworkError } from "./address/addressRules.ts";
export { address, i128, token, u64 } from "./config/columns.ts";
export { type Config, type ConfigInput, DuplicateMessageTypeError, defineConfig } from "./config/config.ts";
export {
  type Contract,
  type ContractInput,
  defineContract,
  type EventData,
  type EventShape,
} from "./config/contract.ts";
export {
  defineProjection,
  type Emit,
  type HandlerContext,
  type ProjectedEvent,
  type Projection,
  type ProjectionDb,
  type ProjectionInput,
} from "./config/projection.ts";
export { LeaseTooShortError } from "./deliver/deliverLoop.ts";
export {
  createDispatcher,
  type Dispatcher,
  type DispatcherOptions,
  type DispatchInput,
} from "./dispatch/dispatcher.ts";
export { InvalidWebhookError, UnknownDeliveryError, UnknownWebhookError } from "./dispatch/errors.ts";
export type { WebhookInput } from "./dispatch/webhookInput.ts";
export { type EngineOptions, prepare, startEngine } from "./engine.ts";
export { EventConflictError, FilterSetChangedError, GapError, StreamMismatchError } from "./ingest/errors.ts";
export { StaleTermError } from "./lease/term.ts";
export { EventContentMismatchError, InvalidMessageError, MAX_BODY_BYTES } from "./message/payload.ts";
export { createLog, type Log, type LogLevel } from "./observe/log.ts";
export { createMetrics, type Metrics } from "./observe/metrics.ts";
export {
  DuplicateMessageError,
  IgnoredQueryError,
  ProjectionChangedError,
  ProjectionStoppedError,
  TooManyMessagesError,
  TransactionControlError,
  UnawaitedWorkError,
  UndeclaredMessageError,
} from "./project/errors.ts";
export { SourceUnavailableError, UnsupportedRpcVersionError, WrongNetworkError } from "./source/errors.ts";
export type { CustomNetwork, NetworkOption } from "./source/networks.ts";
export type { Source, SourceEvent, SourceHead, SourceWindow, WindowRequest } from "./source/source.ts";
export { type StellarRpcOptions, stellarRpc } from "./source/stellarRpc.ts";
export type { Delivery, DeliveryState, DeliveryStore, OnUnknown, Webhook } from "./store/deliveryStore.ts";
export { type EmbeddedPostgres, startEmbeddedPostgres } from "./store/embedded/startEmbeddedPostgres.ts";
export { type Database, type DatabaseOptions, openDatabase } from "./store/postgres/database.ts";
export { type PostgresStoreOptions, postgresStore } from "./store/postgres/postgresStore.ts";
export {
  CommitBecameRollbackError,
  ConnectionLostError,
  DatabaseUnreachableError,
  MigrationError,
} from "./store/postgres/errors.ts";
export { migrate } from "./store/postgres/migrate.ts";
export {
  SchemaTakenError,
  UnsupportedTableError,
  ViewSwitchError,
} from "./store/postgres/projectionTables.ts";
export type { NativeValue, ScValue } from "./xdr/scValue.ts";
