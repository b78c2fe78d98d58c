import assert from 'node:assert/strict';
import type { Endpoint } from '../../endpoints/select.ts';
import type { Route, RouteMatch } from '../../services/route.ts';
import { nonPodClients } from '../../traffic/options.ts';
import {
  allowsOwnVips,
  type Dispatch,
  dependsOnNodeAddresses,
  needsHairpin,
  type TrafficPlan,
  trafficPlan,
} from '../../traffic/plan.ts';
import { route } from '../fixtures.ts';
import { type Cluster, expectedOutcomes, outcomeText, type Packet } from './expected-outcome.ts';

const CLUSTER_IP = '10.96.0.10';
const EXTERNAL_IP = '198.51.100.1';
const [LB, LB2] = ['203.0.113.1', '203.0.113.2'] as const;
const NODE = '192.0.2.7';
const CLIENT = '192.0.2.50';
const HERE = '10.244.0.1';
const THERE = '10.244.1.1';
const POD_CIDR = '10.244.0.0/16';
const NODE_PORT = 30_080;
const HEALTH_PORT = 32_000;

const MATCHES: Readonly<Record<RouteMatch['kind'], RouteMatch>> = {
  port: { kind: 'port', protocol: 'TCP', port: 80 },
  ranges: { kind: 'ranges', ranges: [{ protocol: 'TCP', from: 80, to: 32_767 }] },
  all: { kind: 'all' },
};

/** Endpoints for policy Cluster, for policy Local, and in the whole cluster. */
const ENDPOINTS = {
  'no endpoint': [[], [], false],
  'one that this node may not use': [[], [], true],
  'one elsewhere': [[THERE], [], true],
  'one here': [[HERE], [HERE], true],
  'one here, one elsewhere': [[HERE, THERE], [HERE], true],
  'one here, for policy Local only': [[], [HERE], true],
} as const satisfies Readonly<
  Record<string, readonly [readonly string[], readonly string[], boolean]>
>;
type Endpoints = keyof typeof ENDPOINTS;

/** A Route with a VIP of each kind and, if it matches one port, a node port. */
function served(where: Endpoints, match: RouteMatch['kind'], fields: Partial<Route> = {}): Route {
  const [cluster, local, anywhere] = ENDPOINTS[where];
  const endpoint = (address: string): Endpoint => ({
    address,
    port: match === 'port' ? 8080 : undefined,
    ...(address === THERE ? { isRemote: true as const } : {}),
  });
  return route({
    match: MATCHES[match],
    clusterIP: CLUSTER_IP,
    externalIPs: [EXTERNAL_IP],
    loadBalancerIPs: [LB, LB2],
    nodePort: match === 'port' ? NODE_PORT : 0,
    clusterEndpoints: cluster.map(endpoint),
    localEndpoints: local.map(endpoint),
    hasEndpointsAnywhere: anywhere,
    ...fields,
  });
}

/** Flags that decide which clients of cluster IPs are masqueraded. */
const FLAGS = {
  'no local detector': { masqueradeAll: false, localDetector: undefined },
  'a local detector': { masqueradeAll: false, localDetector: { kind: 'cidr', cidr: POD_CIDR } },
  'masquerade-all': { masqueradeAll: true, localDetector: { kind: 'cidr', cidr: POD_CIDR } },
} as const;
type Flags = (typeof FLAGS)[keyof typeof FLAGS];

function clusterOf(of: Route, { masqueradeAll, localDetector }: Flags): Cluster {
  const knowsPods = localDetector !== undefined;
  return {
    routes: [of],
    nodeAddresses: [NODE],
    local: new Set([NODE, LB]),
    nodePortAddresses: new Set([NODE]),
    masqueradeAll,
    knowsPods,
    isPod: ({ source }) => knowsPods && source.startsWith('10.244.'),
  };
}

const SENDERS: readonly Pick<Packet, 'source' | 'inInterface'>[] = [
  { source: HERE, inInterface: 'veth1' },
  { source: '10.244.0.9', inInterface: 'veth9' },
  { source: THERE, inInterface: 'eth0' },
  { source: CLIENT, inInterface: 'eth0' },
  { source: NODE, inInterface: undefined },
  // The node connects to a VIP that it holds.
  { source: LB, inInterface: undefined },
];

