/** Random policies: nft lists the desired elements after every change. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { compareText } from '../../../api/collections.ts';
import { IP_FAMILIES, type IpFamily } from '../../../api/objects.ts';
import { nftFamily } from '../../../nft/rule.ts';
import type { PolicyElement, PolicySetChain } from '../../../policy/compile/change.ts';
import type { PeerSetName } from '../../../policy/model/terms.ts';
import { PATIENCE } from '../../lab/lab.ts';
import { createNamespace, type Namespace, type NetnsHelper } from '../../netlink/namespace.ts';
import { address, chainRule, policyChange, policySetChain } from '../fixtures.ts';
import type { TableState } from '../policy-functions.ts';

const PROTOCOLS = [
  [6, 'tcp'],
  [17, 'udp'],
  [132, 'sctp'],
] as const;
const LIST_IDS = [1, 2, 255, 256, 65_536, 2 ** 31, 2 ** 32 - 1];
const POLICY_SET_IDS = [1, 2, 3];

const list = fc.constantFrom(...LIST_IDS);
const number = fc.integer({ min: 0, max: 600 });
const protocol = fc.constantFrom(...PROTOCOLS.map(([each]) => each));

/** Ranges of one or two values, which neither overlap nor are adjacent. */
function apart(bounds: readonly number[]): [first: number, last: number][] {
  const sorted = [...new Set(bounds)].sort((a, b) => a - b);
  const ranges: [number, number][] = [];
  while (sorted.length > 0) {
    const [first = 0, last = first] = sorted.splice(0, ranges.length % 2 === 0 ? 2 : 1);
    if (first > (ranges.at(-1)?.[1] ?? -2) + 1) ranges.push([first, last]);
  }
  return ranges;
}

function stateOf(family: IpFamily): fc.Arbitrary<TableState> {
  const at = (index: number) => address(family, index);
  const many = <T>(each: fc.Arbitrary<T>) => fc.array(each, { maxLength: 12 });
  const pod = (direction: 'ingress' | 'egress') =>
    fc.uniqueArray(number, { maxLength: 5 }).map((all) =>
      all.map(
        (each): PolicyElement => ({
          set: `${direction}-pods`,
          address: at(each),
          policySetId: POLICY_SET_IDS[each % POLICY_SET_IDS.length] ?? 1,
        }),
      ),
    );
  const hairpinPods = many(
    number.map((each): PolicyElement => ({ set: 'hairpin-pods', address: at(each) })),
  );
  const single = many(
    fc
      .tuple(
        fc.constantFrom('selected-pods' as const, 'dns-bypass' as const, 'owned-vips' as const),
        number,
      )
      .map(([set, each]): PolicyElement => ({ set, address: at(each) })),
  );
  const peer = many(
    fc
      .tuple(list, number)
      .map(([of, each]) => ({ set: 'peers' as const, list: of, address: at(each) })),
  );
  const networks = fc.dictionary(list.map(String), many(number), { maxKeys: 4 }).map((lists) =>
    Object.entries(lists).flatMap(([of, bounds]) =>
      apart(bounds).map(
        ([first, last]): PolicyElement => ({
          set: 'networks',
          list: Number(of),
          first: at(first),
          last: at(last),
        }),
      ),
    ),
  );
  const port = fc.constantFrom(1, 2, 80, 81, 443, 5000, 5001, 65_534, 65_535);
  const portRanges = fc.dictionary(
    fc.tuple(list, protocol).map((each) => each.join()),
    many(port),
    { maxKeys: 4 },
  );
  const ports = portRanges.map((lists) =>
    Object.entries(lists).flatMap(([key, bounds]) => {
      const [of = 0, number = 0] = key.split(',').map(Number);
      return apart(bounds).map(
        ([first, last]): PolicyElement => ({
          set: 'ports',
          list: of,
          protocol: number,
          first,
          last,
        }),
      );
    }),
  );
  const named = many(
    fc.tuple(list, number, protocol, port).map(
      ([of, each, proto, value]): PolicyElement => ({
        set: 'named-ports',
        list: of,
        address: at(each),
        protocol: proto,
        port: value,
      }),
    ),
  );
  const elements = fc
    .tuple(pod('ingress'), pod('egress'), hairpinPods, single, peer, networks, ports, named)
    .map((all) => [...new Map(all.flat().map((each) => [textOf(each), each])).values()]);
  return fc.record({ elements, chains: fc.tuple(...POLICY_SET_IDS.flatMap((n) => chainsOf(n))) });
}

