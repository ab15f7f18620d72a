// Starts the embedded PostgreSQL of a folder for each line of its input that names one, and answers each line with
// how that went. Stops those that it started when its input ends.
import { createInterface } from "node:readline";
import { type EmbeddedPostgres, startEmbeddedPostgres } from "../../store/embedded/startEmbeddedPostgres.ts";

const started: EmbeddedPostgres[] = [];

async function start(dataDir: string): Promise<object> {
  if (dataDir === "") return {};
  try {
    const server = await startEmbeddedPostgres({ dataDir });
    started.push(server);
    return { url: server.url };
  } catch (error) {
    const { name, message } = error as Error;
    return { name, message };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await start(line))}\n`);
}
for (const server of started) await server.stop();
