/** What was given is no wasm module, or not a whole one. */
export class InvalidWasmError extends Error {
  override readonly name = "InvalidWasmError";

  constructor(what: string, why: string, options?: ErrorOptions) {
    super(`${what} ${why} Give the .wasm file that was deployed.`, options);
  }
}

/** `\0asm` and version 1, the only version there is. */
const HEADER = [0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00];
/** A section of this id has a name, and no meaning for the machine. */
const CUSTOM = 0;

/**
 * The content of the custom sections with this name, one behind the other; null where there is none. `what` names
 * the module in the {@link InvalidWasmError} that is thrown where its sections do not add up to its size.
 */
export function customSection(wasm: Uint8Array, name: string, what: string): Uint8Array | null {
  if (HEADER.some((byte, i) => wasm[i] !== byte)) {
    throw new InvalidWasmError(what, "is no wasm module: it does not begin with \\0asm and version 1.");
  }
  const reader: Reader = { bytes: wasm, at: HEADER.length, what };
  const found: Uint8Array[] = [];
  while (reader.at < wasm.length) {
    const id = take(reader, 1)[0];
    const section: Reader = { bytes: take(reader, readLength(reader)), at: 0, what };
    if (id !== CUSTOM) continue;
    const nameBytes = take(section, readLength(section));
    if (Buffer.from(nameBytes).toString("latin1") === name) found.push(section.bytes.subarray(section.at));
  }
  return found.length > 0 ? Buffer.concat(found) : null;
}

interface Reader {
  readonly bytes: Uint8Array;
  at: number;
  readonly what: string;
}

function take(reader: Reader, length: number): Uint8Array {
  const end = reader.at + length;
  if (end > reader.bytes.length) {
    throw new InvalidWasmError(reader.what, "is a wasm module that ends in the middle of a section.");
  }
  const taken = reader.bytes.subarray(reader.at, end);
  reader.at = end;
  return taken;
}

/** A length as LEB128: seven bits a byte, at most 32 bits. */
function readLength(reader: Reader): number {
  let value = 0;
  for (let shift = 0; shift < 35; shift += 7) {
    const [byte = 0] = take(reader, 1);
    value += (byte & 0x7f) * 2 ** shift;
    if (byte < 0x80) return value;
  }
  throw new InvalidWasmError(reader.what, "is a wasm module with a section length of more than 32 bits.");
}
