import { expect, test } from "vitest";
import { decideMessage } from "./decideMessage.ts";

test("an id without a record is new, with the same content it exists, with other content it does not match", () => {
  const hash = Uint8Array.of(1, 2);
  expect(decideMessage(undefined, hash)).toBe("new");
  expect(decideMessage(Buffer.from(hash), hash)).toBe("existing");
  expect(decideMessage(Uint8Array.of(1, 3), hash)).toBe("mismatch");
  expect(decideMessage(Uint8Array.of(1), hash)).toBe("mismatch");
});
