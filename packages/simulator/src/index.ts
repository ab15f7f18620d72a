export { transfers } from "./bulk.ts";
export {
  type Chain,
  ChainError,
  type ChainOptions,
  type EventRow,
  type EventSpec,
  type Ledger,
  PUBNET_PASSPHRASE,
  startChain,
  TESTNET_PASSPHRASE,
} from "./chain.ts";
export {
  type Endpoint,
  EndpointFullError,
  type EndpointHandler,
  type EndpointRequest,
  type Misbehaviour,
  type Reply,
  startEndpoint,
} from "./endpoint.ts";
export {
  everyFault,
  type Fault,
  type FaultName,
  type FaultPlan,
  type FaultRates,
  losesRows,
} from "./faults.ts";
export { type LakeLayout, lakeKey, writeLake } from "./lake.ts";
export { type LakeFault, type LakeRequest, type LakeServer, startLakeServer } from "./lakeServer.ts";
export { batchXdr, type LedgerForm, ledgerXdr } from "./ledgerXdr.ts";
export { type Direction, startProxy, type TcpProxy } from "./proxy.ts";
export { type Random, seededRandom } from "./random.ts";
export { chainFromRecorded, type RecordedLedger, readRecordedLedger } from "./recorded.ts";
export { WaitTimeoutError } from "./recorder.ts";
export { type NodeSettings, type RpcAnswer, type RpcRequest, type RpcServer, startRpc } from "./rpcServer.ts";
/** Builders of contract values (`scv.sym("fee")`), contract ids and account ids. */
export * as scv from "./scval.ts";
