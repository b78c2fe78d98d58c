/** All-ports Services, valid and invalid; one table for the agent and the admission policy. */
import { MAX_RANGES, MAX_VALUE_LENGTH } from '../../api/ports.ts';

export interface AdmissionCase {
  readonly title: string;
  readonly service: object;
  /** Problems as `field: message`, in the agent's order. */
  readonly refused: readonly string[];
  /** True if only the agent can detect the problem: the admission policy accepts the Service. */
  readonly leftToAgent?: true;
}

const ANNOTATION = 'metadata.annotations["portwide.dev/ports"]';
const OWNED = 'metadata.annotations["portwide.dev/owned-ports"]';
const PER_POD = 'metadata.annotations["portwide.dev/ports-per-pod"]';
const NEITHER =
  'is not a port or range such as 5060/UDP or 8000-8100; "all" and "false" must stand alone';

/** A Service as an API server passes it to admission: with defaults and allocated cluster IPs. */
export function serviceObject(annotation: string | undefined, spec: object = {}): object {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: {
      name: 'sip',
      namespace: 'voice',
      ...(annotation === undefined ? {} : { annotations: { 'portwide.dev/ports': annotation } }),
    },
    spec: {
      type: 'ClusterIP',
      clusterIP: '10.96.0.10',
      clusterIPs: ['10.96.0.10'],
      ports: [{ port: 1, protocol: 'TCP', targetPort: 1 }],
      ...spec,
    },
  };
}

/** With the annotations of owned ports. @param perPod undefined: without the annotation. */
function owned(value: string, ...[perPod, spec = {}]: [perPod?: string, spec?: object]): object {
  const service = serviceObject(undefined, spec) as { metadata: object };
  const annotations = {
    'portwide.dev/owned-ports': value,
    ...(perPod === undefined ? {} : { 'portwide.dev/ports-per-pod': perPod }),
  };
  return { ...service, metadata: { ...service.metadata, annotations } };
}

/** As on an API server with KEP-2610. */
function byField(spec: object = {}, annotation?: string): object {
  return serviceObject(annotation, { allPorts: true, ports: undefined, ...spec });
}

const HEADLESS = { clusterIP: 'None', clusterIPs: ['None'] };
const EXTERNAL_NAME = {
  type: 'ExternalName',
  externalName: 'sip.example',
  clusterIP: undefined,
  clusterIPs: undefined,
  ports: undefined,
};
const LOAD_BALANCER = { type: 'LoadBalancer', allocateLoadBalancerNodePorts: true };
const NODE_PORT = 'spec.type: a NodePort Service cannot serve all ports of a node';
const NO_VIP =
  'spec.clusterIP: a headless Service has no VIP, and an all-ports Service needs a VIP';
const EXTERNAL_IPS = 'spec.externalIPs: external IPs cannot be served on all ports';
const NO_NAME =
  'spec.type: an ExternalName Service has no VIP, and an all-ports Service needs a VIP';
const PORTS = 'spec.ports: must be empty when spec.allPorts is true';
const CONTRADICTION = `${ANNOTATION}: port ranges contradict spec.allPorts: true`;

const manyRanges = (count: number) =>
  Array.from({ length: count }, (_, at) => `${2 * at + 1}/TCP`).join();

/** Ranges of two ports. */
const ownedRanges = (count: number) =>
  Array.from({ length: count }, (_, at) => `${4 * at + 1}-${4 * at + 2}/UDP`).join();

/** The same number of ranges, which are joined because they are adjacent. */
const longest = (count: number) =>
  Array.from({ length: count }, (_, at) => `${10_000 + at}-65535/SCTP`).join(', ');

