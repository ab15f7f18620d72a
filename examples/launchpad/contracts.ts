// The contracts of the launchpad: where they are, and what their events look like.
import { defineContract } from "fencepost";
import { z } from "zod";

const address = z.string(); // G… or C…
const amount = z.bigint(); // i128, in the token's smallest unit
const id = z.bigint(); // u64
const time = z.bigint(); // u64, in unix seconds

/** The token that is pledged and streamed. Its events are those of SEP-41, so any other token reads the same. */
export const launchToken = defineContract({
  id: "CDBXHUFX4NJTV2ZGYPTYCNJQJYNFNFC4PG54ZLTWNIT5QTQLWT5RDCZ4",
  startLedger: "oldest",
  events: {
    // On the chain these are topics and a bare number: here they get names.
    mint: { topics: ["to"], value: "amount", schema: z.object({ to: address, amount }) },
    transfer: {
      topics: ["from", "to"],
      value: "amount",
      schema: z.object({ from: address, to: address, amount }),
    },
  },
});

const pledge = {
  topics: ["campaign_id", "backer"],
  value: "amount",
  schema: z.object({ campaign_id: id, backer: address, amount }),
};

/** Campaigns collect pledges until they reach their goal; those that do not give them back. */
export const campaign = defineContract({
  id: "CDY7CN4RUWAL3IVMX7T3TL5XEYL7TJZ522BXI3LU3EPIDH2KB5SKMGUX",
  startLedger: "oldest",
  events: {
    created: z.object({ id, owner: address, goal: amount, deadline: time }),
    pledged: pledge,
    funded: {
      topics: ["campaign_id"],
      value: "raised",
      schema: z.object({ campaign_id: id, raised: amount }),
    },
    refunded: pledge,
  },
});

/** Streams pay a recipient little by little (vesting). */
export const stream = defineContract({
  id: "CA5PGMCGXFIME53VTXCGM5X6PPC6D2RKZQNV7DEP3MQG43F6BUACKUFW",
  startLedger: "oldest",
  events: {
    created: z.object({ stream_id: id, recipient: address, total: amount, start: time, end: time }),
    withdrawn: z.object({ stream_id: id, amount }),
    cancelled: z.object({ stream_id: id, returned: amount }),
  },
});