function chainsOf(policySetId: number): fc.Arbitrary<PolicySetChain>[] {
  const peers = fc.record({
    id: list,
    sets: fc.subarray<PeerSetName>(['peers', 'networks', 'fqdn-peers']),
  });
  const ports = fc.record({
    id: list,
    sets: fc.subarray<'ports' | 'named-ports'>(['ports', 'named-ports']),
  });
  const rule = (
    ...verdicts: ('allow' | 'pass' | 'deny-admin' | 'deny-network-policy' | 'deny-baseline')[]
  ) =>
    fc
      .record({
        peers: fc.option(peers, { nil: undefined }),
        ports: fc.option(ports, { nil: undefined }),
        verdict: fc.constantFrom(...verdicts),
        comment: fc.string({ maxLength: 150, unit: 'grapheme' }),
      })
      .map((fields) => chainRule(fields));
  const admin = fc.array(rule('allow', 'pass', 'deny-admin'), { maxLength: 3 });
  const rest = fc.array(rule('allow', 'deny-network-policy', 'deny-baseline'), { maxLength: 3 });
  return (['ingress', 'egress'] as const).map((direction) =>
    fc.tuple(rest, admin).map(([a, b]) => policySetChain(direction, policySetId, a, b)),
  );
}

/** An element in the form of `listedText`. */
function textOf(element: PolicyElement): string {
  const range = (first: unknown, last: unknown) =>
    first === last ? `${first}` : `${first}-${last}`;
  const name = (number: number) => PROTOCOLS.find(([each]) => each === number)?.[1];
  switch (element.set) {
    case 'ingress-pods':
    case 'egress-pods':
      return `${element.set} ${element.address} jump ${element.set.slice(0, -5)}-${element.policySetId}`;
    case 'hairpin-pods':
      return `hairpin-pods ${element.address} ${element.address}`;
    case 'selected-pods':
    case 'dns-bypass':
    case 'owned-vips':
      return `${element.set} ${element.address}`;
    case 'peers':
      return `peers ${element.list} ${element.address}`;
    case 'networks':
      return `networks ${element.list} ${range(element.first, element.last)}`;
    case 'ports':
      return `ports ${element.list} ${name(element.protocol)} ${range(element.first, element.last)}`;
    default: {
      const { set, protocol: proto, port } = element;
      return `${set} ${element.list} ${element.address} ${name(proto)} ${port}`;
    }
  }
}

type Json = string | number | { readonly [key: string]: Json } | readonly Json[];

/** An element of `nft -j` as text. */
function listedText(set: string, element: Json, family: IpFamily): string {
  const field = (value: Json): string => {
    if (typeof value !== 'object') return String(value);
    if ('range' in value) return (value.range as Json[]).map(field).join('-');
    if ('prefix' in value) {
      const { addr, len } = value.prefix as { addr: string; len: number };
      return lastOf(addr, len, family);
    }
    if ('jump' in value) return `jump ${(value.jump as { target: string }).target}`;
    if ('concat' in value) return (value.concat as Json[]).map(field).join(' ');
    throw new Error(`unknown value: ${JSON.stringify(value)}`);
  };
  return [set, ...(Array.isArray(element) ? element : [element]).map(field)].join(' ');
}

/** A prefix as a range of test addresses. */
function lastOf(first: string, length: number, family: IpFamily): string {
  const size = 2 ** ((family === 'IPv4' ? 32 : 128) - length);
  const all = Array.from({ length: 1024 }, (_, index) => address(family, index));
  return `${first}-${all[all.indexOf(first) + size - 1]}`;
}

describe('fuzz: nft lists the desired elements', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;
  beforeEach(async () => {
    namespace = await createNamespace();
    helper = namespace.helper();
  });
  afterEach(() => namespace[Symbol.asyncDispose]());

  for (const family of IP_FAMILIES) {
    it(`${family}: after a full write and after each change`, async function () {
      this.timeout(180_000 * PATIENCE);
      const ip = nftFamily(family);
      const listed = async () => {
        const output = await namespace.run('nft', '-j', 'list', 'table', ip, 'portwide-policy');
        const { nftables } = JSON.parse(output) as {
          nftables: Record<string, { name: string; elem?: Json[] }>[];
        };
        return nftables
          .flatMap((each) => each.set ?? each.map ?? [])
          .flatMap(({ name, elem = [] }) =>
            elem.map((element) => listedText(name, element, family)),
          )
          .sort(compareText);
      };
      const texts = ({ elements }: TableState) => elements.map(textOf).sort(compareText);
      await fc.assert(
        fc.asyncProperty(
          fc.array(stateOf(family), { minLength: 2, maxLength: 4 }),
          async (states) => {
            await helper.call('policyStart', 'agent', { family });
            const [first, ...others] = states;
            assert.ok(first !== undefined);
            assert.equal(await helper.call('policyReplaceAll', 'agent', first), undefined);
            assert.deepEqual(await listed(), texts(first));
            let now = first;
            for (const next of others) {
              const [had, wants] = [new Set(texts(now)), new Set(texts(next))];
              const change = policyChange(family, {
                remove: now.elements.filter((each) => !wants.has(textOf(each))),
                add: next.elements.filter((each) => !had.has(textOf(each))),
                chains: next.chains,
              });
              assert.equal(await helper.call('policyApply', 'agent', change), undefined);
              assert.deepEqual(await listed(), texts(next));
              now = next;
            }
            const stepwise = await helper.call('policyState', family);
            assert.equal(await helper.call('policyReplaceAll', 'agent', now), undefined);
            assert.deepEqual(await helper.call('policyState', family), stepwise);
            await helper.call('policyStop', 'agent');
          },
        ),
        { seed: 21, numRuns: 12 },
      );
    });
  }
});
