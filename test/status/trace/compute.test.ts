import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { Protocol } from '../../../api/objects.ts';
import type { BaseChain } from '../../../preflight/packet-walk.ts';
import type { Backend } from '../../../proxier/backend.ts';
import type { BackendTraffic } from '../../../proxier/kernel-rule.ts';
import { RouteTable } from '../../../proxier/route-table.ts';
import type { ComputedTrace, TraceAnswer, TraceStep } from '../../../status/api/trace.ts';
import { NotFound } from '../../../status/http/handler.ts';
import { BadParameter, readParameters } from '../../../status/http/parameters.ts';
import type { StatusSources } from '../../../status/sources.ts';
import { SyncActivity } from '../../../status/sync-activity.ts';
import { withOutcome } from '../../../status/trace/outcome.ts';
import { TRACE_PARAMETERS, traceRequest } from '../../../status/trace/question.ts';
import { computeAnswer, prepareTrace, type TraceSources } from '../../../status/trace/resolve.ts';
import { traceResources } from '../../../status/trace/resources.ts';
import type { LocalDetector } from '../../../traffic/options.ts';
import { endpoint, podAt, service, servicePort, slice, upsertWithPods } from '../../fixtures.ts';
import { arbitraryChange, type ClusterChange } from '../../iptables/generated.ts';
import { plan as ipvsPlan } from '../../ipvs/simulated-node.ts';
import { type Cluster, expectedOutcomes, outcomeText } from '../../traffic/expected-outcome.ts';
import { requestOf } from '../request.ts';
import { validator } from '../validator.ts';

const NODE = '192.0.2.7';
const POD_CIDR = { IPv4: '10.244.0.0/16', IPv6: 'fd00:10:244::/64' } as const;

interface Settings {
  readonly nodeAddresses: readonly string[];
  readonly masqueradeAll: boolean;
  readonly detectsPods: boolean;
  readonly fields?: Partial<BackendTraffic>;
  readonly detector?: LocalDetector;
}

function sourcesOf(table: RouteTable, settings: Settings): TraceSources {
  const { nodeAddresses, masqueradeAll, detectsPods, fields, detector } = settings;
  const backends = (['IPv4', 'IPv6'] as const).map((family) => {
    const cidr: LocalDetector = { kind: 'cidr', cidr: POD_CIDR[family] };
    const localDetector = detectsPods ? (detector ?? cidr) : undefined;
    return {
      family,
      traffic: (): BackendTraffic => ({
        options: { family, masqueradeAll, localDetector, resetsTcp: false },
        isNodePortAddress: (address) => nodeAddresses.includes(address),
        rejectsOtherPorts: 'none',
        forwardsWithIpvs: false,
        serviceCidrs: [],
        ...fields,
      }),
    } as Backend;
  });
  return {
    table,
    backends: () => backends,
    nodeAddresses: () => nodeAddresses,
    policy: undefined,
    nodeName: 'node-a',
  };
}

const newTable = () =>
  new RouteTable({ nodeName: 'node-a', allPortsEnabled: true, onChange: () => {} });

/** The result as in `outcomeText`, without the acceptance in FORWARD. */
function outcomesOf({ verdict, endpoints }: ComputedTrace): string[] {
  if (verdict === 'dropped') return ['DROP'];
  if (verdict === 'rejected') return ['REJECT'];
  if (verdict === 'untouched') return ['untouched'];
  return endpoints.map(({ address, port, masqueraded }) =>
    outcomeText({ translated: { address, port }, masqueraded }),
  );
}

const transport = {
  protocol: fc.constantFrom<Protocol>('TCP', 'TCP', 'UDP', 'SCTP'),
  port: fc.constantFrom(53, 80, 80, 85, 8080, 5060, 30_001, 30_002, 32_000, 7),
};
const packets = fc.oneof(
  fc.record({
    source: fc.constantFrom(
      ...['10.244.0.1', '10.244.0.2', '10.244.0.9', NODE, '203.0.113.1'],
      ...['192.0.2.50', '198.51.100.9', '8.8.8.8'],
    ),
    destination: fc.constantFrom(
      ...['10.96.0.1', '10.96.0.2', '10.96.0.3', '10.96.0.4'],
      ...['203.0.113.1', '203.0.113.17', NODE, '10.244.0.3'],
    ),
    ...transport,
  }),
  fc.record({
    source: fc.constantFrom('fd00:10:244::1', '2001:db8::50', '2001:db9::1'),
    destination: fc.constantFrom('fd00:10:96::1', 'fd00:10:96::2', '2001:db8:113::1'),
    ...transport,
  }),
);

function apply(table: RouteTable, change: ClusterChange): readonly string[] | undefined {
  if ('upsert' in change) table.upsert(change.upsert);
  else if ('remove' in change) table.remove(change.remove.kind, change.remove.key);
  else {
    table.setNodeAddresses(new Set(change.nodeAddresses));
    return change.nodeAddresses;
  }
  return undefined;
}

