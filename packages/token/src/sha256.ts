// SHA-256 (FIPS 180-4), synchronous and without imports: node:crypto is not in browsers and WebCrypto is async.
// The constants are the fractional parts of the cube and square roots of the first primes.
const PRIMES = firstPrimes(64);
const K = Uint32Array.from(PRIMES, (p) => fraction(Math.cbrt(p)));
const H = Uint32Array.from(PRIMES.slice(0, 8), (p) => fraction(Math.sqrt(p)));

/** The 32 bytes of sha-256 over `bytes`. */
export function sha256(bytes: Uint8Array): Uint8Array {
  const padded = new Uint8Array(Math.ceil((bytes.length + 9) / 64) * 64);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setBigUint64(padded.length - 8, BigInt(bytes.length) * 8n);

  const state = Uint32Array.from(H);
  const w = new Uint32Array(64);
  const at = (array: Uint32Array, i: number): number => array[i] ?? 0;
  for (let block = 0; block < padded.length; block += 64) {
    for (let i = 0; i < 16; i++) w[i] = view.getUint32(block + i * 4);
    for (let i = 16; i < 64; i++) {
      const a = at(w, i - 15);
      const b = at(w, i - 2);
      const s0 = rotate(a, 7) ^ rotate(a, 18) ^ (a >>> 3);
      const s1 = rotate(b, 17) ^ rotate(b, 19) ^ (b >>> 10);
      w[i] = at(w, i - 16) + s0 + at(w, i - 7) + s1;
    }
    let [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0] = state;
    for (let i = 0; i < 64; i++) {
      const s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + at(K, i) + at(w, i)) | 0;
      const s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + t1) | 0, c, b, a, (t1 + t2) | 0];
    }
    for (const [i, v] of [a, b, c, d, e, f, g, h].entries()) state[i] = at(state, i) + v;
  }
  const out = new DataView(new ArrayBuffer(32));
  for (const [i, v] of state.entries()) out.setUint32(i * 4, v);
  return new Uint8Array(out.buffer);
}

function rotate(x: number, n: number): number {
  return (x >>> n) | (x << (32 - n));
}

function fraction(x: number): number {
  return Math.floor((x - Math.floor(x)) * 2 ** 32);
}

function firstPrimes(count: number): number[] {
  const primes: number[] = [];
  for (let n = 2; primes.length < count; n++) if (primes.every((p) => n % p !== 0)) primes.push(n);
  return primes;
}
