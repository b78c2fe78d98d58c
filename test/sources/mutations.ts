/** Malformed objects for fuzzing: valid objects with random mutations. */
import fc from 'fast-check';
import type { Manifest } from '../e2e/manifests.ts';

/** Text that only some parsers accept as an address, and a few valid addresses. */
const ADDRESSES = [
  ...['010.0.0.1', '10.0.0.010', '10.1', '167772161', '0x0a.0.0.1', '10.0.0.1 ', '10.0.0.256'],
  ...['::ffff:10.0.0.1', '::FFFF:a00:1', '::10.0.0.1', 'fe80::1%eth0', 'FD00::A', 'fd00:0::a'],
  ...['0.0.0.0', '127.0.0.1', '::', '::1', '224.0.0.1', '255.255.255.255', 'ff02::1', '１0.0.0.1'],
  ...['fd00:0:0:0:0:0:0:b', 'fd00::00c', '10.0.0.9', 'fd00::d', 'None', '1.2.3.4.5', '1:2:3'],
  ...['10.0.0.0/8', '10.0.0.1/08', '10.0.0.0/33', '::/0', '0.0.0.0/0', '::ffff:0:0/96', 'FD00::/8'],
];
/** Text with a special meaning to a parser, a shell, a rule or a prototype. */
const TEXTS = [
  ...['', ' ', '0', '-1', 'None', 'all', 'false', 'TCP', 'tcp', 'IPv4', 'FQDN', 'v1', 'Service'],
  ...['__proto__', 'constructor', 'toString', 'hasOwnProperty', 'prototype'],
  ...['a b', 'A', 'a_b', '-a', 'a-', 'a/b', '../a', 'x'.repeat(300), '١', 'é', '\u202e', '\ud800'],
  ...['-j ACCEPT', 'a\n-A INPUT -j ACCEPT\n', '"; reboot; "', '$(reboot)', '\0', '%s%n', '{}'],
  ...['1-70000/TCP', '0-10', '65535-1', '1,,2', '80/ICMP', '5060/UDP,', '2026-02-30T00:00:00Z'],
];
const NUMBERS = [0, -0, -1, 0.5, 1, 80, 65535, 65536, 2 ** 31, 2 ** 53, 1e308, -1e308, 86401];
const POLLUTION: unknown = JSON.parse(
  '{"__proto__":{"allPorts":true,"ready":true},"constructor":{"prototype":{"kind":"Node"}}}',
);

const oddValue: fc.Arbitrary<unknown> = fc.oneof(
  { weight: 6, arbitrary: fc.constantFrom<unknown>(...ADDRESSES) },
  { weight: 4, arbitrary: fc.constantFrom<unknown>(...TEXTS) },
  { weight: 4, arbitrary: fc.constantFrom<unknown>(...NUMBERS) },
  {
    weight: 3,
    arbitrary: fc.constantFrom<unknown>(null, true, false, [], {}, [[]], [null], POLLUTION),
  },
  { weight: 2, arbitrary: fc.jsonValue({ maxDepth: 3 }) },
  { weight: 1, arbitrary: fc.array(fc.constantFrom<unknown>(...TEXTS), { maxLength: 4 }) },
);

/** A mutation of one field, which is chosen by number. */
interface Mutation {
  readonly place: number;
  readonly how: 'replace' | 'remove' | 'add';
  readonly key: string;
  readonly value: unknown;
}

const mutation: fc.Arbitrary<Mutation> = fc.record({
  place: fc.nat(10_000),
  how: fc.constantFrom('replace', 'replace', 'replace', 'replace', 'remove', 'add'),
  key: fc.constantFrom('__proto__', 'allPorts', 'ports', 'port', 'nodePort', 'kind', 'name', 'x'),
  value: oddValue,
});

/**
 * A group of related objects with one or two mutations; sometimes with an arbitrary value added.
 */
export function mutatedGroup(
  groups: readonly (readonly Manifest[])[],
): fc.Arbitrary<readonly unknown[]> {
  return fc
    .tuple(
      fc.constantFrom(...groups),
      fc.array(mutation, { minLength: 1, maxLength: 2 }),
      fc.option(oddValue, { freq: 20 }),
    )
    .map(([group, harms, anything]) => {
      const copy = JSON.parse(JSON.stringify(group)) as unknown[];
      for (const each of harms) apply(copy, each);
      return anything === null ? copy : [...copy, anything];
    });
}

/** Copies of a group with every odd value in every field, one at a time. */
export function everyMutation(group: readonly Manifest[]): unknown[][] {
  const values = [...ADDRESSES, ...TEXTS, ...NUMBERS, null, true, [], {}, POLLUTION];
  return placesIn(group).flatMap((_, place) =>
    values.map((value) => {
      const copy = JSON.parse(JSON.stringify(group)) as unknown[];
      apply(copy, { place, how: 'replace', key: '', value });
      return copy;
    }),
  );
}

function apply(group: readonly unknown[], { place, how, key, value }: Mutation): void {
  const places = placesIn(group);
  const found = places[place % places.length];
  if (found === undefined) return;
  const [holder, member] = found;
  if (how === 'remove') delete holder[member];
  else set(holder, how === 'add' ? key : member, JSON.parse(JSON.stringify(value)));
}

/** Every field of all nested objects and lists, with its container. */
function placesIn(value: unknown): (readonly [Record<string, unknown>, string])[] {
  if (typeof value !== 'object' || value === null) return [];
  const holder = value as Record<string, unknown>;
  return Object.keys(holder).flatMap((member) => [
    [holder, member] as const,
    ...placesIn(holder[member]),
  ]);
}

/** Like JSON.parse, defines a field named `__proto__` as an own property. */
function set(object: object, key: string, value: unknown): void {
  Object.defineProperty(object, key, {
    value,
    enumerable: true,
    configurable: true,
    writable: true,
  });
}
