import assert from 'node:assert/strict';
import type { Protocol } from '../../api/objects.ts';
import { nftRuleText } from '../../nft/rule.ts';
import { withJumpTargets } from '../../nftables/chains.ts';
import { compileNftPlan, compileSteps, type VipSharing } from '../../nftables/compile.ts';
import type { NftPlanOptions } from '../../nftables/plan.ts';
import type { Route, RouteMatch } from '../../services/route.ts';
import { SLOTS } from '../../traffic/consistent-hash.ts';
import { trafficPlan } from '../../traffic/plan.ts';
import { route } from '../fixtures.ts';
import { textsOf } from './elements.ts';
import { modeOptions } from './options.ts';

const VIP = '10.96.0.10';
const LB = '203.0.113.1';
const PODS = ['10.244.0.1', '10.244.0.2'];
const ALL: RouteMatch = { kind: 'all' };
const RANGES: RouteMatch = {
  kind: 'ranges',
  ranges: [
    { protocol: 'UDP', from: 5060, to: 5060 },
    { protocol: 'TCP', from: 8000, to: 8100 },
  ],
};

interface CompileContext {
  readonly sharing?: Readonly<Record<string, VipSharing>>;
  readonly allowsOwnVips?: boolean;
  readonly options?: Partial<NftPlanOptions>;
}

/** Elements by map, and the rules of chains by name. */
function compiled(
  of: Route,
  { sharing = {}, allowsOwnVips = false, options = {} }: CompileContext = {},
) {
  const { elements, chains } = compileNftPlan(
    trafficPlan(of, allowsOwnVips),
    new Map(Object.entries(sharing)),
    modeOptions({ family: of.family, ...options }),
  );
  const named = new Map(
    chains.flatMap(withJumpTargets).map(({ name, rules }) => [name, rules.map(nftRuleText)]),
  );
  const targets = elements.flatMap(({ data }) =>
    data !== undefined && 'chain' in data && !data.chain.startsWith('reject-') ? [data.chain] : [],
  );
  for (const target of targets) assert.ok(named.has(target), `${target} is missing`);
  return { ...textsOf(elements, of.family), chains: Object.fromEntries(named) };
}

const onlyLb = (fields: Partial<Route> = {}, pods = PODS) =>
  route({ clusterIP: undefined, loadBalancerIPs: [LB], ...fields }, pods);
const local = (addresses: readonly string[], port: number | undefined = 8080) =>
  addresses.map((address) => ({ address, port }));