function* packetsTo(of: Route): Iterable<Packet> {
  for (const sender of SENDERS) {
    for (const port of [80, 79, HEALTH_PORT]) {
      for (const destination of [CLUSTER_IP, EXTERNAL_IP, LB, LB2]) {
        // The pod's own node has translated the packet already, see `needsHairpin`.
        if (sender.source === THERE && destination === CLUSTER_IP) continue;
        yield { ...sender, destination, protocol: 'tcp', port };
      }
    }
    if (of.nodePort > 0) {
      yield { ...sender, destination: NODE, protocol: 'tcp', port: NODE_PORT };
    }
  }
}

/** The outcome of a packet by the plan alone, as a backend renders it. */
function plannedOutcomes(plan: TrafficPlan, cluster: Cluster, flags: Flags, packet: Packet) {
  const { source, destination, port } = packet;
  const vip = plan.vips.find((each) => each.vip === destination);
  const isPod = cluster.isPod(packet);
  if (vip === undefined) {
    assert.equal(plan.nodePort?.port, port);
    return servedBy(plan, plan.nodePort.dispatch);
  }
  if (vip.healthCheckPort === port) return [outcomeText({})];
  const { match } = plan;
  if (match.kind === 'port' && match.port !== port) return [outcomeText({})];
  if (match.kind === 'ranges' && port < 80) return ['REJECT icmp-port-unreachable'];
  const { sources } = vip;
  if (sources !== undefined) {
    const isIn = sources.ranges.some((cidr) => source.startsWith(cidr.replace(/0\/24$/, '')));
    if (!isIn && !sources.ownVips.includes(source)) return ['DROP'];
  }
  return servedBy(plan, vip.dispatch);

  function servedBy({ affinitySeconds }: TrafficPlan, dispatch: Dispatch): string[] {
    assert.equal(affinitySeconds, cluster.routes[0]?.affinitySeconds);
    const isNode = packet.inInterface === undefined;
    const usesPodsAndNode = (isPod || isNode) && (dispatch.podsAndNode?.endpoints.length ?? 0) > 0;
    const { endpoints } = (usesPodsAndNode ? dispatch.podsAndNode : undefined) ?? dispatch.others;
    if (endpoints.length === 0) {
      return [dispatch.untranslatedVerdict === 'drop' ? 'DROP' : 'REJECT icmp-port-unreachable'];
    }
    const nonPods = nonPodClients(flags);
    const isMasqueraded = {
      all: true,
      'non-pods': nonPods === 'all' || (nonPods !== 'none' && !isPod),
      node: usesPodsAndNode && !isPod,
    }[dispatch.masquerade];
    return endpoints.map((endpoint) => {
      const isHairpin = endpoint.address === source && needsHairpin(plan, endpoint);
      const translated = { address: endpoint.address, port: endpoint.port ?? port };
      return outcomeText({ translated, masqueraded: isMasqueraded || isHairpin });
    });
  }
}

const BOTH = [false, true];

