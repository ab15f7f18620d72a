import fc from "fast-check";
import { expect, test } from "vitest";
import { constantName, isConstantName, nameGiver, pascalCase, propertyKey } from "./names.ts";

test.each([
  ["swap_event", "SwapEvent"],
  ["SwapEvent", "SwapEvent"],
  ["a-b c", "ABC"],
  ["__x", "X"],
  ["naïve", "NaVe"],
  ["🦊", ""],
  ["1st", "1st"],
])("the type of %s is %s", (text, name) => {
  expect(pascalCase(text)).toBe(name);
});

test.each([
  ["lending-pool", "lendingPool"],
  ["LendingPool", "lendingPool"],
  ["USDC", "usdc"],
  ["native", "native"],
  ["delete", "contractDelete"],
  ["1inch", "contract1inch"],
  ["🦊", "contract"],
])("the constant of %s is %s", (text, name) => {
  expect(constantName(text)).toBe(name);
});

test("any text makes a constant that may be declared", () => {
  fc.assert(
    fc.property(fc.string({ unit: "binary", maxLength: 200 }), (text) => {
      const name = constantName(text);
      expect(isConstantName(name), name).toBe(true);
      expect(() => new Function(`"use strict"; const ${name} = 1;`)).not.toThrow();
    }),
  );
});

test("nobody is given a name that another has", () => {
  const give = nameGiver(["a"]);
  expect(["a", "b", "a", "b", "a2", "b"].map(give)).toEqual(["a2", "b", "a3", "b2", "a22", "b3"]);
});

test("any key of an object is one, and sets nothing else", () => {
  fc.assert(
    fc.property(
      fc.oneof(fc.string({ unit: "binary" }), fc.constantFrom("__proto__", "constructor", "1")),
      (key) => {
        const object = new Function(`return { ${propertyKey(key)}: 5 };`)() as object;
        expect(Object.entries(object)).toEqual([[key, 5]]);
        expect(Object.getPrototypeOf(object)).toBe(Object.prototype);
      },
    ),
  );
});
