import { zstdCompressSync } from "node:zlib";
import fc from "fast-check";
import { expect, test } from "vitest";
import { skippable } from "./__tests__/support/lakes.ts";
import { unpackFrames } from "./zstdFrames.ts";

/** Sizes around those of the pieces that zlib gives back. */
const size = fc.oneof(
  fc.integer({ min: 0, max: 2_000 }),
  fc.integer({ min: 512 * 1024 - 1, max: 512 * 1024 + 1 }),
  fc.constant(1024 * 1024),
);
const part = fc.oneof(
  fc.record({ bytes: size, letter: fc.integer({ min: 0, max: 255 }) }),
  fc.record({ skipped: fc.integer({ min: 0, max: 300 }) }),
);

test("what stands in several frames is joined in their order, up to exactly the limit", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(part, { minLength: 1, maxLength: 6 }), async (parts) => {
      const plain: Buffer[] = [];
      const packed = parts.map((one) => {
        if ("skipped" in one) return skippable(one.skipped);
        const content = Buffer.alloc(one.bytes, one.letter);
        plain.push(content);
        return zstdCompressSync(content);
      });
      const whole = Buffer.concat(plain);
      const all = Buffer.concat(packed);
      expect(whole.equals(await unpackFrames(all, Math.max(whole.length, 1)))).toBe(true);
      if (whole.length > 1) {
        const under = unpackFrames(all, whole.length - 1);
        await expect(under).rejects.toMatchObject({ fault: "too large" });
      }
    }),
    { numRuns: 60 },
  );
});

test("a last frame that ends too early is told, wherever it is cut", async () => {
  const [first, last] = [
    zstdCompressSync(Buffer.alloc(512 * 1024)),
    zstdCompressSync(Buffer.alloc(50, "ab")),
  ];
  for (let kept = 1; kept < last.length; kept++) {
    const cut = unpackFrames(Buffer.concat([first, last.subarray(0, kept)]), 1024 * 1024);
    await expect(cut, `${kept} bytes of it`).rejects.toMatchObject({ fault: "truncated" });
  }
});