describe('plan: a TrafficPlan', () => {
  for (const match of ['port', 'ranges', 'all'] as const) {
    it(`plans the expected outcome for every traffic policy and endpoint location (match ${match})`, () => {
      let compared = 0;
      for (const where of Object.keys(ENDPOINTS) as Endpoints[]) {
        for (const flags of Object.values(FLAGS)) {
          for (const [internalLocal, externalLocal, hasHealthPort, isSticky] of combinations(4)) {
            for (const sourceRanges of [undefined, ['192.0.2.0/24'], ['10.244.0.0/24']]) {
              const of = served(where, match, {
                internalLocal: internalLocal === true,
                externalLocal: externalLocal === true,
                healthCheckNodePort: hasHealthPort === true ? HEALTH_PORT : 0,
                affinitySeconds: isSticky === true ? 60 : 0,
                sourceRanges,
              });
              const cluster = clusterOf(of, flags);
              const plan = trafficPlan(of, allowsOwnVips(of, cluster.nodeAddresses));
              for (const packet of packetsTo(of)) {
                const { outcomes, sticky } = expectedOutcomes(cluster, packet);
                assert.deepEqual(
                  new Set(plannedOutcomes(plan, cluster, flags, packet)),
                  // A plan does not say whether a rule must accept the packet.
                  new Set([...outcomes].map((outcome) => outcome.replace(', accepted', ''))),
                  JSON.stringify({ where, flags, of, packet }),
                );
                if (sticky) assert.equal(plan.affinitySeconds, 60);
                compared += 1;
              }
            }
          }
        }
      }
      assert.ok(compared > 50_000);
    });
  }

  /** `cluster`: endpoints for policy Cluster; with a star the client is masqueraded. */
  type Row = [
    Endpoints,
    'Cluster' | 'Local',
    pods: string,
    node: string,
    outside: string,
    untranslated: string,
  ];
  const tables: Readonly<Record<'cluster IP' | 'external', readonly Row[]>> = {
    'cluster IP': [
      ['one here, one elsewhere', 'Cluster', 'cluster', 'cluster*', 'cluster*', 'none'],
      ['one here, one elsewhere', 'Local', 'local', 'local*', 'local*', 'none'],
      ['one elsewhere', 'Cluster', 'cluster', 'cluster*', 'cluster*', 'none'],
      ['one elsewhere', 'Local', '-', '-', '-', 'drop'],
      ['one that this node may not use', 'Cluster', '-', '-', '-', 'drop'],
      ['no endpoint', 'Cluster', '-', '-', '-', 'reject'],
      ['no endpoint', 'Local', '-', '-', '-', 'reject'],
    ],
    external: [
      ['one here, one elsewhere', 'Cluster', 'cluster*', 'cluster*', 'cluster*', 'none'],
      ['one here, one elsewhere', 'Local', 'cluster', 'cluster*', 'local', 'none'],
      ['one elsewhere', 'Cluster', 'cluster*', 'cluster*', 'cluster*', 'none'],
      ['one elsewhere', 'Local', 'cluster', 'cluster*', '-', 'drop'],
      ['one that this node may not use', 'Local', '-', '-', '-', 'drop'],
      ['no endpoint', 'Cluster', '-', '-', '-', 'reject'],
      ['no endpoint', 'Local', '-', '-', '-', 'reject'],
    ],
  };
  for (const [access, rows] of Object.entries(tables)) {
    for (const [where, policy, pods, node, outside, untranslated] of rows) {
      it(`${access}, policy ${policy}, ${where}: pods ${pods}, node ${node}, outside ${outside}, untranslated ${untranslated}`, () => {
        const isLocal = policy === 'Local';
        const isInternal = access === 'cluster IP';
        const policies = {
          internalLocal: isInternal && isLocal,
          externalLocal: !isInternal && isLocal,
        };
        const plan = trafficPlan(served(where, 'port', policies), false);
        const dispatches = isInternal
          ? plan.vips.slice(0, 1).map(({ dispatch }) => dispatch)
          : [...plan.vips.slice(1), plan.nodePort].map((each) => each?.dispatch);
        assert.equal(dispatches.length, isInternal ? 1 : 4);
        for (const dispatch of dispatches) {
          assert.ok(dispatch !== undefined);
          const { podsAndNode, others, masquerade, untranslatedVerdict = 'none' } = dispatch;
          const forPodsAndNode =
            podsAndNode !== undefined && podsAndNode.endpoints.length > 0 ? podsAndNode : others;
          const text = ({ set, endpoints }: Dispatch['others'], isMasqueraded: boolean) =>
            endpoints.length === 0 ? '-' : `${set}${isMasqueraded ? '*' : ''}`;
          assert.deepEqual(
            [
              text(forPodsAndNode, masquerade === 'all'),
              text(forPodsAndNode, true),
              text(others, masquerade !== 'node'),
              untranslatedVerdict,
            ],
            [pods, node, outside, untranslated],
          );
        }
      });
    }
  }

  it('rejects untranslated packets to all-ports and port-range VIPs even with endpoints', () => {
    for (const match of ['ranges', 'all'] as const) {
      const { vips } = trafficPlan(served('one here', match), false);
      assert.deepEqual(
        vips.map(({ dispatch }) => dispatch.untranslatedVerdict),
        ['reject', 'reject', 'reject', 'reject'],
      );
    }
  });

  it('lists all VIPs of the Route, the cluster IP first', () => {
    for (const [hasClusterIP, hasExternal, hasLb, hasNodePort] of combinations(4)) {
      const of = served('one here', 'port', {
        ...(hasClusterIP ? {} : { clusterIP: undefined }),
        ...(hasExternal ? {} : { externalIPs: [] }),
        ...(hasLb ? {} : { loadBalancerIPs: [] }),
        ...(hasNodePort ? {} : { nodePort: 0 }),
      });
      const { vips, nodePort, external } = trafficPlan(of, false);
      assert.deepEqual(
        vips.map(({ kind, vip }) => `${kind} ${vip}`),
        [
          ...(hasClusterIP ? [`cluster IP ${CLUSTER_IP}`] : []),
          ...(hasExternal ? [`external IP ${EXTERNAL_IP}`] : []),
          ...(hasLb ? [`loadbalancer IP ${LB}`, `loadbalancer IP ${LB2}`] : []),
        ],
      );
      assert.equal(nodePort?.port, hasNodePort ? NODE_PORT : undefined);
      assert.equal(external !== undefined, hasExternal || hasLb || hasNodePort);
    }
    assert.equal(
      trafficPlan(served('one here', 'all', { nodePort: NODE_PORT }), false).nodePort,
      undefined,
    );
  });

  it('restricts the sources of load balancer IPs while there is an endpoint', () => {
    const sourceRanges = ['192.0.2.0/24', '198.51.100.0/24'];
    const sourcesOf = (where: Endpoints, ownVips = false) =>
      trafficPlan(served(where, 'port', { sourceRanges }), ownVips).vips.map(
        ({ sources }) => sources,
      );
    const restricted = { ranges: sourceRanges, ownVips: [] };
    assert.deepEqual(sourcesOf('one elsewhere'), [undefined, undefined, restricted, restricted]);
    assert.deepEqual(sourcesOf('no endpoint'), [undefined, undefined, undefined, undefined]);
    assert.deepEqual(sourcesOf('one here', true)[3], { ranges: sourceRanges, ownVips: [LB, LB2] });
  });

  it('allows load balancer VIPs as sources when source ranges contain the node', () => {
    const restricted = route({ sourceRanges: ['192.0.2.0/24', '10.0.0.0/8'] });
    assert.ok(allowsOwnVips(restricted, ['198.51.100.7', NODE]));
    assert.ok(!allowsOwnVips(restricted, ['198.51.100.7']));
    assert.ok(!allowsOwnVips(route(), [NODE]));
    assert.deepEqual([restricted, route()].map(dependsOnNodeAddresses), [true, false]);
  });

  it('leaves the health check node port to the node on load balancer IPs whose match includes it', () => {
    const portsOf = (match: RouteMatch['kind']) =>
      trafficPlan(served('one here', match, { healthCheckNodePort: HEALTH_PORT }), false);
    for (const match of ['ranges', 'all'] as const) {
      const { vips, healthCheckNodePort } = portsOf(match);
      assert.deepEqual(
        vips.map(({ healthCheckPort: healthPort }) => healthPort),
        [0, 0, HEALTH_PORT, HEALTH_PORT],
      );
      assert.equal(healthCheckNodePort, HEALTH_PORT);
    }
    assert.deepEqual(
      portsOf('port').vips.map(({ healthCheckPort: healthPort }) => healthPort),
      [0, 0, 0, 0],
    );
  });

  it('masquerades hairpins of pods on other nodes only with externalTrafficPolicy Local', () => {
    for (const externalLocal of BOTH) {
      const plan = trafficPlan(served('one here, one elsewhere', 'all', { externalLocal }), false);
      const needs = plan.endpoints.cluster.map((endpoint) => needsHairpin(plan, endpoint));
      assert.deepEqual(needs, [true, externalLocal]);
    }
  });
});

/** All lists of `length` booleans. */
function combinations(length: number): boolean[][] {
  if (length === 0) return [[]];
  return combinations(length - 1).flatMap((rest) => BOTH.map((first) => [first, ...rest]));
}