describe('compile: elements and chains of a Route', () => {
  it('compiles a port to a dispatch element and endpoints by index', () => {
    assert.deepEqual(compiled(route({}, PODS)), {
      'service-ports': [`${VIP} . tcp . 80 : goto internal-port-2`],
      endpoints: [
        `${VIP} . tcp . 80 . 0 : 10.244.0.1 . 8080`,
        `${VIP} . tcp . 80 . 1 : 10.244.0.2 . 8080`,
      ],
      'hairpin-connections': ['10.244.0.1 . 10.244.0.1', '10.244.0.2 . 10.244.0.2'],
      'cluster-ips': [VIP],
      chains: {
        'internal-port-2': [
          'ip saddr != 10.244.0.0/16 meta mark set meta mark | 0x4000',
          'dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 offset 0 map @endpoints',
          'dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 1 offset 0 map @endpoints',
        ],
      },
    });
  });

  it('compiles consistent hashing to slots, and a single endpoint to one element', () => {
    const hashed = compiled(route({ consistentHash: 'client-address' }, PODS));
    const chain = 'internal-port-hash-client';
    assert.deepEqual(hashed['service-ports'], [`${VIP} . tcp . 80 : goto ${chain}`]);
    assert.equal(hashed.endpoints?.length, SLOTS);
    assert.equal(hashed['hairpin-connections']?.length, 2);
    assert.deepEqual(hashed.chains[chain]?.slice(1), [
      'dnat ip to ip daddr . meta l4proto . th dport . jhash ip saddr mod 1021 seed 0x706f7274 map @endpoints',
      'dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 1 offset 0 map @endpoints',
    ]);
    const single = compiled(route({ consistentHash: 'client-address' }, PODS.slice(0, 1)));
    assert.deepEqual(single, compiled(route({}, PODS.slice(0, 1))));
  });

  it('computes the slots of many endpoints in short steps', () => {
    const pods = Array.from({ length: 300 }, (_, index) => `10.244.${index >> 8}.${index & 255}`);
    const plan = trafficPlan(route({ consistentHash: 'client-address' }, pods), false);
    const steps = compileSteps(plan, new Map(), modeOptions({ family: 'IPv4' }));
    let count = 0;
    while (steps.next().done !== true) count++;
    assert.ok(count >= SLOTS, String(count));
  });

  it('hashes the client port too, with slots of their own for externalTrafficPolicy Local', () => {
    const fields = { consistentHash: 'client-address-and-port', match: ALL } as const;
    const local = PODS.map((address) => ({ address, port: undefined }));
    const of = onlyLb({ ...fields, externalLocal: true, localEndpoints: local }, PODS);
    const { chains, 'endpoint-ips': endpoints } = compiled(of);
    assert.equal(endpoints?.length, 2 * SLOTS);
    const name = 'external-local-ip-hash-client-port-ip-hash-client-port-local';
    assert.equal(
      chains[name]?.[2],
      'dnat to ip daddr . jhash ip saddr . th sport mod 1021 seed 0x706f7274 offset 1048576 map @endpoint-ips',
    );
  });

  it('masquerades hairpins of endpoints on other nodes only with externalTrafficPolicy Local', () => {
    const clusterEndpoints = [
      { address: '10.244.0.1', port: 8080 },
      { address: '10.244.1.1', port: 8080, isRemote: true as const },
    ];
    const here = '10.244.0.1 . 10.244.0.1';
    assert.deepEqual(compiled(route({ clusterEndpoints }))['hairpin-connections'], [here]);
    const fields = { clusterEndpoints, loadBalancerIPs: [LB] };
    assert.deepEqual(compiled(route(fields))['hairpin-connections'], [here, here]);
    const { 'hairpin-connections': hairpins } = compiled(
      onlyLb({ ...fields, externalLocal: true }),
    );
    assert.deepEqual(hairpins, [here, '10.244.1.1 . 10.244.1.1']);
  });

  it('compiles all ports without port keys, and rejects untranslated packets to the VIP', () => {
    const of = route({ match: ALL, family: 'IPv6' }, ['fd00:10:244::1']);
    assert.deepEqual(compiled(of), {
      'service-ips': ['fd00:10:96::a : goto internal-ip-1'],
      'no-endpoint-ips': ['fd00:10:96::a : goto reject-packet'],
      'endpoint-ips': ['fd00:10:96::a . 0 : fd00:10:244::1'],
      'hairpin-connections': ['fd00:10:244::1 . fd00:10:244::1'],
      chains: {
        'internal-ip-1': [
          'ip6 saddr != fd00:10:244::/48 meta mark set meta mark | 0x4000',
          'dnat to ip6 daddr . numgen random mod 1 offset 0 map @endpoint-ips',
        ],
      },
    });
  });

  it('compiles each port range to an element without a verdict, and rejects other ports of the VIP', () => {
    const result = compiled(route({ match: RANGES }, PODS), {
      sharing: { [VIP]: { slot: 2, sharesWithAllPorts: false } },
    });
    assert.deepEqual((result as Partial<Record<string, unknown>>)['vip-ranges-10'], [
      `${VIP} . 2 . udp . 5060`,
      `${VIP} . 2 . tcp . 8000-8100`,
    ]);
    assert.deepEqual(result['range-services'], [`${VIP} . 2 : goto internal-ip-2-slot2`]);
    assert.deepEqual(result['no-endpoint-range-services'], [`${VIP} . 2 : goto reject-packet`]);
    assert.equal(result['range-vips'], undefined);
    assert.deepEqual(result['service-range-ips'], [VIP]);
    assert.deepEqual(result['endpoint-ips'], [
      `${VIP} . 4194304 : 10.244.0.1`,
      `${VIP} . 4194305 : 10.244.0.2`,
    ]);
    assert.match(
      result.chains['internal-ip-2-slot2']?.[2] ?? '',
      /mod 1 offset 4194304 map @endpoint-ips/,
    );
    assert.equal(result['cluster-ips'], undefined);
  });

  it('leads packets of a VIP to the ranges of all its Services once', () => {
    const result = compiled(route({ match: RANGES }, PODS), {
      sharing: { [VIP]: { slot: 1, sharesWithAllPorts: true, lastSlot: 2 } },
    });
    assert.deepEqual(result['range-vips'], [`${VIP} : goto ranges-10-2`]);
    assert.deepEqual(result['no-endpoint-range-vips'], [`${VIP} : goto no-endpoint-ranges-10-2`]);
    assert.deepEqual(result['affinity-update-range-vips'], [`${VIP} : goto affinity-ranges-10-2`]);
    const lookup = (slot: number, map: string) =>
      `ip daddr . numgen random mod 1 offset ${slot} . meta l4proto . th dport @vip-ranges-10 ip daddr . numgen random mod 1 offset ${slot} vmap @${map}`;
    assert.deepEqual(result.chains['ranges-10-2'], [
      lookup(1, 'range-services'),
      lookup(2, 'range-services'),
      'ip daddr vmap @service-ips',
    ]);
    assert.deepEqual(result.chains['no-endpoint-ranges-10-2'], [
      lookup(1, 'no-endpoint-range-services'),
      lookup(2, 'no-endpoint-range-services'),
      'ip daddr vmap @no-endpoint-ips',
      'goto reject-packet',
    ]);
  });

  it('rejects packets without endpoints, and drops them when other nodes have endpoints', () => {
    const verdicts = [
      ['port', route(), 'service-ports', 'no-endpoint-ports', '. tcp . 80 '],
      ['all', route({ match: ALL }), 'service-ips', 'no-endpoint-ips', ''],
      ['ranges', route({ match: RANGES }), 'range-services', 'no-endpoint-range-services', '. 1 '],
    ] as const;
    for (const [kind, of, services, map, key] of verdicts) {
      const nowhere = compiled(of);
      assert.ok(nowhere[services]?.includes(`${VIP} ${key}: accept`), kind);
      assert.ok(nowhere[map]?.includes(`${VIP} ${key}: goto reject-packet`), kind);
      const elsewhere = compiled({ ...of, hasEndpointsAnywhere: true });
      assert.ok(elsewhere[map]?.includes(`${VIP} ${key}: drop`), kind);
      assert.equal(nowhere.endpoints, undefined);
    }
  });

  it('uses local endpoints with their own indexes for internalTrafficPolicy Local', () => {
    const result = compiled(
      route({ internalLocal: true, localEndpoints: local(['10.244.0.2']) }, PODS),
    );
    assert.deepEqual(result['service-ports'], [`${VIP} . tcp . 80 : goto internal-port-1-local`]);
    assert.deepEqual(result.endpoints, [`${VIP} . tcp . 80 . 1048576 : 10.244.0.2 . 8080`]);
    const none = compiled(route({ internalLocal: true }, PODS));
    assert.deepEqual(none['service-ports'], [`${VIP} . tcp . 80 : accept`]);
    assert.deepEqual(none['no-endpoint-ports'], [`${VIP} . tcp . 80 : drop`]);
  });

  it('masquerades all clients for externalTrafficPolicy Cluster', () => {
    for (const fields of [{ externalIPs: [LB], loadBalancerIPs: [] }, {}]) {
      const result = compiled(onlyLb(fields));
      assert.deepEqual(result['service-ports'], [`${LB} . tcp . 80 : goto external-port-2`]);
      assert.equal(result.chains['external-port-2']?.[0], 'meta mark set meta mark | 0x4000');
      assert.equal(result['cluster-ips'], undefined);
      assert.equal(result['no-endpoint-ports'], undefined);
    }
  });

  it('sends external clients to local endpoints, pods and the node to all, for externalTrafficPolicy Local', () => {
    const of = onlyLb({ externalLocal: true, localEndpoints: local(['10.244.0.2']) });
    const result = compiled(of);
    const name = 'external-local-port-2-port-1-local';
    assert.deepEqual(result['service-ports'], [`${LB} . tcp . 80 : goto ${name}`]);
    assert.deepEqual(result.chains[name]?.slice(0, 2), [
      'ip saddr 10.244.0.0/16 goto select-endpoint-port-2',
      'fib saddr type local meta mark set meta mark | 0x4000 goto select-endpoint-port-2',
    ]);
    assert.match(result.chains[name]?.[2] ?? '', /mod 1 offset 1048576 map @endpoints/);
    assert.ok(result.chains['select-endpoint-port-2']?.every((rule) => !/mark/.test(rule)));
    assert.equal(result.endpoints?.length, 3);
    assert.equal(result['no-endpoint-ports'], undefined);

    const none = compiled(onlyLb({ externalLocal: true }));
    assert.deepEqual(none['service-ports'], [`${LB} . tcp . 80 : goto external-local-port-2-none`]);
    assert.equal(none.chains['external-local-port-2-none']?.length, 2);
    assert.deepEqual(none['no-endpoint-ports'], [`${LB} . tcp . 80 : drop`]);
    const undetected = compiled(of, { options: { localDetector: undefined } });
    assert.match(undetected.chains[name]?.[0] ?? '', /^fib saddr/);

    const nowhere = compiled(onlyLb({ externalLocal: true }, []));
    assert.deepEqual(nowhere['service-ports'], [`${LB} . tcp . 80 : accept`]);
    assert.deepEqual(nowhere['no-endpoint-ports'], [`${LB} . tcp . 80 : goto reject-packet`]);
  });

  it('drops packets from sources outside loadBalancerSourceRanges', () => {
    const sourceRanges = [
      '10.0.0.0/8',
      '10.1.0.0/16',
      '10.1.2.3/32',
      '192.0.2.0/25',
      '192.0.2.128/25',
    ];
    const result = compiled(onlyLb({ sourceRanges, externalIPs: ['203.0.113.9'] }));
    assert.deepEqual(result['service-ports'], [
      '203.0.113.9 . tcp . 80 : goto external-port-2',
      `${LB} . tcp . 80 : goto firewall-port-external-port-2`,
    ]);
    assert.deepEqual(result['no-endpoint-ports'], [`${LB} . tcp . 80 : drop`]);
    assert.deepEqual(result.chains['firewall-port-external-port-2'], [
      'ip daddr . meta l4proto . th dport . ip saddr @allowed-port-sources goto external-port-2',
    ]);
    assert.deepEqual(result['allowed-port-sources'], [
      `${LB} . tcp . 80 . 10.0.0.0-10.255.255.255`,
      `${LB} . tcp . 80 . 192.0.2.0-192.0.2.127`,
      `${LB} . tcp . 80 . 192.0.2.128-192.0.2.255`,
    ]);
    const unserved = compiled(onlyLb({ sourceRanges }, []));
    assert.equal(unserved['allowed-port-sources'], undefined);
    assert.deepEqual(unserved['no-endpoint-ports'], [`${LB} . tcp . 80 : goto reject-packet`]);
  });

  it('allows load balancer VIPs as sources when source ranges contain the node', () => {
    const second = '203.0.113.2';
    const fields = { sourceRanges: ['192.0.2.0/24'], loadBalancerIPs: [LB, second] };
    const result = compiled(onlyLb({ match: ALL, ...fields }), { allowsOwnVips: true });
    const sources = ['192.0.2.0-192.0.2.255', LB, second];
    assert.deepEqual(
      result['allowed-vip-sources'],
      [LB, second].flatMap((vip) => sources.map((source) => `${vip} . 0 . ${source}`)),
    );
    assert.deepEqual(result.chains['firewall-all-external-ip-2'], [
      'ip daddr . numgen random mod 1 offset 0 . ip saddr @allowed-vip-sources goto external-ip-2',
    ]);
    const inside = compiled(onlyLb({ match: ALL, sourceRanges: ['203.0.113.0/24'] }), {
      allowsOwnVips: true,
    });
    assert.deepEqual(inside['allowed-vip-sources'], [`${LB} . 0 . 203.0.113.0-203.0.113.255`]);
    const ranged = compiled(onlyLb({ match: RANGES, sourceRanges: ['10.0.0.0/8'] }));
    assert.deepEqual(ranged['allowed-vip-sources'], [`${LB} . 1 . 10.0.0.0-10.255.255.255`]);
    // A source allowed for a range must not be allowed for a port in it that belongs to another Service.
    assert.equal(ranged['allowed-port-sources'], undefined);
    assert.match(
      ranged.chains['firewall-ranges-slot1-external-ip-2-slot1']?.[0] ?? '',
      /@allowed-vip-sources goto/,
    );
  });

  it('leaves the health check node port of all-ports load balancer VIPs to the node', () => {
    const fields = { healthCheckNodePort: 32_000, clusterIP: VIP };
    assert.deepEqual(compiled(onlyLb({ match: ALL, ...fields }))['health-check-node-ports'], [
      `${LB} . 32000`,
    ]);
    assert.deepEqual(compiled(onlyLb({ match: RANGES, ...fields }))['health-check-node-ports'], [
      `${LB} . 32000`,
    ]);
    assert.equal(compiled(onlyLb(fields))['health-check-node-ports'], undefined);
    assert.equal(compiled(onlyLb({ match: ALL }))['health-check-node-ports'], undefined);
  });

  it('rejects UDP and SCTP node ports on localhost, with or without endpoints, but not TCP', () => {
    const options = { rejectsOnLocalhost: true };
    for (const [family, clusterIP, localhost] of [
      ['IPv4', VIP, '127.0.0.1'],
      ['IPv6', 'fd00::10', '::1'],
    ] as const) {
      const rejected = (protocol: Protocol, fields: Partial<Route> = {}, on = options) => {
        const match: RouteMatch = { kind: 'port', protocol, port: 53 };
        const verdicts = compiled(
          route({ family, clusterIP, match, nodePort: 30_053, ...fields }, []),
          { options: on },
        )['no-endpoint-ports'];
        return verdicts?.filter((element) => element.startsWith(localhost));
      };
      assert.deepEqual(rejected('UDP'), [`${localhost} . udp . 30053 : goto reject-localhost-udp`]);
      assert.deepEqual(rejected('SCTP'), [
        `${localhost} . sctp . 30053 : goto reject-localhost-sctp`,
      ]);
      assert.deepEqual(rejected('TCP'), []);
      assert.deepEqual(rejected('UDP', { nodePort: 0 }), []);
      assert.deepEqual(rejected('UDP', {}, { rejectsOnLocalhost: false }), []);
    }
  });

  it('compiles a node port to elements by protocol and port', () => {
    const of = route({ nodePort: 30_080, affinitySeconds: 60 }, PODS);
    const result = compiled(of);
    assert.deepEqual(result['node-ports'], ['tcp . 30080 : goto external-node-port-2-affinity']);
    assert.deepEqual(result['node-port-endpoints'], [
      'tcp . 30080 . 0 : 10.244.0.1 . 8080',
      'tcp . 30080 . 1 : 10.244.0.2 . 8080',
    ]);
    assert.deepEqual(result['affinity-update-node-ports'], [
      'tcp . 30080 : goto update-affinity-60',
    ]);
    assert.equal(result['no-endpoint-node-ports'], undefined);
    const none = compiled(route({ nodePort: 30_080 }));
    assert.equal(none['node-ports'], undefined);
    assert.deepEqual(none['no-endpoint-node-ports'], ['tcp . 30080 : goto reject-packet']);
    const elsewhere = compiled(route({ nodePort: 30_080, externalLocal: true }, PODS));
    assert.deepEqual(elsewhere['node-ports'], [
      'tcp . 30080 : goto external-local-node-port-2-none',
    ]);
    assert.deepEqual(elsewhere['no-endpoint-node-ports'], ['tcp . 30080 : drop']);
    assert.equal(compiled(route({ match: ALL, nodePort: 30_080 }, PODS))['node-ports'], undefined);
  });

  it('looks up the affinity entry before selecting a random endpoint', () => {
    const result = compiled(route({ affinitySeconds: 10_800 }, PODS));
    assert.deepEqual(result['affinity-update-ports'], [
      `${VIP} . tcp . 80 : goto update-affinity-10800`,
    ]);
    assert.deepEqual(result.chains['internal-port-2-affinity']?.slice(1, 2), [
      'dnat ip to ip saddr . ip daddr . meta l4proto . th dport map @affinity',
    ]);
    assert.deepEqual(
      result.chains['update-affinity-10800']?.[1],
      [
        'meta l4proto udp update @affinity { ip saddr . ct original ip daddr . meta l4proto . ct original proto-dst timeout 10800s',
        ': ct reply ip saddr . ct reply proto-src }',
      ].join(' '),
    );
    const all = compiled(route({ match: ALL, affinitySeconds: 5 }, PODS));
    assert.deepEqual(all['affinity-update-ips'], [`${VIP} : goto update-affinity-ips-0-5`]);
    assert.deepEqual(all.chains['update-affinity-ips-0-5'], [
      'update @affinity-ips-0 { ip saddr . ct original ip daddr timeout 5s : ct reply ip saddr }',
    ]);
    assert.deepEqual(
      all.chains['internal-ip-2-affinity']?.[1],
      'dnat to ip saddr . ip daddr map @affinity-ips-0',
    );
    const place = { slot: 2, sharesWithAllPorts: false };
    const ranges = compiled(route({ match: RANGES, affinitySeconds: 5 }, PODS), {
      sharing: { [VIP]: place },
    });
    assert.deepEqual(
      ranges['affinity-update-range-services']?.[0],
      `${VIP} . 2 : goto update-affinity-ips-2-5`,
    );
    assert.match(ranges.chains['internal-ip-2-slot2-affinity']?.[1] ?? '', /map @affinity-ips-2$/);
    const local1 = compiled(
      onlyLb({ externalLocal: true, affinitySeconds: 5, localEndpoints: local(['10.244.0.2']) }),
    );
    const rules = local1.chains['external-local-port-2-affinity-port-1-local-affinity'] ?? [];
    assert.match(rules[0] ?? '', /goto select-endpoint-port-2-affinity$/);
    assert.match(rules[2] ?? '', /map @affinity$/);
  });

  it('excludes a port beside an all-ports Service from affinity updates', () => {
    const besideAllPorts = { sharing: { [VIP]: { slot: 0, sharesWithAllPorts: true } } };
    assert.deepEqual(compiled(route({}, PODS), besideAllPorts)['affinity-update-ports'], [
      `${VIP} . tcp . 80 : accept`,
    ]);
    const slot = { sharing: { [VIP]: { slot: 1, sharesWithAllPorts: true } } };
    const ranges = compiled(route({ match: RANGES }, PODS), slot);
    assert.deepEqual(ranges['affinity-update-range-services'], [`${VIP} . 1 : accept`]);
    assert.equal(
      compiled(route({ match: ALL }, PODS), besideAllPorts)['affinity-update-ips'],
      undefined,
    );
    assert.equal(compiled(route({}, PODS))['affinity-update-ports'], undefined);
    const own = compiled(route({ affinitySeconds: 7 }, PODS), besideAllPorts);
    assert.deepEqual(own['affinity-update-ports'], [`${VIP} . tcp . 80 : goto update-affinity-7`]);
  });

  it('masquerades by --masquerade-all, the masquerade bit and the local detector', () => {
    const first = (options: Partial<NftPlanOptions>) =>
      compiled(route({}, PODS), { options }).chains['internal-port-2']?.[0];
    assert.equal(
      first({ masqueradeAll: true, masqueradeBit: 31 }),
      'meta mark set meta mark | 0x80000000',
    );
    assert.match(first({ localDetector: undefined }) ?? '', /^dnat/);
    assert.match(
      first({ localDetector: { kind: 'interface', name: 'cali+' } }) ?? '',
      /^iifname != "cali\*" meta mark set/,
    );
  });
});