export const CASES: readonly AdmissionCase[] = [
  // Not all-ports: the policy does not apply.
  ...(
    [
      ['a Service with listed ports', serviceObject(undefined)],
      ['a NodePort Service', serviceObject(undefined, { type: 'NodePort' })],
      ['external IPs', serviceObject(undefined, { externalIPs: ['203.0.113.9'] })],
      ['a headless Service', serviceObject(undefined, HEADLESS)],
      ['annotation "false" on a NodePort Service', serviceObject('false', { type: 'NodePort' })],
      ['annotation "false" with white space', serviceObject(' false\n', { type: 'NodePort' })],
      ['allPorts: false', serviceObject(undefined, { allPorts: false, type: 'NodePort' })],
    ] as const
  ).map(([title, service]) => ({ title, service, refused: [] })),
  // Valid all-ports Services.
  ...(
    [
      ['all', serviceObject('all')],
      ['all with white space', serviceObject(' all ')],
      ['all beside allPorts: false', serviceObject('all', { allPorts: false })],
      ['a port', serviceObject('5060')],
      ['a port and protocol', serviceObject('5060/UDP')],
      ['the first and the last port', serviceObject('1-65535/SCTP')],
      ['leading zeros', serviceObject('00080-00090')],
      ['a range of one port', serviceObject('80-80/TCP')],
      ['several, with white space', serviceObject(' 5060/UDP , 20000-50000/UDP,\t8000-8100 ')],
      ['the maximum number of ranges', serviceObject(manyRanges(MAX_RANGES))],
      ['the maximum number without protocols', serviceObject(`1/TCP${',5-20'.repeat(341)}`)],
      ['the maximum number of ranges, at their maximum length', serviceObject(longest(MAX_RANGES))],
      [
        'the maximum number of characters',
        serviceObject(` ${manyRanges(MAX_RANGES)}`.padEnd(MAX_VALUE_LENGTH)),
      ],
      ['white space that JavaScript trims', serviceObject('\ufeff80\u00a0,\u2003\v90\f')],
      ['a LoadBalancer', serviceObject('all', LOAD_BALANCER)],
      ['the field', byField()],
      ['the field on a LoadBalancer', byField(LOAD_BALANCER)],
      ['field and annotation both all', byField({}, 'all')],
      ['the field with annotation "false"', byField({}, 'false')],
      ['empty lists', serviceObject('all', { externalIPs: [] })],
    ] as const
  ).map(([title, service]) => ({ title, service, refused: [] })),
  // Malformed values.
  ...(
    [
      ['', `"" ${NEITHER}`],
      ['true', `"true" ${NEITHER}`],
      ['ALL', `"ALL" ${NEITHER}`],
      ['all,80', `"all" ${NEITHER}`],
      ['80,', `"" ${NEITHER}`],
      ['-5', `"-5" ${NEITHER}`],
      ['80-', `"80-" ${NEITHER}`],
      ['80-90-100', `"80-90-100" ${NEITHER}`],
      ['+80', `"+80" ${NEITHER}`],
      ['8e1', `"8e1" ${NEITHER}`],
      ['80 -j ACCEPT', `"80 -j ACCEPT" ${NEITHER}`],
      ['80 - 90', `"80 - 90" ${NEITHER}`],
      ['123456', `"123456" ${NEITHER}`],
      ['http', `"http" ${NEITHER}`],
      ['\u0668\u0660', `"\u0668\u0660" ${NEITHER}`],
      ['say "80"', `"say \\"80\\"" ${NEITHER}`],
      ['a\\b', `"a\\\\b" ${NEITHER}`],
      ['80\n-A INPUT', `"80\\n-A INPUT" ${NEITHER}`],
      ['80/TCP\r\n\t90', `"80/TCP\\r\\n\\t90" ${NEITHER}`],
      ['0', '"0": ports are 1 to 65535'],
      ['0-10/TCP', '"0-10/TCP": ports are 1 to 65535'],
      ['65536', '"65536": ports are 1 to 65535'],
      ['1-65536/UDP', '"1-65536/UDP": ports are 1 to 65535'],
      ['99999-1/x', '"99999-1/x": ports are 1 to 65535'],
      ['20-10', '"20-10": the range ends before it begins'],
      ['20-10/x', '"20-10/x": the range ends before it begins'],
      ['100-20/TCP', '"100-20/TCP": the range ends before it begins'],
      ['80/tcp', '"80/tcp": the protocol must be TCP, UDP or SCTP'],
      ['80/ICMP', '"80/ICMP": the protocol must be TCP, UDP or SCTP'],
      ['80/', '"80/": the protocol must be TCP, UDP or SCTP'],
      ['80/TCP/TCP', '"80/TCP/TCP": the protocol must be TCP, UDP or SCTP'],
      ['80/TCPX', '"80/TCPX": the protocol must be TCP, UDP or SCTP'],
      ['80/ TCP', '"80/ TCP": the protocol must be TCP, UDP or SCTP'],
      ['80-90/20-10', '"80-90/20-10": the protocol must be TCP, UDP or SCTP'],
      ['80,90/tcp,x', '"90/tcp": the protocol must be TCP, UDP or SCTP'],
      ['80, 20-10 ,x', '"20-10": the range ends before it begins'],
      ['80,x,20-10', `"x" ${NEITHER}`],
      ['5-6/UDP,20-10/UDP,30-20', '"20-10/UDP": the range ends before it begins'],
    ] as const
  ).map(([value, message]) => ({
    title: `value ${JSON.stringify(value)}`,
    service: serviceObject(value),
    refused: [`${ANNOTATION}: ${message}`],
  })),
  ...(
    [
      ['too many characters', '5,'.repeat(MAX_VALUE_LENGTH / 2).padEnd(MAX_VALUE_LENGTH + 1)],
      ['20,000 items', '5,'.repeat(20_000)],
      ['200,000 commas', ','.repeat(200_000)],
    ] as const
  ).map(([title, value]) => ({
    title,
    service: serviceObject(value),
    refused: [`${ANNOTATION}: longer than ${MAX_VALUE_LENGTH} characters`],
  })),
  {
    title: 'a malformed value with the field',
    service: byField({}, 'some'),
    refused: [`${ANNOTATION}: "some" ${NEITHER}`],
  },
  {
    title: 'ranges with the field',
    service: byField({}, '80'),
    refused: [CONTRADICTION],
  },
  ...(
    [
      ['too many ranges', manyRanges(MAX_RANGES + 1)],
      ['too many ranges without protocols', `1/TCP,2/TCP${',5-20'.repeat(341)}`],
      ['too many ranges that can be joined', '1-10/TCP,5-20/TCP,'.repeat(700).slice(0, -1)],
      ['too many ranges, some unreadable', `${manyRanges(MAX_RANGES)},x/y/z`],
      ['as many commas as fit', ','.repeat(MAX_VALUE_LENGTH)],
    ] as const
  ).map(([title, value]) => ({
    title,
    service: serviceObject(value),
    refused: [`${ANNOTATION}: more than ${MAX_RANGES} ranges`],
  })),
  // Services that cannot be all-ports.
  ...(
    [
      ['NodePort', { type: 'NodePort' }, [NODE_PORT]],
      ['headless', HEADLESS, [NO_VIP]],
      ['ExternalName', EXTERNAL_NAME, [NO_NAME]],
      ['external IPs', { externalIPs: ['203.0.113.9'] }, [EXTERNAL_IPS]],
      [
        'external IPs on a load balancer',
        { ...LOAD_BALANCER, externalIPs: ['203.0.113.9'] },
        [EXTERNAL_IPS],
      ],
    ] as const
  ).flatMap(([title, spec, refused]) => [
    { title: `${title} by annotation`, service: serviceObject('all', spec), refused },
    { title: `${title} with ranges`, service: serviceObject('5060/UDP', spec), refused },
    { title: `${title} by the field`, service: byField(spec), refused },
  ]),
  {
    title: 'ports with the field',
    service: byField({ ports: [{ port: 1, protocol: 'TCP' }] }),
    refused: [PORTS],
  },
  {
    title: 'several problems at once',
    service: byField(
      { type: 'NodePort', externalIPs: ['203.0.113.9'], ports: [{ port: 1, protocol: 'TCP' }] },
      '80',
    ),
    refused: [CONTRADICTION, NODE_PORT, EXTERNAL_IPS, PORTS],
  },
  {
    title: 'no cluster IP yet, which an API server never passes to admission',
    service: serviceObject('all', { clusterIP: undefined, clusterIPs: undefined }),
    refused: [
      'spec.clusterIP: no cluster IP is set, and an all-ports Service needs a VIP; in a manifest, set spec.clusterIP',
    ],
    leftToAgent: true,
  },
  // Ports owned by pods.
  ...(
    [
      ['owned ports', owned('20000-29999/UDP', '100')],
      [
        'owned ports, several ranges',
        owned(' 20000-29999/UDP , 20000-20999/TCP,\t30000-30099/SCTP', '100'),
      ],
      ['owned ports, one each', owned('5/UDP', ' 1 ')],
      ['owned ports on a LoadBalancer', owned('20000-29999/UDP', '100', LOAD_BALANCER)],
      ['adjacent ranges', owned('20000-20099/UDP,20100-20199/UDP', '100')],
      ['the maximum number of owned ranges', owned(ownedRanges(MAX_RANGES), '1')],
    ] as const
  ).map(([title, service]) => ({ title, service, refused: [] })),
  ...(
    [
      ['20000-29999', '"20000-29999" has no protocol; write for example 20000-29999/UDP'],
      ['5/UDP,x', '"x" is not a port or range such as 5060/UDP or 8000-8100'],
      ['', '"" is not a port or range such as 5060/UDP or 8000-8100'],
      ['all', '"all" is not a port or range such as 5060/UDP or 8000-8100'],
      ['0-5/UDP', '"0-5/UDP": ports are 1 to 65535'],
      ['20-10/UDP', '"20-10/UDP": the range ends before it begins'],
      ['20-30/udp', '"20-30/udp": the protocol must be TCP, UDP or SCTP'],
      ['1-9/UDP,20,30-20/TCP', '"20" has no protocol; write for example 20/UDP'],
      ['100-199/UDP,150-160/UDP', '150-160/UDP overlaps another range'],
      ['100-199/UDP,199/TCP,00199/UDP', '199/UDP overlaps another range'],
      [ownedRanges(MAX_RANGES + 1), `more than ${MAX_RANGES} ranges`],
      [' '.repeat(MAX_VALUE_LENGTH + 1), `longer than ${MAX_VALUE_LENGTH} characters`],
    ] as const
  ).map(([value, message]) => ({
    title: `owned ports ${JSON.stringify(value.slice(0, 40))}`,
    service: owned(value, '1'),
    refused: [`${OWNED}: ${message}`],
  })),
  ...(
    [
      [undefined, 'is required with portwide.dev/owned-ports'],
      ['', '"" is not a number of ports, 1 to 65535'],
      ['0', '"0" is not a number of ports, 1 to 65535'],
      ['65536', '"65536" is not a number of ports, 1 to 65535'],
      ['1e3', '"1e3" is not a number of ports, 1 to 65535'],
      ['a "b"', '"a \\"b\\"" is not a number of ports, 1 to 65535'],
    ] as const
  ).map(([value, message]) => ({
    title: `ports per pod ${value}`,
    service: owned('20000-29999/UDP', value),
    refused: [`${PER_POD}: ${message}`],
  })),
  {
    title: 'ranges that are smaller than a slice',
    service: owned('100-199/UDP,300-398/TCP,500/SCTP', '100'),
    refused: [
      `${OWNED}: 300-398/TCP has fewer ports than a pod gets (portwide.dev/ports-per-pod: 100)`,
      `${OWNED}: 500/SCTP has fewer ports than a pod gets (portwide.dev/ports-per-pod: 100)`,
    ],
  },
  {
    title: 'an owned range twice',
    service: owned('100-199/UDP,100-199/UDP', '100'),
    refused: [`${OWNED}: 100-199/UDP overlaps another range`],
    leftToAgent: true,
  },
  {
    title: 'more slices than possible',
    service: owned('1-65535/UDP,1-65535/TCP', '1'),
    refused: [`${OWNED}: 131070 slices, but at most 65535 are possible`],
    leftToAgent: true,
  },
  ...(
    [
      ['NodePort', { type: 'NodePort' }, NODE_PORT],
      ['headless', HEADLESS, NO_VIP.replace(/an all-ports Service/, 'a Service with owned ports')],
      [
        'ExternalName',
        EXTERNAL_NAME,
        NO_NAME.replace(/an all-ports Service/, 'a Service with owned ports'),
      ],
      ['external IPs', { externalIPs: ['203.0.113.9'] }, EXTERNAL_IPS],
    ] as const
  ).map(([title, spec, message]) => ({
    title: `${title} with owned ports`,
    service: owned('20000-29999/UDP', '100', spec),
    refused: [message],
  })),
];
