import { createServer } from "node:http";
import { fastifyWebhook, fetchHandler, nodeHandler } from "@fencepost/receiver";
import express from "express";
import fastify from "fastify";
import { receiver, recordLock } from "./receiver.ts";

// Express: before express.json()
export const app = express();
app.post("/webhooks", nodeHandler(receiver, recordLock));

// Fastify
export const fastifyApp = fastify();
fastifyApp.register(fastifyWebhook("/webhooks", receiver, recordLock));

// node:http
export const server = createServer(nodeHandler(receiver, recordLock));

// Next.js, Hono, workers: whatever speaks Fetch
export const POST = fetchHandler(receiver, recordLock);
