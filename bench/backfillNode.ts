// The simulated node of the backfill benchmark, in a process of its own: its memory is not the engine's.
import { scv, startChain, startRpc, transfers } from "@fencepost/simulator";

const events = Number(process.argv[2]);
const perLedger = 50;
const chain = startChain();
const contracts = [scv.contractId("bench")];
chain.closeMany(
  Math.ceil(events / perLedger),
  transfers({ passphrase: chain.passphrase, contracts, eventsPerLedger: perLedger, seed: 1 }),
);
const rpc = await startRpc({ chain });
process.stdout.write(`${JSON.stringify({ url: rpc.url, latest: chain.latest })}\n`);
