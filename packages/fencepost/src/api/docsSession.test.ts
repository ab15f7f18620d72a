import { execFile, spawnSync } from "node:child_process";
import { readFile } from "node:fs/promises";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, it } from "vitest";
import { startTestApi, type TestApi } from "../__tests__/support/api.ts";

let api: TestApi;
beforeAll(async () => {
  api = await startTestApi();
});
afterAll(() => api.close());

const hasCurl = spawnSync("curl", ["--version"]).status === 0;

it.skipIf(!hasCurl)("the session of docs/http.md runs as it is written", async () => {
  const page = await readFile(new URL("../../../../docs/http.md", import.meta.url), "utf8");
  const session = /<!-- session -->\n```sh\n([\s\S]*?)```/.exec(page)?.[1] ?? "";
  const env = { ...process.env, FENCEPOST_URL: api.url, FENCEPOST_KEY: api.key };
  const { stdout, stderr } = await promisify(execFile)("bash", ["-euc", session], { env, timeout: 30_000 });
  expect(stderr).toBe("");
  const [webhook, event, trace] = stdout.split(/(?<=\})(?=\{)/).map((text) => JSON.parse(text));
  expect(webhook.secrets).toEqual([expect.stringMatching(/^whsec_/)]);
  expect(event.created).toMatchObject([{ webhook_id: webhook.id, event_id: "order_4711", state: "pending" }]);
  expect(trace.messages).toMatchObject([{ type: "order.paid", deliveries: [{ id: event.created[0].id }] }]);
});
