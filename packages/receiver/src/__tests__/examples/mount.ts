import { createServer } from "node:http";
import { fetchHandler, nodeHandler } from "@fencepost/receiver";
import express from "express";
import { receiver, recordLock } from "./receiver.ts";

// Express: before express.json()
export const app = express();
app.post("/webhooks", nodeHandler(receiver, recordLock));

// node:http
export const server = createServer(nodeHandler(receiver, recordLock));

// Next.js, Hono, workers: whatever speaks Fetch
export const POST = fetchHandler(receiver, recordLock);
