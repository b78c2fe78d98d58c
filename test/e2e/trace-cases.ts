/** Services and targets for tests that compare the computed trace with packets, in every mode. */
import assert from 'node:assert/strict';
import type { ComputedTrace, TraceVerdict } from '../../status/api/trace.ts';
import type { Host, Lab, Outcome } from '../lab/lab.ts';
import { serviceManifest, sliceManifest } from './manifests.ts';

const PORTS = [{ name: 'http', port: 8080, protocol: 'TCP' }];
const NODE_PORT = 30_080;

/** Services that reach every decision, and targets on them. */
export function manyServices(lab: Lab, family: 4 | 6) {
  const cluster = (number: number) =>
    family === 4 ? `10.96.0.${number}` : `fd00:10:96::${number.toString(16)}`;
  const vip = family === 4 ? '203.0.113.7' : '2001:db8:113::7';
  const client = lab.client.addresses[family][0];
  const ports = [{ name: 'http', port: 80 }];
  const [local = [], remote = []] = [lab.pods.slice(0, 1), lab.remotePods.slice(0, 1)];
  const slice = (name: string, pods: readonly Host[]) =>
    sliceManifest(name, family, pods, { ports: PORTS, name: `${name}-many` });
  const manifests = [
    serviceManifest('both', { spec: { clusterIPs: [cluster(70)], ports } }),
    slice('both', [...local, ...remote]),
    serviceManifest('far', {
      spec: { clusterIPs: [cluster(71)], ports, internalTrafficPolicy: 'Local' },
    }),
    slice('far', remote),
    serviceManifest('lb', {
      annotations: { 'portwide.dev/ports': 'all' },
      ingress: [{ ip: vip }],
      spec: {
        type: 'LoadBalancer',
        clusterIPs: [cluster(72)],
        ports,
        externalTrafficPolicy: 'Local',
        allocateLoadBalancerNodePorts: false,
        loadBalancerSourceRanges: [`${client}/${family === 4 ? 32 : 128}`],
      },
    }),
    slice('lb', [...local, ...remote]),
    serviceManifest('np', {
      spec: {
        type: 'NodePort',
        clusterIPs: [cluster(73)],
        ports: [{ name: 'http', port: 80, nodePort: NODE_PORT }],
        externalTrafficPolicy: 'Local',
      },
    }),
    slice('np', lab.pods.slice(1, 2)),
    serviceManifest('ranges', {
      annotations: { 'portwide.dev/ports': '20000-20010/TCP' },
      spec: { clusterIPs: [cluster(74)], ports },
    }),
    slice('ranges', local),
    serviceManifest('nobody', { spec: { clusterIPs: [cluster(75)], ports } }),
  ];
  const targets: (readonly [address: string, port: number])[] = [
    [cluster(70), 80],
    [cluster(70), 81],
    [cluster(71), 80],
    [vip, 443],
    [lab.node.addresses[family][0] ?? '', NODE_PORT],
    [cluster(74), 20_005],
    [cluster(74), 20_011],
    [cluster(75), 80],
    [cluster(76), 80],
  ];
  return { manifests, targets };
}

/** Compares a computed path with the result of a connection. @param source undefined: the kernel chose it. */
function assertComputed(
  computed: ComputedTrace,
  outcome: Outcome,
  source: string | undefined,
  text: string,
): void {
  const { verdict, endpoints } = computed;
  if (verdict === 'rejected') assert.deepEqual(outcome, { outcome: 'refused', by: 'icmp' }, text);
  else if (verdict === 'dropped') assert.equal(outcome.outcome, 'timeout', text);
  else if (verdict === 'untouched') assert.notEqual(outcome.outcome, 'answered', text);
  else {
    if (outcome.outcome !== 'answered') assert.fail(text);
    const { localAddress, localPort, remoteAddress } = outcome.reply;
    const endpoint = endpoints.find(
      ({ address, port }) => address === localAddress && port === localPort,
    );
    assert.ok(endpoint, `${text}: ${JSON.stringify(endpoints)}`);
    if (source !== undefined) assert.equal(remoteAddress !== source, endpoint.masqueraded, text);
  }
}

/** Milliseconds until a connection without an answer counts as dropped. All connections wait together. */
const QUIET_MS = 3000;

/**
 * Connects from every kind of client to each target at once, and compares the results with the computed paths. These
 * are computed before, one after the other: an agent on a slow machine does not answer so many requests at once in time.
 * @param trace `GET /api/v1/trace`
 * @returns the computed verdicts.
 */
export async function compareWithPackets(
  lab: Lab,
  family: 4 | 6,
  targets: readonly (readonly [address: string, port: number])[],
  trace: (query: {
    readonly from: string;
    readonly to: string;
    readonly port: number;
  }) => Promise<readonly ComputedTrace[]>,
  { quietMs = QUIET_MS, localPort = (): number | undefined => undefined } = {},
): Promise<ReadonlySet<TraceVerdict>> {
  const [first, second] = lab.client.addresses[family];
  const pods = lab.pods.map((pod) => [pod, pod.addresses[family][0]] as const);
  const clients = [
    [lab.client, first] as const,
    [lab.client, second] as const,
    ...pods,
    [lab.node, lab.node.addresses[family][0]] as const,
  ];
  const verdicts = new Set<TraceVerdict>();
  const connections: (() => Promise<void>)[] = [];
  const connect = async (
    host: Host,
    from: string,
    to: string,
    port: number,
    computed: ComputedTrace,
  ) => {
    const isNode = host === lab.node;
    const own = localPort();
    const outcome = await host.tcp(to, port, {
      timeoutMs: quietMs,
      ...(isNode ? {} : { localAddress: from }),
      ...(own === undefined ? {} : { localPort: own }),
    });
    const text = `${host.name} ${from} to ${to} port ${port}: ${JSON.stringify(outcome)}`;
    assertComputed(computed, outcome, isNode ? undefined : from, text);
  };
  for (const [host, from = ''] of clients) {
    for (const [to, port] of targets) {
      const [computed] = await trace({ from, to, port });
      assert.ok(computed);
      verdicts.add(computed.verdict);
      connections.push(() => connect(host, from, to, port, computed));
    }
  }
  await Promise.all(connections.map((connection) => connection()));
  return verdicts;
}
