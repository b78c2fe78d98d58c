/** Answers of the status API for tests of clients and of printing. */
import type { KernelDiff, KernelObject } from '../../status/api/kernel.ts';
import type { NodeStatus } from '../../status/api/node-status.ts';
import type { PolicySummary } from '../../status/api/policies.ts';
import type {
  EndpointStatus,
  RouteStatus,
  ServiceDetail,
  ServiceSummary,
} from '../../status/api/services.ts';
import type { FlowEntry } from '../../status/api/traffic.ts';

/** The time of all answers. */
export const NOW = '2026-03-01T12:00:00.000Z';

export function service(fields: Partial<ServiceSummary> = {}): ServiceSummary {
  return {
    namespace: 'shop',
    name: 'web',
    type: 'ClusterIP',
    state: 'served',
    vips: ['10.96.0.11'],
    refusedVips: [],
    portKind: 'ports',
    ports: ['80/TCP'],
    endpoints: { ready: 1, terminating: 0, notReady: 0, local: 0 },
    familyEndpoints: null,
    affinitySeconds: 0,
    internalTrafficPolicy: 'Cluster',
    externalTrafficPolicy: 'Cluster',
    created: '2026-03-01T11:00:00Z',
    ...fields,
  };
}

export const SERVICES: readonly ServiceSummary[] = [
  service({
    name: 'bad',
    state: 'refused',
    vips: [],
    refusedVips: ['10.96.0.91'],
    portKind: 'ranges',
    ports: [],
    endpoints: { ready: 0, terminating: 0, notReady: 0, local: 0 },
    created: null,
  }),
  service({ type: 'LoadBalancer', vips: ['10.96.0.11', '203.0.113.1'], ports: ['80:30080/TCP'] }),
  service({
    namespace: 'voice',
    name: 'sip',
    portKind: 'all',
    ports: ['all'],
    vips: ['10.96.0.10', 'fd00:10:96::a'],
    endpoints: { ready: 4, terminating: 1, notReady: 1, local: 1 },
    familyEndpoints: {
      IPv4: { ready: 2, terminating: 0, notReady: 1, local: 1 },
      IPv6: { ready: 2, terminating: 1, notReady: 0, local: 0 },
    },
    affinitySeconds: 10_800,
    created: '2026-02-01T12:00:00Z',
  }),
  service({
    namespace: 'voice',
    name: 'turn',
    portKind: 'ranges',
    ports: ['5060/UDP', '20000-29999/UDP (100 per pod)'],
    state: 'partlyRefused',
    vips: ['10.96.0.20'],
    refusedVips: ['203.0.113.9', '192.0.2.1'],
  }),
];

const READY = { used: true, reason: 'ready' } as const;
const NOT_IN_USE = { used: false, reason: 'traffic policy not in use' } as const;

function endpoint(fields: Partial<EndpointStatus> = {}): EndpointStatus {
  return {
    service: 'shop/web',
    portName: 'http',
    family: 'IPv4',
    address: '10.244.2.6',
    port: 8080,
    protocol: 'TCP',
    ready: true,
    serving: true,
    terminating: false,
    node: 'node2',
    zone: 'zone-2',
    local: false,
    zoneHints: [],
    nodeHints: [],
    ownedPorts: null,
    cluster: READY,
    localPolicy: NOT_IN_USE,
    ...fields,
  };
}

export const ENDPOINTS: readonly EndpointStatus[] = [
  endpoint({ localPolicy: { used: false, reason: 'on another node' } }),
  endpoint({
    service: 'voice/sip',
    portName: '',
    address: '10.244.1.5',
    port: null,
    protocol: null,
    node: 'node',
    zone: 'zone-1',
    local: true,
    zoneHints: ['zone-1'],
  }),
  endpoint({
    service: 'voice/sip',
    portName: '',
    family: 'IPv6',
    address: 'fd00:10:244:2::5',
    port: null,
    protocol: null,
    ready: false,
    terminating: true,
    zone: null,
    cluster: { used: false, reason: 'terminating, and another endpoint is ready' },
  }),
  endpoint({
    service: 'voice/sip',
    portName: '',
    address: '10.244.2.7',
    port: null,
    protocol: null,
    ready: false,
    serving: false,
    node: null,
    cluster: { used: false, reason: 'not ready' },
  }),
  endpoint({
    service: 'voice/turn',
    portName: '',
    port: null,
    protocol: null,
    ownedPorts: '20000-20099/UDP',
    cluster: { used: true, reason: 'owns ports' },
  }),
  endpoint({
    service: 'voice/turn',
    portName: '',
    address: '10.244.2.9',
    port: null,
    protocol: null,
    cluster: { used: false, reason: 'has no ordinal in its name' },
  }),
];

