import { createReceiver, redisInbox } from "@fencepost/receiver";
import { Redis } from "ioredis";

const { REDIS_URL = "redis://localhost:6379", WEBHOOK_SECRET = "" } = process.env;
export const client = new Redis(REDIS_URL);
export const receiver = createReceiver({ secrets: WEBHOOK_SECRET, inbox: redisInbox({ client }) });
