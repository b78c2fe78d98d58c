/** Reads `--ports` of `portwide probe`: lists, ranges, all ports, and random ports that a seed determines. */
import { isPort } from '../api/ports.ts';
import type { ProbeProtocol } from './outcome.ts';

/** Ports that one item of `--ports` selects. */
export interface PortGroup {
  /** The item as written: `443`, `20000-20100`, `all` or `random:200`. */
  readonly name: string;
  /** Ascending, without duplicates. */
  readonly ports: readonly number[];
}

/** The ports of one protocol. */
export interface PortSelection {
  readonly protocol: ProbeProtocol;
  readonly groups: readonly PortGroup[];
  /** All ports of the groups, ascending, without duplicates. */
  readonly ports: readonly number[];
}

/** `--ports` cannot be read; the message says which item and what is valid. */
export class InvalidPorts extends Error {
  override readonly name = 'InvalidPorts';
}

const LAST_PORT = 65_535;

/**
 * Reads a comma-separated list of ports, ranges (`20000-20100`), `all` and `random:COUNT`.
 * @param seed an integer of 32 bits. The same text and seed give the same ports.
 * @throws InvalidPorts
 */
export function readPortGroups(text: string, seed: number): PortGroup[] {
  const random = randomIntegers(seed);
  const names = text.split(',').map((item) => item.trim());
  const repeated = names.find((name, index) => names.indexOf(name) !== index);
  if (repeated !== undefined) throw new InvalidPorts(`"${repeated}" is given twice`);
  return names.map((name) => ({ name, ports: portsOf(name, random) }));
}

/** Reads the ports of a protocol as `readPortGroups` does. @throws InvalidPorts */
export function selectPorts(protocol: ProbeProtocol, text: string, seed: number): PortSelection {
  const groups = readPortGroups(text, seed);
  const ports = [...new Set(groups.flatMap((group) => group.ports))].sort((a, b) => a - b);
  return { protocol, groups, ports };
}

function portsOf(item: string, random: (below: number) => number): number[] {
  if (item === 'all') return range(1, LAST_PORT);
  const [, count] = /^random:(\d{1,5})$/.exec(item) ?? [];
  if (count !== undefined) return randomPorts(Number(count), random);
  const [, first, last = first] = /^(\d{1,5})(?:-(\d{1,5}))?$/.exec(item) ?? [];
  const [from, to] = [Number(first), Number(last)];
  if (!isPort(from) || !isPort(to)) {
    throw new InvalidPorts(
      `"${item}" is not a port (1 to 65535), a range such as 20000-20100, "all" or "random:200"`,
    );
  }
  if (from > to) throw new InvalidPorts(`range "${item}" ends before it begins`);
  return range(from, to);
}

function range(from: number, to: number): number[] {
  return Array.from({ length: to - from + 1 }, (_, index) => from + index);
}

/** Distinct ports: the first entries of a shuffle (Fisher-Yates). */
function randomPorts(count: number, random: (below: number) => number): number[] {
  if (!isPort(count)) throw new InvalidPorts(`"random:${count}" must have a count of 1 to 65535`);
  const ports = range(1, LAST_PORT);
  for (let index = 0; index < count; index++) {
    const other = index + random(ports.length - index);
    [ports[index], ports[other]] = [ports[other] ?? 0, ports[index] ?? 0];
  }
  return ports.slice(0, count).sort((a, b) => a - b);
}

/** A generator of integers from 0 to `below` - 1: mulberry32, which is small and has 32 bits of state. */
function randomIntegers(seed: number): (below: number) => number {
  let state = seed >>> 0;
  return (below) => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * below);
  };
}