function route(fields: Partial<RouteStatus> = {}): RouteStatus {
  return {
    service: 'shop/web',
    portName: 'http',
    family: 'IPv4',
    kind: 'cluster IP',
    vip: '10.96.0.11',
    ports: '80/TCP',
    endpoints: ['10.244.2.6:8080'],
    podAndNodeEndpoints: null,
    portsPerPod: null,
    masquerade: 'non-pods',
    otherwise: null,
    sourceRanges: null,
    affinitySeconds: 0,
    consistentHash: null,
    ...fields,
  };
}

export const ROUTES: readonly RouteStatus[] = [
  route(),
  route({
    kind: 'loadbalancer IP',
    vip: '203.0.113.1',
    endpoints: [],
    podAndNodeEndpoints: ['10.244.2.6:8080'],
    masquerade: 'node',
    otherwise: 'drop',
    sourceRanges: ['192.0.2.0/24'],
  }),
  route({ kind: 'node port', vip: null, ports: '30080/TCP', otherwise: 'drop' }),
  route({
    service: 'voice/sip',
    vip: '10.96.0.10',
    ports: 'all',
    endpoints: ['10.244.1.1', '10.244.1.2', '10.244.1.3', '10.244.1.4', '10.244.1.5'],
    otherwise: 'reject',
    affinitySeconds: 10_800,
  }),
  route({
    service: 'voice/turn',
    vip: '10.96.0.20',
    ports: '20000-29999/UDP',
    endpoints: ['10.244.2.6'],
    portsPerPod: 100,
    masquerade: 'none',
    otherwise: 'reject',
  }),
];

function kernelObject(fields: Partial<KernelObject> = {}): KernelObject {
  return {
    family: 'IPv4',
    type: 'element',
    in: 'map cluster-ips',
    desired: '10.96.0.11 . tcp . 80 : goto web',
    actual: '10.96.0.11 . tcp . 80 : goto web',
    state: 'ok',
    service: 'shop/web',
    inProgress: false,
    ...fields,
  };
}

export const MISSING = kernelObject({ actual: null, state: 'missing' });
export const CHANGED = kernelObject({
  type: 'chain',
  in: 'table ip portwide',
  desired: 'jump a\njump b',
  actual: 'jump a\njump c',
  state: 'changed',
  service: null,
});
export const UNEXPECTED = kernelObject({ desired: null, state: 'unexpected', family: 'IPv6' });

export function diff(items: readonly KernelObject[], fields: Partial<KernelDiff> = {}): KernelDiff {
  return {
    items,
    total: items.length,
    continue: null,
    compared: 120,
    different: items.length,
    inProgress: 0,
    omitted: 0,
    stable: true,
    unsynced: [],
    ...fields,
  };
}

export const FLOW: FlowEntry = {
  family: 'IPv4',
  protocol: 'TCP',
  source: '10.244.1.5',
  sourcePort: 40_000,
  destination: '10.96.0.11',
  destinationPort: 80,
  endpoint: '10.244.2.6',
  endpointPort: 8080,
  masqueraded: false,
  state: 'ESTABLISHED',
  packets: null,
  bytes: null,
  stale: false,
};

export const DETAIL: ServiceDetail = {
  summary: service({ type: 'LoadBalancer', externalTrafficPolicy: 'Local' }),
  objects: {
    uid: '4f1c',
    annotation: '80/TCP',
    ownedPortsAnnotation: null,
    portsPerPodAnnotation: null,
    loadBalancingAnnotation: null,
    allPorts: null,
    slices: [{ name: 'web-1', family: 'IPv4', endpoints: 1, ports: ['http 8080/TCP'] }],
  },
  endpoints: ENDPOINTS.slice(0, 1),
  routes: ROUTES.slice(0, 2),
  ownedPorts: [],
  problems: [
    {
      reason: 'NoEndpoints',
      message: 'spec.externalTrafficPolicy: Local, and no endpoint is on this node',
      object: 'Service shop/web',
      family: 'IPv4',
    },
  ],
  kernel: [kernelObject(), MISSING],
  kernelTotal: 3,
  kernelDifferent: 1,
  kernelStable: true,
  connections: {
    total: 2,
    entries: [FLOW],
  },
  healthCheck: { port: 30_500, localEndpoints: 0 },
  events: [
    { at: '2026-03-01T11:58:00.000Z', type: 'Warning', reason: 'Refused', message: 'a message' },
  ],
};

