/** Seeded random numbers and ports. */

const HIGHEST_PORT = 65_535;

/** Distinct ports from 1 to 65535, determined by a 32-bit seed. */
export function randomPorts(seed: number, count: number): number[] {
  const ports = new Set<number>();
  const next = random(seed);
  while (ports.size < count) ports.add(1 + Math.floor(next() * HIGHEST_PORT));
  return [...ports];
}

/** Numbers in [0, 1), determined by a 32-bit seed. */
export function random(seed: number): () => number {
  let state = seed;
  return () => {
    // mulberry32: short, and sufficient for this purpose.
    state = (state + 0x6d2b79f5) | 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
}
