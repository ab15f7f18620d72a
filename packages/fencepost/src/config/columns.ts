import type { FencingToken } from "@fencepost/token";
import { customType } from "drizzle-orm/pg-core";

/** A column for signed 128-bit integers: numeric(39) in SQL, bigint in TypeScript. */
export const i128 = integerColumn("numeric(39, 0)");
/** A column for unsigned 64-bit integers: numeric(20) in SQL, bigint in TypeScript. */
export const u64 = integerColumn("numeric(20, 0)");

/** A column for addresses (strkeys), compared by their bytes. */
export const address = customType<{ data: string }>({ dataType: () => 'text COLLATE "C"' });

/** A column for fencing tokens: its order is the order of the chain. */
export const token = customType<{ data: FencingToken }>({ dataType: () => 'text COLLATE "C"' });

function integerColumn(sqlType: string) {
  return customType<{ data: bigint; driverData: string }>({
    dataType: () => sqlType,
    toDriver: (value) => value.toString(),
    fromDriver: (value) => BigInt(value),
  });
}
