/** The page, served with any answers of the API. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { SeriesList } from '../../../status/api/activity.ts';
import type { NodeStatus } from '../../../status/api/node-status.ts';
import type { LocalPod, PodAccess, PolicyExplanation } from '../../../status/api/policies.ts';
import type {
  EndpointStatus,
  RouteStatus,
  ServiceDetail,
  ServiceSummary,
} from '../../../status/api/services.ts';
import type { FlowEntry, FlowEvent, FlowNotice } from '../../../status/api/traffic.ts';
import { type Resources, statusHandler } from '../../../status/http/handler.ts';
import { pageResources } from '../../../status/page-resources.ts';
import { UNLIMITED } from '../request.ts';

const NOW = '2026-11-22T12:00:00.000Z';

/** Answers by path. An async iterable becomes a stream. */
export type Answers = Readonly<Record<string, (query: URLSearchParams) => object>>;

export interface FakeAgent {
  readonly url: string;
  /** Paths and queries of all requests, the latest last. */
  readonly requests: string[];
  close(): void;
}

export async function startFakeAgent(answers: Answers): Promise<FakeAgent> {
  const paths = Object.keys(answers);
  const all: Answers = { '/api/v1': () => ({ paths }), ...answers };
  const requests: string[] = [];
  const resources: Resources = Object.fromEntries(
    Object.entries(all).map(([path, answer]) => [
      path,
      {
        summary: '',
        response: undefined,
        mediaType: 'application/json',
        parameters: {},
        answer: (query) => answer(query),
      } satisfies Resources[string],
    ]),
  );
  const handle = statusHandler({
    resources: { ...resources, ...pageResources() },
    bindHost: '127.0.0.1',
    statusSocket: undefined,
    budget: UNLIMITED,
    onError: () => {},
  });
  const server = createServer((request, response) => {
    requests.push(request.url ?? '');
    handle(request, response);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    requests,
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}

export function fakeStatus(fields: Partial<NodeStatus> = {}): NodeStatus {
  return {
    version: '1.2.3',
    nodeName: 'node-a',
    zone: 'zone-1',
    startedAt: '2026-11-22T11:00:00.000Z',
    statusSocket: '/run/other.sock',
    now: NOW,
    mode: { name: 'nftables', reason: '--proxy-mode=nftables' },
    state: 'degraded',
    problems: [
      { reason: 'WatchDown', message: 'no watch of Services', object: null, family: null },
      { reason: 'RefusedVip', message: 'conflict', object: 'Service default/web', family: 'IPv4' },
    ],
    waitingFor: [],
    families: [
      {
        family: 'IPv4',
        lastSync: NOW,
        lastSyncSeconds: 0.002,
        lastFullSync: NOW,
        lastFullSyncSeconds: 1.5,
        lastWritten: 12,
        waitingSince: NOW,
        failure: { at: NOW, message: 'nft failed', count: 3 },
        lastDrift: { at: NOW, change: 'chain services', count: 1 },
        watchesChanges: true,
      },
    ],
    source: {
      kind: 'API server',
      location: 'https://10.96.0.1',
      hasNode: true,
      kinds: [{ kind: 'Service', synced: true, watching: false }],
    },
    kernel: { release: '6.12', features: [{ name: 'f', value: '0', ok: false, note: 'set it' }] },
    services: {
      total: 3,
      served: 1,
      noEndpoints: 0,
      partial: 0,
      partlyRefused: 0,
      refused: 1,
      ignored: 1,
      allPorts: 1,
      portRanges: 0,
      pendingChanges: 0,
      routes: 2,
    },
    refusals: [],
    policy: null,
    ...fields,
  };
}

export function fakeSummary(fields: Partial<ServiceSummary> = {}): ServiceSummary {
  return {
    namespace: 'default',
    name: 'media',
    type: 'LoadBalancer',
    state: 'served',
    vips: ['10.96.0.11', '203.0.113.7'],
    refusedVips: [],
    portKind: 'all',
    ports: ['all'],
    endpoints: { ready: 7, terminating: 1, notReady: 1, local: 2 },
    familyEndpoints: null,
    affinitySeconds: 10_800,
    internalTrafficPolicy: 'Cluster',
    externalTrafficPolicy: 'Local',
    created: '2026-11-20T12:00:00.000Z',
    ...fields,
  };
}

const ADDRESSES = Array.from({ length: 7 }, (_, index) => `10.244.${index}.5`);

function fakeEndpoint(address: string, fields: Partial<EndpointStatus> = {}): EndpointStatus {
  return {
    service: 'default/media',
    portName: '',
    family: 'IPv4',
    address,
    port: null,
    protocol: null,
    ready: true,
    serving: true,
    terminating: false,
    node: 'node-a',
    zone: 'zone-1',
    local: true,
    zoneHints: ['zone-1'],
    nodeHints: [],
    ownedPorts: null,
    cluster: { used: true, reason: 'ready' },
    localPolicy: { used: true, reason: 'ready' },
    ...fields,
  };
}

function fakeRoute(fields: Partial<RouteStatus> = {}): RouteStatus {
  return {
    service: 'default/media',
    portName: '',
    family: 'IPv4',
    kind: 'cluster IP',
    vip: '10.96.0.11',
    ports: 'all',
    endpoints: ADDRESSES,
    podAndNodeEndpoints: null,
    portsPerPod: null,
    masquerade: 'non-pods',
    otherwise: 'reject',
    sourceRanges: null,
    affinitySeconds: 10_800,
    consistentHash: null,
    ...fields,
  };
}

export function fakeFlow(fields: Partial<FlowEntry> = {}): FlowEntry {
  return {
    family: 'IPv4',
    protocol: 'TCP',
    source: '10.244.0.9',
    sourcePort: 40_000,
    destination: '10.96.0.11',
    destinationPort: 5060,
    endpoint: '10.244.0.5',
    endpointPort: 5060,
    masqueraded: false,
    state: 'ESTABLISHED',
    packets: 12,
    bytes: 3456,
    stale: false,
    ...fields,
  };
}

export function fakeDetail(fields: Partial<ServiceDetail> = {}): ServiceDetail {
  const element = (container: string, text: string) =>
    ({
      family: 'IPv4',
      type: 'element',
      in: container,
      desired: text,
      actual: text,
      state: 'ok',
      service: 'default/media',
      inProgress: false,
    }) as const;
  return {
    summary: fakeSummary(),
    objects: {
      uid: 'uid-1',
      annotation: 'all',
      ownedPortsAnnotation: null,
      portsPerPodAnnotation: null,
      loadBalancingAnnotation: null,
      allPorts: null,
      slices: [{ name: 'media-1', family: 'IPv4', endpoints: 7, ports: ['all/TCP'] }],
    },
    endpoints: [
      ...ADDRESSES.map((address) => fakeEndpoint(address)),
      fakeEndpoint('10.244.9.5', {
        ready: false,
        cluster: { used: false, reason: 'not ready' },
        localPolicy: { used: false, reason: 'on another node' },
      }),
    ],
    routes: [
      fakeRoute(),
      fakeRoute({ kind: 'loadbalancer IP', vip: '203.0.113.7', sourceRanges: ['192.0.2.0/24'] }),
      fakeRoute({ kind: 'external IP', vip: '203.0.113.8', endpoints: [], otherwise: 'drop' }),
    ],
    ownedPorts: [],
    problems: [],
    kernel: [
      element('service-ips', '10.96.0.11 : goto cluster-ips-7'),
      element('endpoint-ips', '10.96.0.11 . 0 : 10.244.0.5'),
      {
        ...element('allowed-vip-sources', '203.0.113.7 . 0 . 192.0.2.0/24'),
        actual: null,
        state: 'missing',
      },
    ],
    kernelTotal: 3,
    kernelDifferent: 1,
    kernelStable: true,
    connections: { total: 1, entries: [fakeFlow({ stale: true })] },
    healthCheck: { port: 30_500, localEndpoints: 2 },
    events: [{ at: NOW, type: 'Warning', reason: 'Refused', message: 'an Event' }],
    ...fields,
  };
}

function fakeSeries(): SeriesList {
  const times = Array.from({ length: 20 }, (_, index) => 1_795_348_800 + index * 5);
  const series = (['count', 'seconds', 'cores', 'bytes'] as const).map((unit) => ({
    name: unit,
    title: `Series of ${unit}`,
    unit,
    values: times.map((_, index) => (index === 3 ? null : index)),
  }));
  return { intervalSeconds: 5, times, series };
}

/** Answers of every resource that the page knows. */
export function fakeAnswers(): Answers {
  return {
    '/api/v1/status': () => fakeStatus(),
    '/api/v1/series': fakeSeries,
    '/api/v1/checks': () => FAKE_CHECKS,
    '/api/v1/services': () => ({ items: [fakeSummary()], total: 1, continue: null }),
    '/api/v1/services/{namespace}/{name}': () => fakeDetail(),
    '/api/v1/routes': () => ({
      items: [fakeRoute(), fakeRoute({ service: 'default/web', ports: '80/TCP' })],
      total: 2,
      continue: null,
    }),
    '/api/v1/changes': () => ({ items: fakeChanges(), total: 2, continue: null }),
    '/api/v1/policies': () => ({ items: [FAKE_POLICY], total: 1, continue: null }),
    '/api/v1/pods': () => ({ items: [FAKE_POD], total: 1, continue: null }),
    '/api/v1/access': (query) => ({
      ...{ items: FAKE_ACCESS, total: 200, continue: 'o100' },
      ...(query.has('pod') ? ONE_POD : MANY_PODS),
    }),
    '/api/v1/policies/explain': () => FAKE_EXPLANATION,
    '/api/v1/top': (query) => ({
      items: [fakeTop(query.get('by') ?? 'service')],
      total: 1,
      continue: null,
      sample: {
        since: NOW,
        sampledAt: NOW,
        intervalSeconds: 1,
        countsBytes: false,
        notes: ['nf_conntrack_acct is 0'],
      },
    }),
    '/api/v1/flows': () => fakeFlows(),
    '/api/v1/trace': () => FAKE_TRACE,
  };
}

export function fakeChanges() {
  const change = {
    id: 1,
    at: NOW,
    kind: 'sync',
    family: 'IPv4',
    full: false,
    seconds: 0.004,
    queuedSeconds: 0.012,
    written: 3,
    deletedFlows: 1,
    services: ['default/media', 'default/web'],
    serviceCount: 22,
    message: '',
    count: 1,
    undoneAt: null,
  };
  return [
    { ...change, id: 2, kind: 'external', seconds: null, message: 'flush ruleset', undoneAt: NOW },
    change,
  ];
}

const FAKE_CHECKS = {
  at: NOW,
  status: 'fail',
  checks: [
    { status: 'fail', name: 'local pods', seen: 'no pod CIDR', action: 'set --cluster-cidr' },
    { status: 'warn', name: 'route_localnet', seen: '1: open', action: 'set it to 0' },
    { status: 'ok', name: 'RBAC', seen: 'all requests are allowed', action: '' },
  ],
  omitted: 2,
};

const FAKE_POLICY = {
  kind: 'NetworkPolicy',
  namespace: 'default',
  name: 'deny',
  tier: 'NetworkPolicy',
  priority: 0,
  ingressRules: 0,
  egressRules: null,
  localPods: 3,
  state: 'faulty',
  faults: [{ field: 'spec.ingress', reason: 'unreadable' }],
};

const FAKE_POD: LocalPod = {
  namespace: 'default',
  name: 'web',
  addresses: ['10.244.0.9'],
  ingress: { policies: ['NetworkPolicy default/deny'], total: 1, isolated: true },
  egress: { policies: [], total: 0, isolated: false },
};

const FAKE_DECISION: PodAccess['decisions'][number] = {
  ports: ['TCP 80', 'UDP 1000-2000'],
  portsTotal: 12,
  verdict: 'allow',
  tier: 'Admin',
  policies: ['AdminNetworkPolicy first'],
  rule: 'spec.ingress[0]',
  reason: 'AdminNetworkPolicy first spec.ingress[0] allows it',
  passedBy: null,
};

const FAKE_PEER: PodAccess['peer'] = {
  kind: 'pods',
  names: ['default/db', 'shop/db'],
  total: 12,
  namespaces: ['default', 'shop'],
  family: 'IPv6',
  rest: false,
};

const ONE_POD = { podGroups: [{ pod: 'default/web', others: [], total: 1 }], nextPod: null };

const MANY_PODS = {
  podGroups: [{ pod: 'default/web', others: ['default/web-2'], total: 200 }],
  nextPod: 'default/x',
};

const FAKE_ACCESS: readonly PodAccess[] = [
  {
    pod: 'default/web',
    direction: 'ingress',
    peer: FAKE_PEER,
    decisions: [
      FAKE_DECISION,
      { ...FAKE_DECISION, verdict: 'deny', ports: ['TCP 81'], portsTotal: 1, passedBy: 'a pass' },
      { ...FAKE_DECISION, verdict: 'deny', tier: 'NetworkPolicy', rule: null, reason: 'isolated' },
    ],
    uncertain: [],
  },
  ...(['pods', 'nodes', 'addresses', 'domainName', 'ownNode'] as const).map(
    (kind): PodAccess => ({
      pod: 'default/web',
      direction: 'egress',
      peer: { ...FAKE_PEER, kind, rest: kind === 'pods' || kind === 'addresses', family: null },
      decisions: [{ ...FAKE_DECISION, tier: null, policies: [], rule: null }],
      uncertain: kind === 'domainName' ? ['a rule with networks'] : [],
    }),
  ),
];

const FAKE_DIRECTION: PolicyExplanation['families'][number]['egress'] = {
  verdict: 'allow',
  tier: null,
  policies: [],
  rule: null,
  reason: 'no policy applies',
  uncertain: ['an earlier rule'],
  notLearned: ['a rule with names'],
};

const FAKE_EXPLANATION: PolicyExplanation = {
  port: 80,
  protocol: 'TCP',
  verdict: 'deny',
  families: [
    {
      family: 'IPv4',
      from: '10.244.0.9',
      to: null,
      verdict: 'deny',
      egress: FAKE_DIRECTION,
      ingress: { ...FAKE_DIRECTION, verdict: 'deny', tier: 'Baseline', reason: 'the last word' },
    },
  ],
};

function fakeTop(by: string) {
  return {
    service: 'default/media',
    endpoint: by === 'endpoint' ? '10.244.0.5' : null,
    protocol: by === 'port' ? 'UDP' : null,
    port: by === 'port' ? 5060 : null,
    otherPorts: false,
    connections: 4,
    connectionsPerSecond: 2.5,
    packetsPerSecond: 100,
    bytesPerSecond: 123_456,
    total: { connections: 9, packets: null, bytes: null },
  };
}

export async function* fakeFlows(
  events: readonly Partial<FlowEvent>[] = [],
  notices: readonly FlowNotice[] = [],
) {
  yield { at: NOW, event: 'started', lost: 0, notes: ['no UDP'] };
  yield* notices;
  const opened = { at: NOW, event: 'opened', service: 'default/media', reason: '', policies: [] };
  yield { ...opened, flow: fakeFlow() };
  yield { ...opened, event: 'denied', reason: 'NetworkPolicy default/deny', flow: fakeFlow() };
  for (const each of events) yield { ...opened, flow: fakeFlow(), ...each };
  // A stream ends only when the agent does.
  await new Promise((resolve) => setTimeout(resolve, 60_000).unref());
}

const FAKE_TRACE = {
  from: 'node',
  to: 'default/media',
  protocol: 'TCP',
  port: 80,
  paths: [
    {
      family: 'IPv4',
      source: '10.244.0.9',
      destination: '10.96.0.11',
      steps: [
        {
          step: 'service',
          title: 'Service',
          decision: 'the VIP is of default/media',
          object: 'Service default/media',
          detail: ['one', 'two'],
        },
      ],
      verdict: 'denied',
      outcome: 'failed',
      endpoints: [
        {
          address: '10.244.0.5',
          port: 80,
          local: true,
          masqueraded: false,
          policy: 'deny',
          foreignRules: null,
        },
      ],
      uncertain: ['depends on the time'],
    },
  ].flatMap((path) => [path, { ...path, family: 'IPv6' }]),
};