describe('compute: the path of a connection', () => {
  it('is what the contract says, for any Routes and clients', async () => {
    let translated = 0;
    await fc.assert(
      fc.asyncProperty(
        fc.array(arbitraryChange, { minLength: 12, maxLength: 24 }),
        fc.array(packets, { minLength: 20, maxLength: 60 }),
        fc.boolean(),
        fc.boolean(),
        async (changes, sent, masqueradeAll, detectsPods) => {
          const table = newTable();
          let nodeAddresses: readonly string[] = [NODE];
          table.setNodeAddresses(new Set(nodeAddresses));
          for (const change of changes) nodeAddresses = apply(table, change) ?? nodeAddresses;
          table.takeChanges();
          const sources = sourcesOf(table, { nodeAddresses, masqueradeAll, detectsPods });
          const cluster: Cluster = {
            routes: [...table.routes()],
            nodeAddresses,
            local: new Set(nodeAddresses),
            nodePortAddresses: new Set(nodeAddresses),
            masqueradeAll,
            knowsPods: detectsPods,
            isPod: ({ source }) =>
              detectsPods && (source.startsWith('10.244.') || source.startsWith('fd00:10:244')),
          };
          for (const { source, destination, protocol, port } of sent) {
            const family = source.includes(':') ? 'IPv6' : 'IPv4';
            const routes = cluster.routes.filter((route) => route.family === family);
            const from = { kind: 'address', address: source } as const;
            const {
              path: { path: computed },
            } = await prepareTrace({ family, source: from, destination, protocol, port }, sources);
            const expected = expectedOutcomes(
              { ...cluster, routes },
              {
                source,
                destination,
                protocol: protocol.toLowerCase() as 'tcp',
                port,
                inInterface: nodeAddresses.includes(source) ? undefined : 'eth0',
              },
            );
            const plain = [...expected.outcomes].map((text) =>
              text.replace(/, accepted$/, '').replace(/^REJECT .*/, 'REJECT'),
            );
            assert.deepEqual(
              outcomesOf(computed).sort(),
              plain.sort(),
              JSON.stringify({ source, destination, protocol, port, steps: computed.steps }),
            );
            const sticky = computed.steps.some(({ step }) => step === 'affinity');
            assert.equal(sticky, expected.sticky && computed.verdict === 'translated');
            if (computed.verdict === 'translated') translated += 1;
          }
        },
      ),
      { numRuns: 1000, seed: 16 },
    );
    assert.ok(translated > 300, `only ${translated} packets were translated`);
  });
});

/** A Service with a local, a remote and an unready endpoint. */
function webTable(fields: Parameters<typeof service>[0] = {}): RouteTable {
  const table = newTable();
  table.upsert(service({ ports: [servicePort({ nodePort: 30_080 })], ...fields }));
  table.upsert(
    slice([
      endpoint('10.244.0.1'),
      endpoint('10.244.1.1', { nodeName: 'node-b' }),
      endpoint('10.244.1.2', { nodeName: 'node-b', ready: false, serving: false }),
    ]),
  );
  table.takeChanges();
  return table;
}

const SETTINGS: Settings = { nodeAddresses: [NODE], masqueradeAll: false, detectsPods: true };

const validate = validator();

async function pathTo(query: string, table = webTable(), settings: Partial<Settings> = {}) {
  const sources = sourcesOf(table, { ...SETTINGS, ...settings });
  const given = readParameters(new URLSearchParams(query), TRACE_PARAMETERS);
  const answer = await computeAnswer(traceRequest(given), sources);
  const paths = answer.paths.map(({ path, doubts }) => withOutcome(path, doubts));
  validate('TraceAnswer', { ...answer, paths });
  const [path] = paths;
  assert.ok(path);
  const step = (name: TraceStep['step']) => path.steps.find((each) => each.step === name);
  return { ...path, step };
}

