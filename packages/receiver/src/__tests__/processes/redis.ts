import { Redis } from "ioredis";
import { redisInbox } from "../../redisInbox.ts";
import { handleForEver } from "./handleForEver.ts";

const client = new Redis(process.argv[2] ?? "");
await handleForEver(redisInbox({ client, prefix: "killed", leaseMs: 2_000 }), () => {});
