import assert from 'node:assert/strict';
import fc from 'fast-check';
import { IP_FAMILIES } from '../../api/objects.ts';
import { compileIpvsItems } from '../../ipvs/compile.ts';
import { itemKey } from '../../ipvs/items.ts';
import type { Route } from '../../services/route.ts';
import { trafficPlan } from '../../traffic/plan.ts';
import { arbitraryChange } from '../iptables/generated.ts';
import {
  clientPacket,
  clusterAfter,
  localDetectors,
  packets,
  VIP,
  wideRoute,
} from '../iptables/test-cluster.ts';
import { type Cluster, expectedOutcomes, type Packet } from '../traffic/expected-outcome.ts';
import { compileOptions, itemsOf, kernelWith } from './simulated-node.ts';
import { type Kernel, packetPaths } from './tracer.ts';

/** A packet, where it goes to, and what Routes say of it. */
interface Case {
  readonly cluster: Cluster;
  readonly packet: Packet;
  /** The destination is on the dummy device; no VIP that is the node's own address is. */
  readonly isBound: boolean;
}

interface Difference {
  readonly reason: string;
  /** The fate in this mode; undefined when it is the same. */
  becomes(fate: string, each: Case): string | undefined;
}

const isTranslated = (fate: string) => / port \d/.test(fate);
const rejection = ({ destination }: Packet) =>
  `REJECT ${destination.includes(':') ? 'icmp6' : 'icmp'}-port-unreachable`;

const isAllPorts = ({ cluster, packet }: Case) =>
  cluster.routes.some(
    ({ match, clusterIP, loadBalancerIPs }) =>
      match.kind !== 'port' && [clusterIP, ...loadBalancerIPs].includes(packet.destination),
  );

/** Of a load balancer that looks whether the node has endpoints. */
const isProbe = ({ cluster, packet: { destination, protocol, port } }: Case) =>
  protocol === 'tcp' &&
  cluster.routes.some(
    ({ loadBalancerIPs, healthCheckNodePort }) =>
      loadBalancerIPs.includes(destination) && healthCheckNodePort === port && port > 0,
  );

/** All that this mode does otherwise than Routes say, each on top of those before. */
const DIFFERENCES: readonly Difference[] = [
  {
    reason: 'packets to endpoints leave by OUTPUT, so FORWARD need not accept them',
    becomes: (fate) => (isTranslated(fate) ? fate.replace(', accepted', '') : undefined),
  },
  {
    reason: 'IPVS schedules no ping; the node answers it',
    becomes: (fate, { packet }) =>
      packet.protocol === 'icmp' && isTranslated(fate) ? 'untouched' : undefined,
  },
  {
    reason: 'nobody listens on port 0 of an all-ports VIP: dropped before anything is looked at',
    becomes: (_fate, { packet, ...each }) =>
      packet.protocol !== 'icmp' && packet.port === 0 && isAllPorts({ packet, ...each })
        ? 'DROP'
        : undefined,
  },
  {
    reason:
      'a process of the node has the VIP for its source, or its address; both lead no reply past it',
    becomes: (fate, each) => {
      const { packet, isBound } = each;
      const isHere = packet.inInterface === undefined && isBound;
      if (!isHere || isProbe(each) || fate.includes('masqueraded')) return undefined;
      if (packet.source !== packet.destination && !isAllPorts(each)) return undefined;
      return /^(DROP|REJECT)/.test(fate) ? undefined : `${fate}, masqueraded`;
    },
  },
  {
    reason:
      'load balancers probe a VIP on the dummy device also where it is that of a listed Service',
    becomes: (_fate, each) => (each.isBound && isProbe(each) ? 'untouched, accepted' : undefined),
  },
  {
    reason: 'a VIP on the dummy device is a local address: what nobody serves is rejected (72236)',
    becomes: (fate, each) => {
      const { packet, isBound } = each;
      if (!isBound || packet.protocol === 'icmp' || isProbe(each)) return undefined;
      return fate.startsWith('untouched') ? rejection(packet) : undefined;
    },
  },
];

/** Reasons that some packet of these tests met. */
const used = new Set<string>();

function inThisMode(fate: string, each: Case): string {
  return DIFFERENCES.reduce((before, { reason, becomes }) => {
    const after = becomes(before, each);
    if (after === undefined || after === before) return before;
    used.add(reason);
    return after;
  }, fate);
}

function compare(kernel: Kernel, each: Case): void {
  const { cluster, packet } = each;
  const { outcomes, sticky } = expectedOutcomes(cluster, packet);
  const expected = new Set([...outcomes].map((fate) => inThisMode(fate, each)));
  const ways = packetPaths(kernel, packet);
  const met = new Set(ways.map(({ outcome: fate }) => fate));
  const text = (set: ReadonlySet<string>) => [...set].sort().join('; ');
  if (text(met) !== text(expected)) {
    const where = { packet, ...cluster, local: [...cluster.local] };
    assert.equal(text(met), text(expected), JSON.stringify(where, null, 1));
  }
  if (!sticky) return;
  for (const { outcome: fate, affinityEntries: memory } of ways) {
    const again = packetPaths(kernel, { ...packet, affinityEntries: memory });
    assert.deepEqual([...new Set(again.map((way) => way.outcome))], [fate]);
  }
}

