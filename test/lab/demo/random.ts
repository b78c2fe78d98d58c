/** Ports at random that a seed brings back. */

const HIGHEST_PORT = 65_535;

/** Distinct ports of 1 to 65535 for a seed of 32 bits, always the same ones for the same seed. */
export function randomPorts(seed: number, count: number): number[] {
  const ports = new Set<number>();
  let state = seed;
  while (ports.size < count) {
    // mulberry32: short, and good enough to choose ports by.
    state = (state + 0x6d2b79f5) | 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    const fraction = ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
    ports.add(1 + Math.floor(fraction * HIGHEST_PORT));
  }
  return [...ports];
}
