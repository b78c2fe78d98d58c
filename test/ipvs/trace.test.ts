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

/** A packet, and the cluster in which it is sent. */
interface Case {
  readonly cluster: Cluster;
  readonly packet: Packet;
  /** Whether the destination is bound to the dummy device. A VIP that is a node address is not. */
  readonly isBound: boolean;
}

interface Difference {
  readonly reason: string;
  /** The outcome in the ipvs mode; undefined if it is the same. */
  becomes(outcome: string, each: Case): string | undefined;
}

const isTranslated = (outcome: string) => / port \d/.test(outcome);
const rejection = ({ destination }: Packet) =>
  `REJECT ${destination.includes(':') ? 'icmp6' : 'icmp'}-port-unreachable`;

const isAllPorts = ({ cluster, packet }: Case) =>
  cluster.routes.some(
    ({ match, clusterIP, loadBalancerIPs }) =>
      match.kind !== 'port' && [clusterIP, ...loadBalancerIPs].includes(packet.destination),
  );

/** Whether the packet is a load balancer's health check. */
const isProbe = ({ cluster, packet: { destination, protocol, port } }: Case) =>
  protocol === 'tcp' &&
  cluster.routes.some(
    ({ loadBalancerIPs, healthCheckNodePort }) =>
      loadBalancerIPs.includes(destination) && healthCheckNodePort === port && port > 0,
  );

/** All differences of the ipvs mode from the outcome that Routes define, applied in order. */
const DIFFERENCES: readonly Difference[] = [
  {
    reason: 'packets to endpoints leave by OUTPUT, so FORWARD need not accept them',
    becomes: (outcome) => (isTranslated(outcome) ? outcome.replace(', accepted', '') : undefined),
  },
  {
    reason: 'IPVS does not schedule ping; the node answers it',
    becomes: (outcome, { packet }) =>
      packet.protocol === 'icmp' && isTranslated(outcome) ? 'untouched' : undefined,
  },
  {
    reason: 'packets to port 0 of an all-ports VIP are dropped before anything else',
    becomes: (_outcome, { packet, ...each }) =>
      packet.protocol !== 'icmp' && packet.port === 0 && isAllPorts({ packet, ...each })
        ? 'DROP'
        : undefined,
  },
  {
    reason:
      'a process on the node has the VIP or a node address as source; replies do not pass the node',
    becomes: (outcome, each) => {
      const { packet, isBound } = each;
      const isHere = packet.inInterface === undefined && isBound;
      if (!isHere || isProbe(each) || outcome.includes('masqueraded')) return undefined;
      if (packet.source !== packet.destination && !isAllPorts(each)) return undefined;
      return /^(DROP|REJECT)/.test(outcome) ? undefined : `${outcome}, masqueraded`;
    },
  },
  {
    reason:
      'load balancers probe a VIP on the dummy device, also if it belongs to a listed Service',
    becomes: (_outcome, each) =>
      each.isBound && isProbe(each) ? 'untouched, accepted' : undefined,
  },
  {
    reason:
      'a VIP on the dummy device is local: packets of no Service are rejected (kubernetes#72236)',
    becomes: (outcome, each) => {
      const { packet, isBound } = each;
      if (!isBound || packet.protocol === 'icmp' || isProbe(each)) return undefined;
      return outcome.startsWith('untouched') ? rejection(packet) : undefined;
    },
  },
];

/** Reasons that applied to some packet in this file. */
const used = new Set<string>();

function inThisMode(outcome: string, each: Case): string {
  return DIFFERENCES.reduce((before, { reason, becomes }) => {
    const after = becomes(before, each);
    if (after === undefined || after === before) return before;
    used.add(reason);
    return after;
  }, outcome);
}

function compare(kernel: Kernel, each: Case): void {
  const { cluster, packet } = each;
  const { outcomes, sticky } = expectedOutcomes(cluster, packet);
  const expected = new Set([...outcomes].map((outcome) => inThisMode(outcome, each)));
  const paths = packetPaths(kernel, packet);
  const actual = new Set(paths.map(({ outcome }) => outcome));
  const text = (set: ReadonlySet<string>) => [...set].sort().join('; ');
  if (text(actual) !== text(expected)) {
    const where = { packet, ...cluster, local: [...cluster.local] };
    assert.equal(text(actual), text(expected), JSON.stringify(where, null, 1));
  }
  if (!sticky) return;
  for (const { outcome, affinityEntries } of paths) {
    const again = packetPaths(kernel, { ...packet, affinityEntries });
    assert.deepEqual([...new Set(again.map((way) => way.outcome))], [outcome]);
  }
}

function tablesFor(routes: readonly Route[]): Kernel {
  return kernelWith(itemsOf(routes, 'IPv4', [NODE]), [NODE], {});
}

const NODE = '192.0.2.7';

