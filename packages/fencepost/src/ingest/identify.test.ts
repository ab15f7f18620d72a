import { scv } from "@fencepost/simulator";
import { expect, test } from "vitest";
import type { SourceEvent } from "../source/source.ts";
import { loadDecoder } from "../xdr/decode.ts";
import { decideStored } from "./decideStored.ts";
import { contentHash, identifyEvent } from "./identify.ts";

const event: SourceEvent = {
  id: "0270982320066920448-0000000002",
  type: "contract",
  ledger: 63_092_988,
  closedAt: "2026-06-19T00:21:26Z",
  contractId: scv.contractId("a"),
  txHash: "ab".repeat(32),
  topics: [scv.sym("a"), scv.sym("b")],
  value: scv.u32(1),
};

test("an event gets the token of its place in the chain", async () => {
  const chain = { stream: "pubnet", epoch: "20150930" };
  expect(identifyEvent(chain, event, await loadDecoder())).toMatchObject({
    token: "pubnet-20150930-0063092988-0000000-0000-0000000002",
    quarantineReason: null,
  });
});

test("the content hash changes with everything that is content", () => {
  const others: Partial<SourceEvent>[] = [
    { type: "system" },
    { contractId: scv.contractId("b") },
    { contractId: null },
    { txHash: "cd".repeat(32) },
    { ledger: 63_092_989 },
    { closedAt: "2026-06-19T00:21:27Z" },
    { topics: [scv.sym("a")] },
    { topics: [scv.sym("b"), scv.sym("a")] },
    { topics: [], value: scv.sym("a") },
    { value: scv.u32(2) },
    // The same bytes, cut elsewhere.
    { topics: [scv.sym("a"), scv.sym("b"), scv.u32(1)], value: "" },
  ];
  const hashes = [event, ...others.map((other) => ({ ...event, ...other }))].map((each) =>
    contentHash(each).toString("hex"),
  );
  expect(new Set(hashes).size).toBe(others.length + 1);
});

test("the content hash does not change with how a source writes the same: time, fractions, base64 padding", () => {
  const hash = contentHash(event);
  for (const closedAt of [
    "2026-06-19T00:21:26.000Z",
    "2026-06-19T02:21:26+02:00",
    "2026-06-19T00:21:26.9Z",
  ]) {
    expect(contentHash({ ...event, closedAt })).toEqual(hash);
  }
  expect(contentHash({ ...event, value: scv.u32(1).replace(/=+$/, "") })).toEqual(hash);
});

test("an event is new, the same again, or a conflict", () => {
  const hash = contentHash(event);
  expect(decideStored(undefined, hash)).toBe("new");
  expect(decideStored(contentHash(event), hash)).toBe("replay");
  expect(decideStored(contentHash({ ...event, value: scv.u32(2) }), hash)).toBe("conflict");
});

test("what was identified stays as it is when other events are, however large they are", async () => {
  const decoder = await loadDecoder();
  const chain = { stream: "pubnet", epoch: "20150930" };
  const large = { ...event, value: scv.bytes(Buffer.alloc(200_000, 7)) };
  const first = identifyEvent(chain, event, decoder);
  const second = identifyEvent(chain, large, decoder);
  expect(identifyEvent(chain, event, decoder)).toEqual(first);
  expect(second.contentHash).toEqual(contentHash(large));
  expect(first.contentHash).toEqual(contentHash(event));
  expect(second.contentHash).not.toEqual(first.contentHash);
});

test("a value is set aside exactly where the decoder refuses it, however its base64 is written", async () => {
  const decoder = await loadDecoder();
  const chain = { stream: "pubnet", epoch: "20150930" };
  const plain = scv.bytes(Buffer.from("00fbefbeffffff", "hex"));
  expect(plain).toMatch(/[+].*[/].*=$/);
  const written = [
    plain,
    plain.replace(/=+$/, ""),
    ` ${plain}`,
    plain.replace("+", "-").replace("/", "_"),
    plain.replace(/.(=+)$/, "$1"),
    `${plain.slice(0, 8)}=${plain.slice(8)}`,
    `${plain}AAAA`,
    `${plain.slice(0, -4)}!!!!`,
    "",
  ];
  for (const value of written) {
    let refused = false;
    try {
      decoder.decode(value);
    } catch {
      refused = true;
    }
    const { quarantineReason } = identifyEvent(chain, { ...event, value }, decoder);
    expect({ value, refused: quarantineReason !== null }).toEqual({ value, refused });
  }
});