function tablesFor(routes: readonly Route[]): Kernel {
  return kernelWith(itemsOf(routes, 'IPv4', [NODE]), [NODE], {});
}

const NODE = '192.0.2.7';

describe('trace: one packet through the IPVS mode', () => {
  const ranges = (fields: Partial<Route> = {}) =>
    wideRoute({
      id: 'ranges',
      name: 'default/ranges',
      match: { kind: 'ranges', ranges: [{ protocol: 'TCP', from: 80, to: 90 }] },
      clusterIP: undefined,
      ...fields,
    });
  const exact = (fields: Partial<Route> = {}) =>
    ranges({
      id: 'exact',
      name: 'default/exact',
      match: { kind: 'port', protocol: 'TCP', port: 80 },
      clusterEndpoints: [{ address: '10.244.0.9', port: 8080 }],
      localEndpoints: [],
      ...fields,
    });
  const all = (fields: Partial<Route> = {}) =>
    ranges({ id: 'all', name: 'default/all', match: { kind: 'all' }, ...fields });
  const POD = { source: '10.244.0.7', inInterface: 'cali7' };
  const OWN = { source: VIP, inInterface: undefined };
  const fates = (routes: readonly Route[], sent: Packet) => [
    ...new Set(packetPaths(tablesFor(routes), sent).map(({ outcome: fate }) => fate)),
  ];

  it('a listed port of one Service is not in the range of another, for nobody', () => {
    for (const sender of [{}, POD, OWN]) {
      const expected = ['10.244.0.9 port 8080, masqueraded'];
      for (const wide of [ranges, all]) {
        assert.deepEqual(
          fates([wide({ externalLocal: true }), exact()], clientPacket(sender)),
          expected,
        );
        assert.deepEqual(
          fates([exact(), wide({ externalLocal: true })], clientPacket(sender)),
          expected,
        );
      }
    }
  });

  it('who may use one Service of a shared VIP may not use the other', () => {
    const stranger = clientPacket({ source: '198.51.100.9' });
    const theirs = { sourceRanges: ['198.51.100.0/24'] };
    const ours = { sourceRanges: ['192.0.2.0/24'] };
    for (const [narrow, wide] of [
      [exact, ranges],
      [exact, all],
      [ranges, all],
    ] as const) {
      assert.deepEqual(fates([narrow(ours), wide(theirs)], stranger), ['DROP']);
      assert.deepEqual(fates([narrow(theirs), wide(ours)], clientPacket()), ['DROP']);
      assert.notDeepEqual(fates([narrow(ours), wide(theirs)], clientPacket()), ['DROP']);
    }
  });

  describe('of a listed port whose external traffic policy is Local', () => {
    const [A, B] = [
      { address: '10.244.0.2', port: 8080 },
      { address: '10.244.0.3', port: 8080 },
    ];
    const local = (fields: Partial<Route> = {}) =>
      exact({ clusterEndpoints: [A, B], localEndpoints: [A], externalLocal: true, ...fields });

    it('a pod reaches the target port of every endpoint, with affinity too', () => {
      for (const affinitySeconds of [0, 60]) {
        assert.deepEqual(fates([local({ affinitySeconds })], clientPacket(POD)).sort(), [
          '10.244.0.2 port 8080',
          '10.244.0.3 port 8080',
        ]);
      }
    });

    it('a pod reaches the endpoints of its zone, others those of the node', () => {
      const routes = [local({ clusterEndpoints: [A], localEndpoints: [A, B] })];
      assert.deepEqual(fates(routes, clientPacket(POD)), ['10.244.0.2 port 8080']);
      assert.equal(fates(routes, clientPacket()).length, 2);
    });

    it('another Service may list the port of its health check', () => {
      const routes = [
        local({ id: 'checked', name: 'default/checked', healthCheckNodePort: 32_000 }),
        exact({ match: { kind: 'port', protocol: 'TCP', port: 32_000 } }),
      ];
      assert.deepEqual(fates(routes, clientPacket({ port: 32_000 })), [
        '10.244.0.9 port 8080, masqueraded',
      ]);
    });
  });

  it("ports of a range for which no mark is left are nobody else's", () => {
    const base = compileOptions({ nodeAddresses: [NODE] });
    const markOf = (owner: string) =>
      owner.startsWith('default/ranges') ? undefined : base.markOf(owner);
    const items = [ranges(), all()].flatMap((each) =>
      compileIpvsItems(trafficPlan(each, false), { ...base, markOf }),
    );
    const unique = [...new Map(items.map((item) => [itemKey(item), item])).values()];
    const ways = packetPaths(kernelWith(unique, [NODE], {}), clientPacket());
    assert.deepEqual(
      ways.map(({ outcome: fate }) => fate),
      ['REJECT icmp-port-unreachable'],
    );
  });

  it('a node port yields to the same port of a VIP that is an address of the node', () => {
    const withNodePort = exact({
      id: 'node-port',
      name: 'default/node-port',
      loadBalancerIPs: [],
      clusterIP: '10.96.0.1',
      match: { kind: 'port', protocol: 'TCP', port: 9999 },
      nodePort: 30_080,
      clusterEndpoints: [{ address: '10.244.0.2', port: 8080 }],
    });
    const onNode = exact({
      loadBalancerIPs: [NODE],
      match: { kind: 'port', protocol: 'TCP', port: 30_080 },
    });
    const sent = clientPacket({ destination: NODE, port: 30_080 });
    for (const routes of [
      [withNodePort, onNode],
      [onNode, withNodePort],
    ]) {
      assert.deepEqual(fates(routes, sent), ['10.244.0.9 port 8080, masqueraded']);
    }
    assert.deepEqual(fates([withNodePort], sent), ['10.244.0.2 port 8080, masqueraded']);
  });

  it('the node may ping a VIP whose only endpoints are elsewhere', () => {
    const routes = [all({ externalLocal: true, localEndpoints: [] })];
    const ping = clientPacket({ ...OWN, protocol: 'icmp', port: 0 });
    assert.deepEqual(fates(routes, ping), ['untouched, masqueraded']);
    const fromOutside = clientPacket({ protocol: 'icmp', port: 0 });
    assert.deepEqual(fates(routes, fromOutside), ['DROP']);
  });

  it('clients at port 20 are rejected, for the host would answer them', () => {
    for (const sender of [{}, POD, OWN, { source: NODE, inInterface: undefined }]) {
      const sent = clientPacket({ ...sender, sourcePort: 20 });
      for (const each of [exact(), ranges(), all()]) {
        assert.deepEqual(fates([each], sent), ['REJECT icmp-port-unreachable']);
      }
    }
  });

  it('affinity of all ports holds across ports and protocols, for one client', () => {
    const kernel = tablesFor([all({ affinitySeconds: 60 })]);
    for (const { outcome: fate, affinityEntries: memory } of packetPaths(kernel, clientPacket())) {
      const again = packetPaths(
        kernel,
        clientPacket({ port: 5060, protocol: 'udp', affinityEntries: memory }),
      );
      assert.deepEqual(
        again.map((each) => each.outcome),
        [fate.replace('port 80', 'port 5060')],
      );
      const other = clientPacket({ source: '192.0.2.51', affinityEntries: memory });
      assert.equal(packetPaths(kernel, other).length, 2);
    }
  });

  it('a probe of a listed Service reaches the node though all ports are of another', () => {
    const routes = [exact({ externalLocal: true, healthCheckNodePort: 32000 }), all()];
    const kernel = tablesFor(routes);
    const cluster = {
      routes,
      nodeAddresses: [NODE],
      local: kernel.local,
      nodePortAddresses: new Set([NODE]),
      masqueradeAll: false,
      knowsPods: false,
      isPod: () => false,
    };
    for (const port of [31999, 32000]) {
      compare(kernel, { cluster, packet: clientPacket({ port }), isBound: true });
    }
  });

  it('what is sent from a loopback address is not masqueraded', () => {
    const sent = clientPacket({ source: '127.0.0.1', inInterface: undefined });
    assert.deepEqual(fates([exact()], sent), ['10.244.0.9 port 8080']);
  });
});

describe('trace: packets through the IPVS mode', () => {
  for (const family of IP_FAMILIES) {
    it(`meet the fate that Routes say (${family})`, () => {
      const settings = fc.record({
        masqueradeAll: fc.boolean(),
        localDetector: localDetectors(family),
      });
      const steps = fc.array(arbitraryChange, { minLength: 10, maxLength: 40 });
      fc.assert(
        fc.property(steps, settings, (each, rest) => {
          const cluster = clusterAfter(each, family, { holdsVips: false, ...rest });
          const { routes, nodeAddresses } = cluster;
          const items = itemsOf(routes, family, nodeAddresses);
          const kernel = kernelWith(items, nodeAddresses, { family, ...rest });
          const { local } = kernel;
          for (const packet of packets(family, local)) {
            const { destination } = packet;
            const isBound = local.has(destination) && !nodeAddresses.includes(destination);
            compare(kernel, { cluster: { ...cluster, local }, packet, isBound });
          }
        }),
        { seed: 42, numRuns: 80, endOnFailure: true },
      );
    });
  }

  it('differ from Routes in every way that is listed', () => {
    assert.deepEqual(
      DIFFERENCES.map(({ reason }) => reason).filter((reason) => !used.has(reason)),
      [],
    );
  });
});