/** A Service whose ports pods own. */
export const OWNED_DETAIL: ServiceDetail = {
  ...DETAIL,
  summary: service({
    name: 'turn',
    portKind: 'ranges',
    ports: ['20000-20999/UDP (100 per pod)', '30000-30399/TCP (100 per pod)'],
    vips: ['10.96.0.20'],
    refusedVips: ['203.0.113.9'],
    endpoints: { ready: 1, terminating: 0, notReady: 1, local: 0 },
  }),
  objects: {
    ...DETAIL.objects,
    annotation: null,
    ownedPortsAnnotation: '20000-20999/UDP,30000-30399/TCP',
    portsPerPodAnnotation: '100',
  },
  endpoints: ENDPOINTS.slice(4),
  routes: ROUTES.slice(4),
  ownedPorts: [
    {
      family: 'IPv4',
      ports: ['20000-20999/UDP', '30000-30399/TCP'],
      portsPerPod: 100,
      udpVip: '10.96.0.20',
      slices: [
        {
          firstOrdinal: 0,
          lastOrdinal: 0,
          ports: '20000-20099/UDP,30000-30099/TCP',
          owner: '10.244.2.6',
          state: 'served',
        },
        {
          firstOrdinal: 1,
          lastOrdinal: 1,
          ports: '20100-20199/UDP,30100-30199/TCP',
          owner: '10.244.2.7',
          state: 'notServing',
        },
        {
          firstOrdinal: 2,
          lastOrdinal: 9,
          ports: '20200-20999/UDP,30200-30399/TCP',
          owner: null,
          state: 'vacant',
        },
      ],
      omittedSlices: 0,
      withoutSlice: [
        { address: '10.244.2.9', ordinal: null, reason: 'has no ordinal in its name' },
      ],
      portsOfOtherServices: [{ vip: '10.96.0.20', ports: ['20053/UDP'] }],
      refusedVips: [
        { vip: '203.0.113.9', service: 'shop/older' },
        { vip: '192.0.2.1', service: null },
      ],
    },
  ],
  problems: [],
  healthCheck: null,
  events: [],
};

const FAMILY = {
  lastSync: '2026-03-01T11:59:57.000Z',
  lastSyncSeconds: 0.012,
  lastFullSync: '2026-03-01T11:00:00.000Z',
  lastFullSyncSeconds: 1.25,
  lastWritten: 4,
  waitingSince: null,
  failure: null,
  lastDrift: null,
  watchesChanges: true,
} as const;

export const HEALTHY: NodeStatus = {
  version: '0.1.0',
  nodeName: 'node',
  zone: 'zone-1',
  startedAt: '2026-02-28T12:00:00.000Z',
  statusSocket: '/run/portwide/portwide.sock',
  now: NOW,
  mode: { name: 'nftables', reason: '--proxy-mode=nftables' },
  state: 'healthy',
  problems: [],
  waitingFor: [],
  families: [
    { family: 'IPv4', ...FAMILY },
    { family: 'IPv6', ...FAMILY },
  ],
  source: {
    kind: 'API server',
    location: 'https://10.0.0.1:6443',
    hasNode: true,
    kinds: [
      { kind: 'Service', synced: true, watching: true },
      { kind: 'Node', synced: true, watching: true },
    ],
  },
  kernel: {
    release: '6.12.9',
    features: [{ name: 'nft', value: '1.1.0', ok: true, note: '' }],
  },
  services: {
    total: 7,
    served: 2,
    noEndpoints: 1,
    partial: 1,
    partlyRefused: 1,
    refused: 1,
    ignored: 1,
    allPorts: 1,
    portRanges: 0,
    pendingChanges: 0,
    routes: 4,
  },
  refusals: [],
  policy: null,
};

export const DEGRADED: NodeStatus = {
  ...HEALTHY,
  state: 'degraded',
  problems: [
    {
      reason: 'SyncFailed',
      message: 'rules cannot be written (3 attempts): EPERM',
      object: null,
      family: 'IPv4',
    },
    { reason: 'RefusedVip', message: 'used by shop/old', object: 'Service shop/bad', family: null },
  ],
  families: [
    {
      family: 'IPv4',
      ...FAMILY,
      waitingSince: '2026-03-01T11:59:30.000Z',
      failure: { at: NOW, message: 'EPERM', count: 3 },
      lastDrift: { at: '2026-03-01T11:50:00.000Z', change: 'table ip portwide deleted', count: 2 },
    },
  ],
  source: {
    ...HEALTHY.source,
    kinds: [
      { kind: 'Service', synced: true, watching: false },
      { kind: 'Node', synced: false, watching: true },
    ],
  },
  kernel: {
    release: '6.12.9',
    features: [{ name: 'ip_forward', value: '0', ok: false, note: 'set it to 1' }],
  },
  policy: {
    ...{ policies: 1, faulty: 0, isolatedPods: 2, lastSync: null, failure: null },
    lastDrift: { at: '2026-03-01T11:59:00.000Z', change: 'table deleted in table x', count: 1 },
  },
};

function policy(fields: Partial<PolicySummary> = {}): PolicySummary {
  return {
    kind: 'NetworkPolicy',
    namespace: 'shop',
    name: 'web',
    tier: 'NetworkPolicy',
    priority: 0,
    ingressRules: 2,
    egressRules: null,
    localPods: 3,
    state: 'ok',
    faults: [],
    ...fields,
  };
}

export const POLICIES: readonly PolicySummary[] = [
  policy({
    kind: 'AdminNetworkPolicy',
    namespace: '',
    name: 'cluster',
    tier: 'Admin',
    priority: 7,
  }),
  policy(),
  policy({
    name: 'broken',
    egressRules: 0,
    state: 'faulty',
    faults: [{ field: 'spec.egress[0].to', reason: 'unknown field' }],
  }),
];
