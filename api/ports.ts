/** Ports, protocols and port ranges. */
import { PROTOCOLS, type Protocol } from './objects.ts';

/** Ports `from` to `to`, inclusive. */
export interface PortRange {
  readonly protocol: Protocol;
  readonly from: number;
  readonly to: number;
}

/** 1 to 65535. Port 0 is reserved (RFC 6335, section 6). */
export function isPort(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= 65535;
}

export function isProtocol(value: unknown): value is Protocol {
  return typeof value === 'string' && (PROTOCOLS as readonly string[]).includes(value);
}

/** Sorts ranges by protocol and port, and merges overlapping and adjacent ranges. */
export function normalizeRanges(ranges: readonly PortRange[]): PortRange[] {
  const sorted = ranges.toSorted(
    (a, b) =>
      PROTOCOLS.indexOf(a.protocol) - PROTOCOLS.indexOf(b.protocol) ||
      a.from - b.from ||
      a.to - b.to,
  );
  const joined: PortRange[] = [];
  for (const range of sorted) {
    const last = joined.at(-1);
    if (last !== undefined && last.protocol === range.protocol && range.from <= last.to + 1) {
      joined[joined.length - 1] = { ...last, to: Math.max(last.to, range.to) };
    } else {
      joined.push(range);
    }
  }
  return joined;
}

export function rangesOverlap(a: readonly PortRange[], b: readonly PortRange[]): boolean {
  return a.some((x) =>
    b.some((y) => x.protocol === y.protocol && x.from <= y.to && y.from <= x.to),
  );
}

/** The ports in both lists of ranges. */
export function commonRanges(a: readonly PortRange[], b: readonly PortRange[]): PortRange[] {
  return a.flatMap(({ protocol, from, to }) =>
    b
      .filter((other) => rangesOverlap([{ protocol, from, to }], [other]))
      .map((other) => ({
        protocol,
        from: Math.max(from, other.from),
        to: Math.min(to, other.to),
      })),
  );
}