describe('trace: one packet through the ipvs mode', () => {
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
  const outcomes = (routes: readonly Route[], sent: Packet) => [
    ...new Set(packetPaths(tablesFor(routes), sent).map(({ outcome }) => outcome)),
  ];

  it('prefers a listed port of one Service to a range of another, for every client', () => {
    for (const sender of [{}, POD, OWN]) {
      const expected = ['10.244.0.9 port 8080, masqueraded'];
      for (const wide of [ranges, all]) {
        assert.deepEqual(
          outcomes([wide({ externalLocal: true }), exact()], clientPacket(sender)),
          expected,
        );
        assert.deepEqual(
          outcomes([exact(), wide({ externalLocal: true })], clientPacket(sender)),
          expected,
        );
      }
    }
  });

  it('applies the source ranges of each Service on a shared VIP separately', () => {
    const outsider = clientPacket({ source: '198.51.100.9' });
    const theirs = { sourceRanges: ['198.51.100.0/24'] };
    const ours = { sourceRanges: ['192.0.2.0/24'] };
    for (const [narrow, wide] of [
      [exact, ranges],
      [exact, all],
      [ranges, all],
    ] as const) {
      assert.deepEqual(outcomes([narrow(ours), wide(theirs)], outsider), ['DROP']);
      assert.deepEqual(outcomes([narrow(theirs), wide(ours)], clientPacket()), ['DROP']);
      assert.notDeepEqual(outcomes([narrow(ours), wide(theirs)], clientPacket()), ['DROP']);
    }
  });

  describe('with a listed port and external traffic policy Local', () => {
    const [A, B] = [
      { address: '10.244.0.2', port: 8080 },
      { address: '10.244.0.3', port: 8080 },
    ];
    const local = (fields: Partial<Route> = {}) =>
      exact({ clusterEndpoints: [A, B], localEndpoints: [A], externalLocal: true, ...fields });

    it('sends a pod to the target port of every endpoint, also with session affinity', () => {
      for (const affinitySeconds of [0, 60]) {
        assert.deepEqual(outcomes([local({ affinitySeconds })], clientPacket(POD)).sort(), [
          '10.244.0.2 port 8080',
          '10.244.0.3 port 8080',
        ]);
      }
    });

    it('sends a pod to endpoints of its zone, and other clients to those on the node', () => {
      const routes = [local({ clusterEndpoints: [A], localEndpoints: [A, B] })];
      assert.deepEqual(outcomes(routes, clientPacket(POD)), ['10.244.0.2 port 8080']);
      assert.equal(outcomes(routes, clientPacket()).length, 2);
    });

    it('serves another Service that lists its health check port', () => {
      const routes = [
        local({ id: 'checked', name: 'default/checked', healthCheckNodePort: 32_000 }),
        exact({ match: { kind: 'port', protocol: 'TCP', port: 32_000 } }),
      ];
      assert.deepEqual(outcomes(routes, clientPacket({ port: 32_000 })), [
        '10.244.0.9 port 8080, masqueraded',
      ]);
    });
  });

  it('rejects ports of a range without a mark, even if another Service has all ports', () => {
    const base = compileOptions({ nodeAddresses: [NODE] });
    const markOf = (owner: string) =>
      owner.startsWith('default/ranges') ? undefined : base.markOf(owner);
    const items = [ranges(), all()].flatMap((each) =>
      compileIpvsItems(trafficPlan(each, false), { ...base, markOf }),
    );
    const unique = [...new Map(items.map((item) => [itemKey(item), item])).values()];
    const paths = packetPaths(kernelWith(unique, [NODE], {}), clientPacket());
    assert.deepEqual(
      paths.map(({ outcome }) => outcome),
      ['REJECT icmp-port-unreachable'],
    );
  });

  it('prefers a listed port of a VIP on a node address to a node port', () => {
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
      assert.deepEqual(outcomes(routes, sent), ['10.244.0.9 port 8080, masqueraded']);
    }
    assert.deepEqual(outcomes([withNodePort], sent), ['10.244.0.2 port 8080, masqueraded']);
  });

  it('answers pings of the node to a VIP without local endpoints', () => {
    const routes = [all({ externalLocal: true, localEndpoints: [] })];
    const ping = clientPacket({ ...OWN, protocol: 'icmp', port: 0 });
    assert.deepEqual(outcomes(routes, ping), ['untouched, masqueraded']);
    const fromOutside = clientPacket({ protocol: 'icmp', port: 0 });
    assert.deepEqual(outcomes(routes, fromOutside), ['DROP']);
  });

  it('rejects source port 20, which IPVS does not schedule, so that the host does not answer', () => {
    for (const sender of [{}, POD, OWN, { source: NODE, inInterface: undefined }]) {
      const sent = clientPacket({ ...sender, sourcePort: 20 });
      for (const each of [exact(), ranges(), all()]) {
        assert.deepEqual(outcomes([each], sent), ['REJECT icmp-port-unreachable']);
      }
    }
  });

  it('keeps session affinity of all ports across ports and protocols, for each client', () => {
    const kernel = tablesFor([all({ affinitySeconds: 60 })]);
    for (const { outcome, affinityEntries } of packetPaths(kernel, clientPacket())) {
      const again = packetPaths(
        kernel,
        clientPacket({ port: 5060, protocol: 'udp', affinityEntries }),
      );
      assert.deepEqual(
        again.map((each) => each.outcome),
        [outcome.replace('port 80', 'port 5060')],
      );
      const other = clientPacket({ source: '192.0.2.51', affinityEntries });
      assert.equal(packetPaths(kernel, other).length, 2);
    }
  });

  it('lets a health check of a listed Service reach the node when another has all ports', () => {
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

  it('does not masquerade packets from a loopback address', () => {
    const sent = clientPacket({ source: '127.0.0.1', inInterface: undefined });
    assert.deepEqual(outcomes([exact()], sent), ['10.244.0.9 port 8080']);
  });
});

describe('trace: generated packets through the ipvs mode', () => {
  for (const family of IP_FAMILIES) {
    it(`gives each packet the outcome that its Route defines (${family})`, () => {
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

  it('reproduces each listed difference from Routes', () => {
    assert.deepEqual(
      DIFFERENCES.map(({ reason }) => reason).filter((reason) => !used.has(reason)),
      [],
    );
  });
});
