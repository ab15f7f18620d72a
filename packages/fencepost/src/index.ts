export { InvalidNetworkError } from "./address/addressRules.ts";
export { type AuditOptions, AuditRangeError, audit } from "./audit/audit.ts";
export type { AuditReport, Findings } from "./audit/report.ts";
export {
  type CodegenOptions,
  type CodegenResult,
  FileNotGeneratedError,
  NoEventSpecsError,
  runCodegen,
} from "./codegen/codegen.ts";
export { address, i128, token, u64 } from "./config/columns.ts";
export {
  type AuditSettings,
  type Config,
  type ConfigInput,
  type DeliveriesPlace,
  type DeliverSettings,
  DuplicateMessageTypeError,
  defineConfig,
  type HttpSettings,
} from "./config/config.ts";
export {
  type Contract,
  type ContractInput,
  type ContractWithId,
  type DiscoveredBy,
  type DiscoveredContract,
  defineContract,
  defineProducer,
  discoveredBy,
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
export { discoveryOf } from "./discovery.ts";
export type { DispatchInput, ReplayRange, RotateOptions } from "./dispatch/dispatcher.ts";
export {
  DeletedWebhookError,
  InactiveWebhookError,
  InvalidRangeError,
  InvalidWebhookError,
  UnknownDeliveryError,
  UnknownWebhookError,
} from "./dispatch/errors.ts";
export type { WebhookInput } from "./dispatch/webhookInput.ts";
export {
  createDispatcher,
  type Dispatcher,
  type DispatcherDeliverOptions,
  type DispatcherOptions,
} from "./dispatcher.ts";
export { type Engine, type EngineOptions, prepare, startEngine } from "./engine.ts";
export {
  type ExportOptions,
  ExportRangeError,
  type ExportReport,
  exportEvents,
} from "./export/exportEvents.ts";
export { type Appended, openProducer, type ProducedEvent, type Producer } from "./ingest/append.ts";
export {
  type BackfillOptions,
  type BackfillProgress,
  type BackfillReport,
  backfill,
} from "./ingest/backfill.ts";
export { type BeginEpochOptions, type BegunEpoch, beginEpoch } from "./ingest/beginEpoch.ts";
export type { WriteContext } from "./ingest/commit.ts";
export type { Discovery, DiscoveryRule } from "./ingest/discovery.ts";
export {
  BackfillRangeError,
  EventConflictError,
  FilterSetChangedError,
  GapError,
  ProducedConflictError,
  ProducerStreamError,
  StreamMismatchError,
} from "./ingest/errors.ts";
export { type SecondOpinion, secondOpinion } from "./ingest/secondOpinion.ts";
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
export { UnknownContractError } from "./source/contractCode.ts";
export { type DataLakeOptions, dataLake } from "./source/dataLake/dataLake.ts";
export {
  LakeConfigError,
  LakeObjectError,
  LedgerChainError,
  type ObjectFault,
} from "./source/dataLake/errors.ts";
export {
  ChainResetError,
  EpochMismatchError,
  NoClassicEventsError,
  SourceUnavailableError,
  UnsupportedRpcVersionError,
  WrongNetworkError,
} from "./source/errors.ts";
export type { CustomNetwork, NetworkOption } from "./source/networks.ts";
export type { NodeState, Provider } from "./source/nodes.ts";
export {
  ContractNotRecordedError,
  type ReplayFault,
  ReplayFileError,
  ReplayFileUnreadableError,
} from "./source/replayFile/errors.ts";
export { type ReplayOptions, replay } from "./source/replayFile/replay.ts";
export type {
  AsideReason,
  LedgerRef,
  NodeEvent,
  Source,
  SourceEvent,
  SourceHead,
  SourceWindow,
  WindowRequest,
} from "./source/source.ts";
export { type StellarRpcOptions, type StellarRpcSource, stellarRpc } from "./source/stellarRpc.ts";
export type {
  Attempt,
  AttemptOutcome,
  Delivery,
  DeliveryFilter,
  DeliveryId,
  DeliveryState,
  DeliveryStore,
  DispatchReport,
  Page,
  ReplayReport,
  Resolution,
} from "./store/deliveryStore.ts";
export { type EmbeddedPostgres, startEmbeddedPostgres } from "./store/embedded/startEmbeddedPostgres.ts";
export { InvalidCursorError, TooManySecretsError } from "./store/errors.ts";
export { type Database, type DatabaseOptions, openDatabase } from "./store/postgres/database.ts";
export {
  CommitBecameRollbackError,
  ConnectionLostError,
  DatabaseFullError,
  DatabaseUnreachableError,
  MigrationError,
} from "./store/postgres/errors.ts";
export { type Gap, readGaps } from "./store/postgres/gaps.ts";
export { migrate } from "./store/postgres/migrate.ts";
export { type PostgresStoreOptions, postgresStore } from "./store/postgres/postgresStore.ts";
export {
  SchemaTakenError,
  UnsupportedTableError,
  ViewSwitchError,
} from "./store/postgres/projectionTables.ts";
export type {
  DrizzleTransaction,
  PostgresTransaction,
  PrismaTransaction,
} from "./store/postgres/transactions.ts";
export {
  DispatchIncompleteError,
  EvictionPolicyError,
  InvalidPrefixError,
  InvalidWebhookIdError,
  RedisUnreachableError,
  RedisVersionError,
} from "./store/redis/errors.ts";
export { openRedisStore, type RedisLocation } from "./store/redis/openRedisStore.ts";
export { type RedisDeliveryStore, type RedisStoreOptions, redisStore } from "./store/redis/redisStore.ts";
export { relayedStore } from "./store/redis/relayedStore.ts";
export {
  InvalidSecretsKeyError,
  readSecretsKeys,
  type Seal,
  SealedSecretError,
  sealedSecrets,
} from "./store/sealedSecrets.ts";
export type {
  JsonObject,
  JsonValue,
  Missed,
  OnUnknown,
  Ordering,
  RetryOn,
  Webhook,
  WebhookChanges,
  WebhookId,
  WebhookSecret,
} from "./store/webhook.ts";
export {
  type AssetAdmin,
  type AssetApproval,
  type AssetAuthorization,
  type AssetBurn,
  type AssetFee,
  type AssetMint,
  type AssetTransfer,
  assetEvents,
  type Cap67Amount,
  cap67Amount,
} from "./xdr/assetEvents.ts";
export { type Decoder, loadDecoder } from "./xdr/decode.ts";
export { type EventReader, type EventReading, rawEvent } from "./xdr/eventReader.ts";
export type { DecodedEvent, NativeValue, ScValue } from "./xdr/scValue.ts";
export { GarbledSectionError } from "./xdr/spec.ts";
export {
  type ContractError,
  type EventSpec,
  type SpecPlainType,
  type SpecType,
  type SpecUserType,
  type SpecUserTypes,
  specEvent,
} from "./xdr/specEvent.ts";
export { InvalidWasmError } from "./xdr/wasm.ts";
