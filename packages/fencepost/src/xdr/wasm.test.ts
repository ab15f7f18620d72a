import { expect, test } from "vitest";
import { leb128, wasmModule } from "./__tests__/specEntries.ts";
import { customSection, InvalidWasmError } from "./wasm.ts";

const content = Uint8Array.of(1, 2, 3);
const module = wasmModule(["name", Uint8Array.of(9)], ["contractspecv0", content], ["zz", new Uint8Array()]);

test("a custom section is found by its name, among sections of any kind", () => {
  const code = Buffer.concat([Buffer.from([1]), leb128(300), Buffer.alloc(300, 7)]);
  const wasm = Buffer.concat([module.subarray(0, 8), code, module.subarray(8)]);
  expect(customSection(wasm, "contractspecv0", "pool")).toEqual(Buffer.from(content));
});

test("sections of one name are one behind the other, as the linker would put them", () => {
  const wasm = wasmModule(["a", Uint8Array.of(1)], ["b", Uint8Array.of(2)], ["a", Uint8Array.of(3, 4)]);
  expect(customSection(wasm, "a", "pool")).toEqual(Buffer.of(1, 3, 4));
});

test("a module without the section has none, and an empty one is not missing", () => {
  expect(customSection(module, "contractmetav0", "pool")).toBe(null);
  expect(customSection(wasmModule(), "contractspecv0", "pool")).toBe(null);
  expect(customSection(module, "zz", "pool")).toEqual(Buffer.alloc(0));
});

test("a module that is cut anywhere is refused, or has whole sections only", () => {
  for (let length = 0; length < module.length; length++) {
    const cut = module.subarray(0, length);
    let found: Uint8Array | null = null;
    try {
      found = customSection(cut, "contractspecv0", "pool");
    } catch (error) {
      expect(error).toBeInstanceOf(InvalidWasmError);
    }
    expect(found ?? Buffer.from(content), `cut at ${length}`).toEqual(Buffer.from(content));
  }
});

test.each<[string, Uint8Array, RegExp]>([
  ["nothing", new Uint8Array(), /^pool\.wasm is no wasm module: it does not begin with/],
  ["a text", Buffer.from("#!/bin/sh\necho hello"), /no wasm module/],
  ["another version", Buffer.from([0, 0x61, 0x73, 0x6d, 2, 0, 0, 0]), /version 1/],
  [
    "a section that goes beyond the end",
    Buffer.concat([module, Buffer.from([0, 5, 1])]),
    /ends in the middle/,
  ],
  [
    "a name that goes beyond its section",
    Buffer.concat([module, Buffer.from([0, 2, 9, 65])]),
    /ends in the middle/,
  ],
  [
    "a length without end",
    Buffer.concat([module, Buffer.from([0, 255, 255, 255, 255, 255, 1])]),
    /more than 32 bits/,
  ],
])("%s is refused by name", (_, bytes, message) => {
  const read = () => customSection(bytes, "contractspecv0", "pool.wasm");
  expect(read).toThrow(InvalidWasmError);
  expect(read).toThrow(message);
});
