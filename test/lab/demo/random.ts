/** Numbers and ports at random that a seed brings back. */

const HIGHEST_PORT = 65_535;

/** Distinct ports of 1 to 65535 for a seed of 32 bits, always the same ones for the same seed. */
export function randomPorts(seed: number, count: number): number[] {
  const ports = new Set<number>();
  const next = random(seed);
  while (ports.size < count) ports.add(1 + Math.floor(next() * HIGHEST_PORT));
  return [...ports];
}

/** Gives numbers from 0 up to and without 1, always the same ones for the same seed of 32 bits. */
export function random(seed: number): () => number {
  let state = seed;
  return () => {
    // mulberry32: short, and good enough to choose by.
    state = (state + 0x6d2b79f5) | 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
}