describe('steps of a computed path', () => {
  it('name Service, endpoints with reasons, translation and masquerade', async () => {
    const { steps, step } = await pathTo('from=192.0.2.50&to=10.96.0.10&port=80');
    assert.deepEqual(
      steps.map(({ title, decision, object }) => [title, decision, object]),
      [
        ['Source', '192.0.2.50 is not a pod: it counts as a client outside', null],
        [
          'Service',
          '10.96.0.10 port 80/TCP is cluster IP (port 80/TCP) of Service default/web',
          'Service default/web',
        ],
        [
          'Endpoints',
          '2 of 3 endpoints for all clients (spec.internalTrafficPolicy: Cluster)',
          'Service default/web',
        ],
        [
          'Translation',
          'the destination becomes one of 2 endpoints at random (DNAT)',
          'Service default/web',
        ],
        [
          'Masquerade',
          'the endpoint sees an address of this node instead of 192.0.2.50',
          'Service default/web',
        ],
        ['Result', 'the packet reaches one of 2 endpoints', 'Service default/web'],
      ],
    );
    assert.deepEqual(step('endpoints')?.detail, [
      '10.244.0.1:8080 on node-a: used, ready',
      '10.244.1.1:8080 on node-b: used, ready',
      '10.244.1.2:8080 on node-b: not used, not ready',
    ]);
  });

  it('traffic policy Local: clients outside get endpoints of this node, and keep their address', async () => {
    const table = webTable({ type: 'NodePort', externalTrafficPolicy: 'Local' });
    const outside = await pathTo(`from=192.0.2.50&to=${NODE}&port=30080`, table);
    assert.deepEqual(outside.endpoints, [
      {
        address: '10.244.0.1',
        port: 8080,
        local: true,
        masqueraded: false,
        policy: null,
        foreignRules: null,
      },
    ]);
    assert.match(outside.step('endpoints')?.detail[1] ?? '', /not used, on another node$/);
    const own = await pathTo(`from=node&to=${NODE}&port=30080`, table);
    assert.deepEqual(
      own.endpoints.map(({ address, masqueraded }) => [address, masqueraded]),
      [
        ['10.244.0.1', true],
        ['10.244.1.1', true],
      ],
    );
  });

  it('consistent hashing: names the one endpoint of a known client', async () => {
    const table = webTable({ loadBalancingAnnotation: 'consistent-hash' });
    const known = await pathTo('from=192.0.2.50&to=10.96.0.10&port=80', table);
    const [only] = known.endpoints;
    assert.equal(known.endpoints.length, 1);
    const { decision = '' } = known.step('hash') ?? {};
    assert.match(
      decision,
      /^client 192\.0\.2\.50 has slot \d+ of 1021, which belongs to 10\.244\.\d\.1:8080$/,
    );
    assert.ok(decision.endsWith(`${only?.address}:8080`), decision);
    const reached = await Promise.all(
      Array.from({ length: 20 }, async (_, host) => {
        const { endpoints } = await pathTo(`from=192.0.2.${host + 1}&to=10.96.0.10&port=80`, table);
        return endpoints.map(({ address }) => address).join();
      }),
    );
    assert.deepEqual(new Set(reached), new Set(['10.244.0.1', '10.244.1.1']));
  });

  it('consistent hashing: names all endpoints if the address or the source port is not known', async () => {
    const byPort = webTable({ loadBalancingAnnotation: 'consistent-hash-client-port' });
    const query = 'from=192.0.2.50&to=10.96.0.10&port=80';
    for (const [path, decision] of [
      [await pathTo(query, byPort), "the client's address and source port select the endpoint"],
      [
        await pathTo(
          'from=external&to=10.96.0.10&port=80',
          webTable({ loadBalancingAnnotation: 'consistent-hash' }),
        ),
        "the client's address selects the endpoint",
      ],
    ] as const) {
      assert.equal(path.endpoints.length, 2);
      assert.equal(path.step('hash')?.decision, decision);
      assert.equal(
        path.step('translation')?.decision,
        'the destination becomes one of 2 endpoints by hash (DNAT)',
      );
    }
    const { endpoints, step } = await pathTo(`${query}&sourcePort=4711`, byPort);
    assert.equal(endpoints.length, 1);
    assert.match(step('hash')?.decision ?? '', /^client 192\.0\.2\.50:4711 has slot /);
  });

  it('a source outside the ranges is dropped; an unknown source makes the result uncertain', async () => {
    const table = webTable({
      type: 'LoadBalancer',
      loadBalancerIngress: [{ ip: '203.0.113.1', ipMode: 'VIP' }],
      loadBalancerSourceRanges: ['198.51.100.0/24'],
    });
    const denied = await pathTo('from=192.0.2.50&to=203.0.113.1&port=80', table);
    assert.equal(denied.verdict, 'dropped');
    assert.equal(
      denied.step('sourceRanges')?.decision,
      '192.0.2.50 is not in spec.loadBalancerSourceRanges: the packet is dropped',
    );
    const unknown = await pathTo('from=external&to=203.0.113.1&port=80', table);
    assert.equal(unknown.verdict, 'translated');
    assert.deepEqual(unknown.uncertain, [
      'the packet is dropped unless its source is in 198.51.100.0/24',
    ]);
  });

  it('a Service as destination: its cluster IP, and its only port', async () => {
    const path = await pathTo('from=10.244.0.9&to=default/web');
    assert.deepEqual([path.destination, path.verdict], ['10.96.0.10', 'translated']);
    assert.match(path.step('source')?.decision ?? '', /is detected as a pod/);
  });

  it('a Service as destination: from outside its load balancer IP or external IP, if it has one', async () => {
    const destination = async (from: string, fields: Parameters<typeof service>[0]) =>
      (await pathTo(`from=${from}&to=default/web&port=80`, webTable(fields))).destination;
    const ingress = { loadBalancerIngress: [{ ip: '203.0.113.9', ipMode: 'VIP' }] } as const;
    const balanced = { type: 'LoadBalancer', externalIPs: ['198.51.100.7'], ...ingress } as const;
    assert.equal(await destination('external', balanced), '203.0.113.9');
    assert.equal(await destination('10.244.0.9', balanced), '10.96.0.10');
    assert.equal(await destination('external', { externalIPs: ['198.51.100.7'] }), '198.51.100.7');
    assert.equal(await destination('external', {}), '10.96.0.10');
    const proxied = { loadBalancerIngress: [{ ip: '203.0.113.9', ipMode: 'Proxy' }] } as const;
    assert.equal(await destination('external', { ...balanced, ...proxied }), '198.51.100.7');
  });

  it('names Services that ask for the address and are refused, and other ports of a VIP', async () => {
    const table = webTable();
    table.upsert(service({ name: 'late', creationTimestamp: '2026-02-01T00:00:00Z' }));
    table.takeChanges();
    const path = await pathTo('from=external&to=10.96.0.10&port=81', table);
    assert.equal(path.verdict, 'untouched');
    assert.match(
      path.step('service')?.decision ?? '',
      /only other ports of 10.96.0.10: the packet is not/,
    );
    assert.deepEqual(path.step('service')?.detail, [
      'Service default/web serves 80/TCP',
      'Service default/late: spec.clusterIPs: 10.96.0.10: is the cluster IP of Service default/web, and no other Service gets a port of it',
    ]);
    assert.equal(path.unserved, true);
    const rejecting = { fields: { rejectsOtherPorts: 'cluster IPs' as const } };
    assert.equal(
      (await pathTo('from=external&to=10.96.0.10&port=81', table, rejecting)).verdict,
      'rejected',
    );
  });

  it('a Service that is refused: the first step says why, and the result what happens', async () => {
    const table = webTable();
    table.upsert(
      service({
        name: 'wrong',
        clusterIPs: ['10.96.0.99'],
        externalIPs: ['198.51.100.7'],
        portsAnnotation: 'all',
      }),
    );
    const all = { portsAnnotation: 'all', clusterIPs: ['10.96.0.77'] };
    table.upsert(service({ name: 'all-ports', ...all }));
    table.upsert(slice([endpoint('10.244.0.5')], { name: 's', serviceKey: 'default/all-ports' }));
    const late = { ...all, creationTimestamp: '2027-02-01T00:00:00Z' };
    table.upsert(service({ name: 'overlap', namespace: 'shop', ...late }));
    table.takeChanges();
    const found = async (query: string) => {
      const { steps, verdict, unserved } = await pathTo(`from=node&${query}`, table);
      const [first, second] = steps;
      return [
        first?.decision,
        first?.object,
        second?.step,
        steps.at(-1)?.decision,
        verdict,
        unserved,
      ];
    };
    const whole =
      'Service default/wrong is refused: spec.externalIPs: external IPs cannot be served on all ports';
    const gone =
      'no endpoint gets the packet: it goes on untranslated, where the routes of this node lead it';
    for (const query of ['to=10.96.0.99&port=81', 'to=default/wrong&port=81'])
      assert.deepEqual(await found(query), [
        ...[whole, 'Service default/wrong', 'source', gone, 'untouched', true],
      ]);
    assert.deepEqual(await found('to=shop/overlap&port=5060'), [
      'Service shop/overlap is refused: spec.clusterIPs: 10.96.0.77: is the cluster IP of Service default/all-ports, and no other Service gets a port of it',
      ...['Service shop/overlap', 'source', 'the packet reaches 10.244.0.5:5060'],
      ...['translated', true],
    ]);
    // The address itself is served.
    const served = await pathTo('from=node&to=10.96.0.77&port=5060', table);
    assert.deepEqual([served.steps[0]?.step, served.unserved], ['source', false]);
  });

  it('an address near cluster IPs is of no Service, and no other address is', async () => {
    const found = async (to: string) => {
      const { step, unserved } = await pathTo(`from=node&to=${to}&port=80`);
      return [unserved, step('service')?.detail, step('result')?.decision];
    };
    assert.deepEqual(await found('10.96.0.99'), [
      true,
      ['it is probably in the Service range, as cluster IP 10.96.0.10 is'],
      'no endpoint gets the packet: it goes on untranslated, where the routes of this node lead it',
    ]);
    for (const to of ['10.244.1.1', '198.51.100.7', NODE])
      assert.deepEqual(await found(to), [false, [], `the packet goes to ${to}:80/TCP itself`]);
  });

  it('names the problems of this packet only: of its port, and of its traffic policy', async () => {
    const table = newTable();
    table.upsert(
      service({
        type: 'LoadBalancer',
        loadBalancerIngress: [{ ip: '203.0.113.1', ipMode: 'VIP' }],
        internalTrafficPolicy: 'Local',
        externalTrafficPolicy: 'Local',
        ports: [
          servicePort({ name: 'web', nodePort: 30_080 }),
          servicePort({ name: 'other', port: 81, nodePort: 30_081 }),
        ],
      }),
    );
    const ports = [{ name: 'web', port: 8080, protocol: 'TCP' as const }];
    table.upsert(slice([endpoint('10.244.1.1', { nodeName: 'node-b' })], { ports }));
    table.takeChanges();
    const detail = async (from: string, to: string) =>
      (await pathTo(`from=${from}&to=${to}`, table)).step('service')?.detail;
    const none = (policy: string, clients: string) => [
      `port web: spec.${policy}: Local, and no endpoint is on this node; packets from ${clients} are dropped`,
    ];
    const outside = none('externalTrafficPolicy', 'outside');
    const inside = none('internalTrafficPolicy', 'pods and this node');
    assert.deepEqual(await detail('external', 'default/web&port=80'), outside);
    assert.deepEqual(await detail('192.0.2.50', `${NODE}&port=30080`), outside);
    assert.deepEqual(await detail('node', '10.96.0.10&port=80'), inside);
    assert.deepEqual(await detail('10.244.0.9', '203.0.113.1&port=80'), []);
    assert.deepEqual(await detail('external', '203.0.113.1&port=81'), [
      'port other: no endpoint: no EndpointSlice of the Service has an address for this port',
    ]);
  });

  it('names an unknown Service also without a port', async () => {
    for (const query of ['from=10.244.0.9&to=shop/nosvc', 'from=node&to=shop/nosvc&port=80'])
      await assert.rejects(
        async () => pathTo(query),
        (error) =>
          error instanceof NotFound &&
          error.message ===
            'this agent knows no Service shop/nosvc, and pods only with --network-policy',
      );
  });

  it('with detection by interface, an address of a local endpoint is a pod', async () => {
    const settings = { detector: { kind: 'interface' as const, name: 'cali+' } };
    const pod = await pathTo('from=10.244.0.1&to=10.96.0.10&port=80', webTable(), settings);
    assert.deepEqual(
      pod.endpoints.map(({ masqueraded }) => masqueraded),
      [true, false],
      'only the hairpin connection is masqueraded',
    );
    // An EndpointSlice has the address, and no Pod: no policy applies to it.
    assert.equal(pod.step('source')?.decision, '10.244.0.1 is an endpoint on this node');
    const other = await pathTo('from=10.9.9.9&to=10.96.0.10&port=80', webTable(), settings);
    assert.match(other.uncertain.join(), /no known pod of this node has 10.9.9.9/);
  });

  it('names the node port that is not served on localhost', async () => {
    const table = webTable({ type: 'NodePort' });
    const { step, verdict, outcome, source } = await pathTo(
      'from=node&to=127.0.0.1&port=30080',
      table,
    );
    assert.equal(
      step('service')?.decision,
      'rules of this node do not serve node port 30080/TCP of Service default/web on localhost: the packet is not translated',
    );
    assert.deepEqual([verdict, outcome, source], ['untouched', 'failed', '127.0.0.1']);
    const other = await pathTo('from=node&to=127.0.0.1&port=30080&protocol=udp', table);
    assert.match(other.step('service')?.decision ?? '', /^no Service of this node has 127.0.0.1/);
  });

  it('node ports that the agent serves on localhost: TCP with endpoints, others are rejected', async () => {
    const proxied = { fields: { proxiesLocalhost: true } };
    const ends = async (query: string, table: RouteTable) => {
      const path = await pathTo(`from=node&port=30080&to=${query}`, table, proxied);
      return [path.verdict, path.outcome];
    };
    const table = (protocol: Protocol) =>
      webTable({ type: 'NodePort', ports: [servicePort({ nodePort: 30_080, protocol })] });
    assert.deepEqual(await ends('127.0.0.1', table('TCP')), ['untouched', 'reached']);
    assert.deepEqual(await ends('127.0.0.2', table('TCP')), ['untouched', 'failed']);
    assert.deepEqual(await ends('127.0.0.1&protocol=udp', table('UDP')), ['rejected', 'failed']);
    const empty = newTable();
    const ports = [servicePort({ nodePort: 30_080 })];
    empty.upsert(service({ type: 'NodePort', ports }));
    empty.takeChanges();
    assert.deepEqual(await ends('127.0.0.1', empty), ['untouched', 'failed']);
  });

  it('refuses parameters that it cannot use', async () => {
    for (const [query, parameter] of [
      ['to=10.96.0.10&port=80', 'from'],
      ['from=node&port=80', 'to'],
      ['from=node&to=10.96.0.10', 'port'],
      ['from=node&to=10.96.0.10&port=70000', 'port'],
      ['from=somewhere&to=10.96.0.10&port=80', 'from'],
      ['from=default/pod&to=10.96.0.10&port=80', 'from'],
      ['from=fd00::1&to=10.96.0.10&port=80', 'to'],
      ['from=node&to=10.96.0.10&port=80&protocol=icmp', 'protocol'],
    ] as const) {
      await assert.rejects(
        async () => pathTo(query),
        (error) => error instanceof BadParameter && error.parameter === parameter,
        query,
      );
    }
  });

  describe('of ports that pods own', () => {
    const VIP = '203.0.113.9';
    const CLIENT = '198.51.100.9';
    const REMOTE = '10.244.1.1';

    function ownedTable(fields: Parameters<typeof service>[0] = {}): RouteTable {
      const table = newTable();
      table.upsert(
        service({
          name: 'turn',
          type: 'LoadBalancer',
          clusterIPs: ['10.96.0.20'],
          loadBalancerIngress: [{ ip: VIP, ipMode: 'VIP' }],
          ownedPortsAnnotation: '20000-20950/UDP,30000-30999/TCP',
          portsPerPodAnnotation: '100',
          ...fields,
        }),
      );
      const endpoints = [
        endpoint('10.244.0.1', { ordinal: 0 }),
        endpoint(REMOTE, { ordinal: 1, nodeName: 'node-b' }),
        endpoint('10.244.0.3', { ordinal: 3, ready: false, serving: false }),
      ];
      upsertWithPods(
        table,
        slice(endpoints, { name: 'turn-1', serviceKey: 'default/turn', ports: [] }),
      );
      table.takeChanges();
      return table;
    }

    async function pathOf(
      from: string,
      to: string,
      protocol: Protocol,
      port: number,
      table = ownedTable(),
      sourcePort?: number,
    ): Promise<ComputedTrace> {
      const sources = sourcesOf(table, {
        nodeAddresses: [NODE],
        masqueradeAll: false,
        detectsPods: true,
      });
      const source = { kind: 'address', address: from } as const;
      const connection = { destination: to, protocol, port, sourcePort };
      const resolved = { family: 'IPv4', source, ...connection } as const;
      return (await prepareTrace(resolved, sources)).path.path;
    }

    const decisionOf = ({ steps }: ComputedTrace, step: TraceStep['step']) =>
      steps.find((each) => each.step === step)?.decision;

    it('names the slice and its owner; UDP is neither tracked nor masqueraded', async () => {
      const path = await pathOf(CLIENT, VIP, 'UDP', 20_104);
      assert.deepEqual(path.endpoints, [
        {
          address: REMOTE,
          port: 20_104,
          local: false,
          masqueraded: false,
          policy: null,
          foreignRules: null,
        },
      ]);
      assert.equal(
        decisionOf(path, 'slice'),
        `20100-20199/UDP is slice 1, and its owner is ${REMOTE}`,
      );
      assert.match(
        path.steps.find(({ step }) => step === 'translation')?.detail.join() ?? '',
        /are not tracked/,
      );
      assert.equal(decisionOf(path, 'masquerade'), `the endpoint sees ${CLIENT}`);
      assert.match(decisionOf(path, 'answer') ?? '', new RegExp(`leave as ${VIP}:20104`));
      assert.deepEqual(path.speaksAs, []);
    });

    for (const [title, to, port, reason] of [
      ['a vacant slice', VIP, 20_250, /slice 2, which is vacant .*rejected/],
      ['a slice whose owner does not serve', VIP, 20_300, /10\.244\.0\.3 does not serve/],
      ['ports left over at the end of the range', VIP, 20_920, /left over/],
      ['UDP on another VIP', '10.96.0.20', 20_000, /served on 203\.0\.113\.9 only/],
    ] as const) {
      it(`says why packets are rejected: ${title}`, async () => {
        const path = await pathOf(CLIENT, to, 'UDP', port);
        assert.equal(path.verdict, 'rejected');
        assert.match(decisionOf(path, 'slice') ?? '', reason);
      });
    }

    it('names endpoints that do not own a vacant slice, and why', async () => {
      const detailOf = async (port: number, table: RouteTable) => {
        const { steps } = await pathOf(CLIENT, VIP, 'UDP', port, table);
        return steps.find(({ step }) => step === 'slice')?.detail.slice(1);
      };
      const table = ownedTable();
      table.remove('Pod', podAt('10.244.0.1').key);
      table.takeChanges();
      assert.deepEqual(await detailOf(20_000, table), [
        'endpoint 10.244.0.1 with ordinal 0 has no pod in its namespace',
      ]);
      assert.deepEqual(await detailOf(20_200, table), ['no endpoint has ordinal 2']);
      assert.deepEqual(await detailOf(20_100, table), []);
    });

    it('masquerades TCP only to an owner on another node, and not for pods', async () => {
      for (const [from, port, masqueraded] of [
        [CLIENT, 30_100, true],
        [CLIENT, 30_000, false],
        ['10.244.0.9', 30_100, false],
        ['10.244.0.1', 30_000, true],
      ] as const) {
        const { endpoints } = await pathOf(from, '10.96.0.20', 'TCP', port);
        assert.deepEqual(
          endpoints.map((each) => each.masqueraded),
          [masqueraded],
          `${from} ${port}`,
        );
      }
    });

    it('says what a known source port changes', async () => {
      const from = async (sourcePort: number, to = CLIENT, port = 9000, table = ownedTable()) => {
        const path = await pathOf('10.244.0.1', to, 'UDP', port, table, sourcePort);
        return [path.verdict, decisionOf(path, 'speaker'), path.uncertain];
      };
      const becomes = `the source becomes ${VIP}:20044, and the packet is not tracked`;
      const stays = 'the source does not own port 45000, which is not changed';
      assert.deepEqual(await from(20_044), ['untouched', becomes, []]);
      assert.deepEqual(await from(45_000), ['untouched', stays, []]);
      // To another owner, and to a Service that needs connection tracking.
      assert.deepEqual(await from(20_044, VIP, 20_104), ['translated', becomes, []]);
      const table = ownedTable();
      const ports = [servicePort({ protocol: 'UDP', port: 53 })];
      table.upsert(service({ name: 'dns', clusterIPs: ['10.96.0.53'], ports }));
      table.upsert(
        slice([endpoint('10.244.0.9')], {
          ...{ name: 'dns-1', serviceKey: 'default/dns' },
          ports: [{ name: '', protocol: 'UDP', port: 53 }],
        }),
      );
      table.takeChanges();
      assert.deepEqual(await from(20_044, '10.96.0.53', 53, table), ['dropped', becomes, []]);
      assert.deepEqual(await from(45_000, '10.96.0.53', 53, table), ['translated', stays, []]);
    });

    it('says that an owner is tracked where no owner gets the packet on a VIP with owned UDP ports', async () => {
      const table = ownedTable({ portsAnnotation: '5060/UDP' });
      table.upsert(
        service({
          name: 'dns',
          clusterIPs: ['10.96.0.53'],
          type: 'LoadBalancer',
          loadBalancerIngress: [{ ip: VIP, ipMode: 'VIP' }],
          ports: [servicePort({ protocol: 'UDP', port: 53 })],
        }),
      );
      const ports = [{ name: '', protocol: 'UDP' as const, port: 53 }];
      const dns = { name: 'dns-1', serviceKey: 'default/dns', ports } as const;
      table.upsert(slice([endpoint('10.244.0.9')], dns));
      table.takeChanges();
      for (const [to, port, verdict] of [
        [VIP, 5060, 'translated'],
        ['10.96.0.20', 5060, 'translated'],
        [VIP, 53, 'translated'],
        [VIP, 20_250, 'rejected'],
        [VIP, 20_300, 'rejected'],
        [VIP, 9000, 'rejected'],
        ['10.96.0.20', 20_104, 'rejected'],
      ] as const) {
        for (const sourcePort of [20_044, undefined]) {
          const path = await pathOf('10.244.0.1', to, 'UDP', port, table, sourcePort);
          assert.deepEqual([path.verdict, path.speaksAs, path.uncertain], [verdict, [], []], to);
          assert.equal(
            decisionOf(path, 'speaker'),
            `no owner gets packets to ${to}:${port}/UDP, so they are tracked, and their source does not become a VIP`,
          );
        }
      }
    });

    it('drops packets from sources that may not use the VIP', async () => {
      const table = ownedTable({ loadBalancerSourceRanges: ['192.0.2.0/24'] });
      assert.equal((await pathOf(CLIENT, VIP, 'UDP', 20_000, table)).verdict, 'dropped');
      assert.equal((await pathOf('192.0.2.9', VIP, 'UDP', 20_000, table)).verdict, 'translated');
    });

    it('says as which VIP an owner speaks, serving or not; of two Services the older', async () => {
      const table = ownedTable({ creationTimestamp: '2026-01-01T00:00:00Z' });
      table.upsert(
        service({
          name: 'younger',
          clusterIPs: ['10.96.0.21'],
          ownedPortsAnnotation: '20050-20249/UDP',
          portsPerPodAnnotation: '100',
          creationTimestamp: '2026-02-01T00:00:00Z',
        }),
      );
      const endpoints = [endpoint('10.244.0.1', { ordinal: 0 })];
      upsertWithPods(
        table,
        slice(endpoints, { name: 'y-1', serviceKey: 'default/younger', ports: [] }),
      );
      table.takeChanges();
      const path = await pathOf('10.244.0.1', CLIENT, 'UDP', 9000, table);
      assert.equal(path.verdict, 'untouched');
      assert.deepEqual(path.speaksAs, [
        { vip: VIP, ports: ['20000-20099/UDP'] },
        { vip: '10.96.0.21', ports: ['20100-20149/UDP'] },
      ]);
      const answerOf = async (to: string, port: number) => {
        const { steps } = await pathOf(CLIENT, to, 'UDP', port, table);
        const step = steps.find((each) => each.step === 'answer');
        return `${step?.decision}: ${step?.detail.join()}`;
      };
      assert.match(
        await answerOf('10.96.0.21', 20_060),
        new RegExp(
          `leave as ${VIP}:20060, .*: the pod also owns the port by the older Service .*/turn,`,
        ),
      );
      assert.match(await answerOf('10.96.0.21', 20_120), /leave as 10\.96\.0\.21:20120, .*: $/);
      assert.match(await answerOf(VIP, 20_060), new RegExp(`leave as ${VIP}:20060, .*: $`));
      const idle = await pathOf('10.244.0.3', CLIENT, 'UDP', 9000);
      assert.deepEqual(idle.speaksAs, [{ vip: VIP, ports: ['20300-20399/UDP'] }]);
      assert.deepEqual((await pathOf('10.244.0.1', CLIENT, 'TCP', 80)).speaksAs, []);
      table.upsert(service({ name: 'all', clusterIPs: ['10.96.0.22'], portsAnnotation: 'all' }));
      table.upsert(slice([endpoint('10.244.0.9')], { name: 'all-1', serviceKey: 'default/all' }));
      table.takeChanges();
      const { uncertain } = await pathOf('10.244.0.1', '10.96.0.22', 'UDP', 53, table);
      assert.match(uncertain.join(), /no Service translates it/);
    });
  });
});

