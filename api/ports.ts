/** Ports, protocols and port ranges. */
import { PROTOCOLS, type Protocol } from './objects.ts';

/** Ports `from` to `to`, inclusive. */
export interface PortRange {
  readonly protocol: Protocol;
  readonly from: number;
  readonly to: number;
}

/**
 * Upper bound on ranges per Service. In mode iptables seven ranges are one rule for each VIP, so
 * without the bound a packet to the VIP could traverse thousands of rules.
 */
export const MAX_RANGES = 1024;

/**
 * Longest accepted value of an annotation with ports: MAX_RANGES ranges in their longest form, each followed by a
 * comma and a space. In Unicode characters, because the admission policy counts in them.
 */
export const MAX_VALUE_LENGTH = MAX_RANGES * '10000-65535/SCTP, '.length;

/** Whether the value of an annotation with ports is longer than MAX_VALUE_LENGTH. */
export function isTooLong(value: string): boolean {
  return value.length > MAX_VALUE_LENGTH && [...value].length > MAX_VALUE_LENGTH;
}

/** 1 to 65535. Port 0 is reserved (RFC 6335, section 6). */
export function isPort(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= 65535;
}

export function isProtocol(value: unknown): value is Protocol {
  return typeof value === 'string' && (PROTOCOLS as readonly string[]).includes(value);
}

/** Whether a range has a port of a protocol. */
export function hasPort(range: PortRange, protocol: Protocol, port: number): boolean {
  return range.protocol === protocol && range.from <= port && port <= range.to;
}

/** As annotations write a range: `5060/UDP`, `20000-29999/UDP`. */
export function rangeText({ protocol, from, to }: PortRange): string {
  return from === to ? `${from}/${protocol}` : `${from}-${to}/${protocol}`;
}

/**
 * Parses a port or range with an optional protocol, such as `5060`, `8000-8100` or `5060/UDP`.
 * @param hint added to the message about text of another form.
 * @returns why it cannot be read, as text.
 */
export function parsePortItem(
  item: string,
  hint = '',
): { from: number; to: number; protocol: Protocol | undefined } | string {
  const shown = JSON.stringify(item);
  const match = /^(\d{1,5})(?:-(\d{1,5}))?(?:\/(.*))?$/.exec(item);
  if (match === null) return `${shown} is not a port or range such as 5060/UDP or 8000-8100${hint}`;
  const from = Number(match[1]);
  const to = Number(match[2] ?? match[1]);
  const protocol = match[3];
  if (!isPort(from) || !isPort(to)) return `${shown}: ports are 1 to 65535`;
  if (from > to) return `${shown}: the range ends before it begins`;
  if (protocol !== undefined && !isProtocol(protocol)) {
    return `${shown}: the protocol must be TCP, UDP or SCTP`;
  }
  return { from, to, protocol };
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

/** The ports of `ranges` that are in none of `taken`, in the order of `ranges`. */
export function withoutRanges(
  ranges: readonly PortRange[],
  taken: readonly PortRange[],
): PortRange[] {
  if (taken.length === 0) return [...ranges];
  const cuts = normalizeRanges(taken);
  return ranges.flatMap((range) => {
    const left: PortRange[] = [];
    let { from } = range;
    for (const cut of cuts) {
      if (cut.protocol !== range.protocol || cut.to < from || cut.from > range.to) continue;
      if (cut.from > from) left.push({ ...range, from, to: cut.from - 1 });
      from = cut.to + 1;
    }
    if (from <= range.to) left.push({ ...range, from });
    return left;
  });
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
