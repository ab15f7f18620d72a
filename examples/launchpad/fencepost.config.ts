import { defineConfig, stellarRpc } from "fencepost";
import { campaignsProjection } from "./projections/campaigns.ts";
import { streamsProjection } from "./projections/streams.ts";
import { tokensProjection } from "./projections/tokens.ts";

export default defineConfig({
  source: stellarRpc({ network: "testnet", urls: process.env["STELLAR_RPC_URL"] }),
  projections: [tokensProjection, campaignsProjection, streamsProjection],
});
