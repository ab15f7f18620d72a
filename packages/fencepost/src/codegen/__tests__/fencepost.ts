// What generated files import from the package, and no more: a test that runs them does not load the engine.
export { defineContract, type EventData } from "../../config/contract.ts";
export { defineProjection } from "../../config/projection.ts";
export { assetEvents } from "../../xdr/assetEvents.ts";
export { rawEvent } from "../../xdr/eventReader.ts";
export type { ScValue } from "../../xdr/scValue.ts";
export { type ContractError, type SpecUserTypes, specEvent } from "../../xdr/specEvent.ts";