describe('trace: the answer', () => {
  it('says how old the rules of other programs are', async () => {
    const sources = {
      ...sourcesOf(webTable(), SETTINGS),
      syncs: new SyncActivity(),
      disabledForwarding: async () => undefined,
      foreignChains: async () => ({ value: { value: [] }, age: 40_300 }),
    } as unknown as StatusSources;
    const resource = traceResources(sources, () => 0)['/api/v1/trace'];
    const query = new URLSearchParams('from=10.244.1.5&to=10.96.0.10&port=80');
    const answer = (await resource?.answer(query, requestOf())) as TraceAnswer;
    validate('TraceAnswer', answer);
    const step = answer.paths[0]?.steps.find((each) => each.step === 'foreignRules');
    assert.deepEqual(step?.detail, ['as these rules were 40 seconds ago']);
  });

  it('takes the hooks that packets pass from the backend', async () => {
    const base: BaseChain = {
      table: 'inet firewall',
      chain: 'forward',
      hook: 'forward',
      priority: 0,
      policy: 'drop',
      chains: new Map([['forward', []]]),
    };
    for (const [forwardsWithIpvs, verdict] of [
      [false, 'dropped'],
      [true, 'translated'],
    ] as const) {
      const sources = {
        ...sourcesOf(webTable(), { ...SETTINGS, fields: { forwardsWithIpvs } }),
        syncs: new SyncActivity(),
        disabledForwarding: async () => undefined,
        foreignChains: async () => ({ value: { value: [base] }, age: 0 }),
      } as unknown as StatusSources;
      const resource = traceResources(sources, () => 0)['/api/v1/trace'];
      const query = new URLSearchParams('from=10.244.1.5&to=10.96.0.10&port=80');
      const answer = (await resource?.answer(query, requestOf())) as TraceAnswer;
      assert.equal(answer.paths[0]?.verdict, verdict);
    }
  });

  it('takes the hooks that packets pass from the rules that serve some Services in mode ipvs', async () => {
    const base = (hook: BaseChain['hook']): BaseChain => ({
      ...{ table: 'inet firewall', chain: hook, hook, priority: 0, policy: 'drop' },
      chains: new Map([[hook, []]]),
    });
    const table = webTable();
    const ip = '10.96.0.11';
    table.upsert(service({ name: 'all', portsAnnotation: 'all', clusterIPs: [ip] }));
    table.upsert(slice([endpoint('10.244.0.1')], { name: 'all-1', serviceKey: 'default/all' }));
    table.takeChanges();
    for (const [allPorts, dropped] of [
      ['iptables', { '10.96.0.10': 'output', [ip]: 'forward' }],
      ['fwmark', { '10.96.0.10': 'output', [ip]: 'output' }],
    ] as const) {
      const { forwardsWithIpvs, translatesByRules } = ipvsPlan({}, allPorts).traffic();
      const fields = { forwardsWithIpvs, ...(translatesByRules && { translatesByRules }) };
      for (const [destination, hook] of Object.entries(dropped)) {
        for (const each of ['forward', 'output'] as const) {
          const sources = {
            ...sourcesOf(table, { ...SETTINGS, fields }),
            syncs: new SyncActivity(),
            disabledForwarding: async () => undefined,
            foreignChains: async () => ({ value: { value: [base(each)] }, age: 0 }),
          } as unknown as StatusSources;
          const resource = traceResources(sources, () => 0)['/api/v1/trace'];
          const query = new URLSearchParams(`from=10.244.1.5&to=${destination}&port=80`);
          const answer = (await resource?.answer(query, requestOf())) as TraceAnswer;
          const text = `${allPorts} ${destination} ${each}`;
          assert.equal(answer.paths[0]?.verdict === 'dropped', each === hook, text);
        }
      }
    }
  });

  it('has young rules of other programs for root', async () => {
    const asked: unknown[] = [];
    const sources = {
      ...sourcesOf(webTable(), SETTINGS),
      syncs: new SyncActivity(),
      disabledForwarding: async () => undefined,
      foreignChains: async (maxAge?: number) => {
        asked.push(maxAge);
        return { value: { value: [] }, age: 0 };
      },
    } as unknown as StatusSources;
    const resource = traceResources(sources, () => 0)['/api/v1/trace'];
    const query = new URLSearchParams('from=10.244.1.5&to=10.96.0.10&port=80');
    for (const isRoot of [true, false]) await resource?.answer(query, requestOf({ isRoot }));
    assert.deepEqual(asked, [1000, undefined]);
  });
});
