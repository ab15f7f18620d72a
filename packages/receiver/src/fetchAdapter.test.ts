import { describe, expect, test, vi } from "vitest";
import { adapterConformance } from "./__tests__/adapterConformance.ts";
import { fetchListener } from "./__tests__/httpServer.ts";
import { NOW, SECRET, signedRequest } from "./__tests__/signedRequest.ts";
import { thrown } from "./__tests__/thrown.ts";
import {
  BodyAlreadyReadError,
  BodyTooLargeError,
  createReceiver,
  fetchHandler,
  memoryInbox,
  readFetchRequest,
} from "./index.ts";

const URL = "https://customer.example/webhooks";

describe("fetchHandler", () => {
  adapterConformance((receiver, handler, options) => fetchListener(fetchHandler(receiver, handler, options)));

  test("tells the owner that the body was read before", async () => {
    const receiver = createReceiver({ secrets: SECRET, inbox: memoryInbox({ max: 9 }), now: () => NOW });
    const onError = vi.fn();
    const request = new Request(URL, { method: "POST", ...signedRequest({}) });
    await request.json();
    expect((await fetchHandler(receiver, () => {}, { onError })(request)).status).toBe(500);
    expect(onError).toHaveBeenCalledExactlyOnceWith(expect.any(BodyAlreadyReadError), 500);
  });
});

describe("readFetchRequest", () => {
  const streamed = (body: ReadableStream) => new Request(URL, { method: "POST", body, duplex: "half" });

  test("reads a body that comes in pieces", async () => {
    const body = new ReadableStream({
      start(controller) {
        for (const piece of ["a", "", "bc"]) controller.enqueue(new TextEncoder().encode(piece));
        controller.close();
      },
    });
    expect((await readFetchRequest(streamed(body))).body).toEqual(new TextEncoder().encode("abc"));
  });

  test("stops a stream without end at twice the limit, and tells the source to stop", async () => {
    let sent = 0;
    let cancelled = false;
    const body = new ReadableStream(
      {
        pull(controller) {
          sent += 1_000;
          controller.enqueue(new Uint8Array(1_000));
        },
        cancel() {
          cancelled = true;
        },
      },
      { highWaterMark: 0 },
    );
    const limits = { maxBodyBytes: 5_000, bodyTimeoutMs: 20_000 };
    expect(await thrown(() => readFetchRequest(streamed(body), limits))).toBeInstanceOf(BodyTooLargeError);
    expect(cancelled).toBe(true);
    expect(sent).toBe(11_000);
  });

  test("takes a request without a body for an empty one", async () => {
    expect((await readFetchRequest(new Request(URL))).body).toEqual(new Uint8Array());
  });
});
