/** Sets of ports of all protocols. Pure. */
import { PROTOCOLS, type Protocol } from '../../api/objects.ts';

/** Ports `from` to `to`, inclusive. Protocols without ports, such as ICMP, are `other` with port 0. */
export interface SpaceRange {
  readonly protocol: Protocol | 'other';
  readonly from: number;
  readonly to: number;
}

const LAST_PORT = 65_535;

/** All ports of all protocols. */
export const EVERY_PORT: readonly SpaceRange[] = [
  ...PROTOCOLS.map((protocol) => ({ protocol, from: 0, to: LAST_PORT })),
  { protocol: 'other', from: 0, to: 0 },
];

/** Whether a range has all ports of its protocol. */
export function isWholeProtocol({ protocol, from, to }: SpaceRange): boolean {
  return protocol === 'other' || (from === 0 && to === LAST_PORT);
}

/** Splits a set into the part that is in `ranges`, and the rest. */
export function splitSpace(
  space: readonly SpaceRange[],
  ranges: readonly SpaceRange[],
): { readonly inside: SpaceRange[]; readonly outside: SpaceRange[] } {
  const inside: SpaceRange[] = [];
  let outside = [...space];
  for (const range of ranges) {
    const rest: SpaceRange[] = [];
    for (const { protocol, from, to } of outside) {
      if (range.protocol !== protocol || range.to < from || range.from > to) {
        rest.push({ protocol, from, to });
        continue;
      }
      inside.push({ protocol, from: Math.max(from, range.from), to: Math.min(to, range.to) });
      if (from < range.from) rest.push({ protocol, from, to: range.from - 1 });
      if (to > range.to) rest.push({ protocol, from: range.to + 1, to });
    }
    outside = rest;
  }
  return { inside, outside };
}

/** Sorts by protocol and port, and joins adjacent ranges. The ranges must not overlap. */
export function joinSpace(space: readonly SpaceRange[]): SpaceRange[] {
  const order = EVERY_PORT.map(({ protocol }) => protocol);
  const joined: SpaceRange[] = [];
  const sorted = space.toSorted(
    (a, b) => order.indexOf(a.protocol) - order.indexOf(b.protocol) || a.from - b.from,
  );
  for (const range of sorted) {
    const last = joined.at(-1);
    if (last?.protocol === range.protocol && last.to + 1 === range.from) {
      joined[joined.length - 1] = { ...last, to: range.to };
    } else joined.push(range);
  }
  return joined;
}
