/**
 * Fuzzes both sources and the route table with malformed objects. Nothing crashes, no Route has a
 * value that a valid object could not give, and valid objects are still served.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import ipaddr from 'ipaddr.js';
import { stringify } from 'yaml';
import {
  type ApiObject,
  type IpFamily,
  type Kind,
  type ObjectKey,
  SERVING_KINDS,
  type ServingKind,
} from '../../api/objects.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import type { Route } from '../../services/route.ts';
import { TIMEOUTS } from '../../sources/kubernetes/session.ts';
import { ManifestSource } from '../../sources/manifests/source.ts';
import { ALL_PORTS, type Manifest, nodeManifest, serviceManifest } from '../e2e/manifests.ts';
import { RESOURCE, SourceFixture } from './kubernetes/source-fixture.ts';
import { everyMutation, mutatedGroup } from './mutations.ts';
import { RecordingSink, until } from './recording-sink.ts';

const slice = (service: string, address: string, ports: readonly object[]): Manifest => ({
  apiVersion: 'discovery.k8s.io/v1',
  kind: 'EndpointSlice',
  metadata: { name: `${service}-1`, namespace: 'default', labels: LABEL(service) },
  addressType: address.includes(':') ? 'IPv6' : 'IPv4',
  ports,
  endpoints: [
    {
      addresses: [address],
      conditions: { ready: true, serving: true, terminating: false },
      nodeName: 'node-1',
      zone: 'zone-1',
      hints: { forZones: [{ name: 'zone-1' }], forNodes: [{ name: 'node-1' }] },
    },
  ],
});
const LABEL = (service: string) => ({ 'kubernetes.io/service-name': service });
const HTTP = [{ name: 'http', port: 80, protocol: 'TCP' }];

/** Valid objects, which must be served in every run. */
const GOOD = [
  serviceManifest('good', { spec: { clusterIPs: ['10.96.9.9'], ports: HTTP } }),
  slice('good', '10.244.9.9', [{ name: 'http', port: 8080, protocol: 'TCP' }]),
];
/** Valid objects that follow the malformed objects. */
const LAST = [
  serviceManifest('last', { spec: { clusterIPs: ['10.96.9.8'], ports: HTTP } }),
  slice('last', '10.244.9.8', []),
];
const LAST_NAMES = ['Service default/last', 'EndpointSlice default/last-1'];
/** Seeds of malformed objects; together they have every field that is read. */
const GROUPS: readonly (readonly Manifest[])[] = [
  [
    serviceManifest('victim', {
      created: '2026-01-01T00:00:00Z',
      ingress: [{ ip: '203.0.113.1', ipMode: 'VIP' }],
      labels: { app: 'victim' },
      spec: {
        type: 'LoadBalancer',
        clusterIPs: ['10.96.0.1', 'fd00:10:96::1'],
        externalIPs: ['198.51.100.1'],
        ports: [{ ...HTTP[0], nodePort: 30_080 }],
        loadBalancerSourceRanges: ['192.0.2.0/24', '2001:db8::/32'],
        externalTrafficPolicy: 'Local',
        internalTrafficPolicy: 'Cluster',
        healthCheckNodePort: 32_000,
        sessionAffinity: 'ClientIP',
        sessionAffinityConfig: { clientIP: { timeoutSeconds: 60 } },
        trafficDistribution: 'PreferClose',
      },
    }),
    slice('victim', '10.244.0.1', HTTP),
  ],
  [
    serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: ['10.96.0.2'] } }),
    slice('all', '10.244.0.2', []),
  ],
  [
    serviceManifest('field', { spec: { clusterIPs: ['fd00::3'], allPorts: true, ports: [] } }),
    slice('field', 'fd00:10:244::1', [{ name: '', port: null }]),
  ],
  [
    serviceManifest('ranges', {
      annotations: { 'portwide.dev/ports': '5060/UDP,20000-50000/UDP' },
      spec: { clusterIPs: ['10.96.0.4'] },
    }),
    slice('ranges', '10.244.0.4', HTTP),
  ],
  [
    serviceManifest('six', {
      ingress: [{ ip: '2001:db8::1' }, { ip: '2001:db8::2' }],
      spec: {
        type: 'LoadBalancer',
        clusterIPs: ['fd00::6'],
        externalIPs: ['2001:db8::3', '2001:db8::4'],
        ports: HTTP,
      },
    }),
    slice('six', 'fd00:10:244::6', HTTP),
  ],
  [{ ...nodeManifest(['192.0.2.1', '2001:db8::1']), metadata: { name: 'node-1' } }],
];
const VICTIM = GROUPS[0]?.[0] ?? {};

/** Gives each copy its own names, VIPs and node ports. */
function numbered(group: readonly unknown[], number: number): unknown[] {
  const [high, low, hex] = [number >> 8, number & 255, number.toString(16)];
  const text = JSON.stringify(group)
    .replace(/\b10\.96\.0\./g, `10.${100 + high}.${low}.`)
    .replace(/\b(198\.51|203\.0)\.\d+\./g, `$1.${low}.${high}`)
    .replace(/\bfd00:10:96::/g, `fd00:10:96:${hex}::`)
    .replace(/\b2001:db8::(?=\d)/g, `2001:db8:${hex}::`)
    .replace(/\b30080\b/g, String(30_000 + (number % 2768)))
    .replace(/victim|all(?=["-])|field|ranges|six/g, (name) => `${name}${number}`);
  return JSON.parse(text) as unknown[];
}

/** Passes objects to a route table, as the agent does. */
class RouteTableSink extends RecordingSink {
  readonly #table = new RouteTable({
    nodeName: 'node-1',
    allPortsEnabled: true,
    onChange: () => {},
  });

  override synced(kind: Kind): void {
    super.synced(kind);
    this.#table.synced(kind);
  }

  override upsert(object: ApiObject): void {
    super.upsert(object);
    this.#table.upsert(object);
  }

  override remove(kind: Kind, key: ObjectKey): void {
    super.remove(kind, key);
    this.#table.remove(kind, key);
  }

  check(): void {
    this.#table.setNodeAddresses(new Set(['192.0.2.1']));
    this.#table.takeChanges();
    const routes = [...this.#table.routes()];
    for (const route of routes) checkRoute(route);
    const good = routes.find(({ id }) => id === 'default/good/IPv4/TCP/http');
    assert.equal(good?.clusterIP, '10.96.9.9');
    assert.deepEqual(good.clusterEndpoints, [{ address: '10.244.9.9', port: 8080 }]);
    for (const word of ['allPorts', 'ready', 'kind']) assert.ok(!(word in {}), `polluted: ${word}`);
  }
}

const DNS_LABEL = '[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?';

const checked = new Set<string>();

function checkAddress(address: string, family: IpFamily): void {
  if (checked.has(`${family} ${address}`)) return;
  const parsed = ipaddr.parse(address);
  const isIPv6 = parsed instanceof ipaddr.IPv6;
  assert.equal(address, isIPv6 ? parsed.toRFC5952String() : parsed.toString());
  assert.equal(parsed.kind(), family.toLowerCase());
  assert.ok(!(isIPv6 && parsed.isIPv4MappedAddress()), address);
  const special = ['loopback', 'unspecified', 'multicast', 'broadcast'];
  assert.ok(!special.includes(parsed.range()), address);
  checked.add(`${family} ${address}`);
}

/** Checks that all values are safe to use in a rule. */
function checkRoute(route: Route): void {
  const context = JSON.stringify(route);
  const addresses = [
    ...(route.clusterIP === undefined ? [] : [route.clusterIP]),
    ...route.externalIPs,
    ...route.loadBalancerIPs,
  ];
  const endpoints = [
    ...route.clusterEndpoints,
    ...route.localEndpoints,
    ...route.servingEndpoints,
    ...route.notServingEndpoints,
  ];
  for (const address of [...addresses, ...endpoints.map((endpoint) => endpoint.address)]) {
    checkAddress(address, route.family);
  }
  for (const cidr of route.sourceRanges ?? []) {
    const [address, bits] = ipaddr.parseCIDR(cidr);
    assert.ok(bits > 0, context);
    assert.equal(address.kind(), route.family.toLowerCase(), context);
  }
  const { match } = route;
  const ports = [
    ...endpoints.map(({ port }) => port),
    ...(match.kind === 'port' ? [match.port] : []),
    ...(match.kind === 'ranges' ? match.ranges.flatMap(({ from, to }) => [from, to]) : []),
    ...(route.nodePort === 0 ? [] : [route.nodePort]),
    ...(route.healthCheckNodePort === 0 ? [] : [route.healthCheckNodePort]),
  ];
  for (const port of ports) {
    if (port === undefined && match.kind !== 'port') continue;
    assert.ok(Number.isInteger(port) && Number(port) >= 1 && Number(port) <= 65535, context);
  }
  assert.ok(match.kind === 'port' || route.nodePort === 0, context);
  assert.match(route.name, new RegExp(`^${DNS_LABEL}/${DNS_LABEL}(:${DNS_LABEL})?$`), context);
  const { affinitySeconds } = route;
  assert.ok(Number.isInteger(affinitySeconds) && affinitySeconds >= 0 && affinitySeconds <= 86_400);
}

const kindOf = (object: unknown): unknown => (object as { kind?: unknown } | null)?.kind;

/** The items of a kind's list, as text: objects of that kind, or of no known kind. */
function listText(kind: Kind, version: number, objects: readonly unknown[]): string {
  const known = Object.keys(RESOURCE);
  const items = objects.filter((object) => {
    const own = kindOf(object);
    return own === kind || !(typeof own === 'string' && known.includes(own));
  });
  const metadata = { resourceVersion: String(version) };
  return JSON.stringify({ kind: `${kind}List`, apiVersion: 'v1', metadata, items });
}

const MANY = 200;

/** Lists all objects, then sends some of them again as events. */
async function throughApi(
  objects: readonly unknown[],
  asBytes: (text: string) => string | Buffer = (text) => text,
): Promise<void> {
  const sink = new RouteTableSink();
  // On an overloaded machine a list of every odd value takes more than ten seconds.
  const fixture = new SourceFixture({ timeouts: TIMEOUTS, sink });
  const { double } = fixture;
  await double.listen();
  for (const [kind, resource] of Object.entries(RESOURCE)) {
    const text = asBytes(listText(kind as Kind, double.version, objects));
    double.fail({ verb: 'list', resource, fault: { kind: 'text', text } });
  }
  try {
    await fixture.startAndWatch();
    sink.check();
    for (const object of objects.slice(-MANY)) {
      const resource = RESOURCE[kindOf(object) as ServingKind];
      if (resource === undefined) continue;
      const { metadata } = object as { metadata?: unknown };
      const isObject =
        typeof metadata === 'object' && metadata !== null && !Array.isArray(metadata);
      const versioned = { ...(isObject && metadata), resourceVersion: String(double.version) };
      for (const type of ['MODIFIED', 'DELETED', 'ADDED']) {
        const event = { type, object: { ...(object as object), metadata: versioned } };
        double.sendRaw(resource, asBytes(`${JSON.stringify(event)}\n`));
      }
    }
    // After an event that causes a relist, the source finds these objects.
    double.put(...GOOD, ...LAST);
    await until('all objects are read', () => LAST_NAMES.every((name) => sink.objects.has(name)));
    sink.check();
  } finally {
    await fixture.stop();
  }
}

/**
 * Each object in its own file, alternately JSON and YAML; a large number of objects in one list.
 */
async function throughManifests(
  objects: readonly unknown[],
  asBytes: (text: string) => string | Buffer = (text) => text,
): Promise<void> {
  const directory = mkdtempSync(join(tmpdir(), 'portwide-fuzz-'));
  const sink = new RouteTableSink();
  const list = { apiVersion: 'v1', kind: 'List', items: objects.slice(MANY) };
  writeFileSync(join(directory, 'z.json'), asBytes(JSON.stringify(list)));
  for (const [index, object] of objects.slice(0, MANY).entries()) {
    const isYaml = index % 2 === 1;
    const text = isYaml
      ? stringify(object, { aliasDuplicateObjects: false })
      : JSON.stringify(object);
    writeFileSync(join(directory, `${index}.${isYaml ? 'yaml' : 'json'}`), asBytes(text));
  }
  const source = new ManifestSource({
    directory,
    kinds: SERVING_KINDS,
    sink,
    onProblem: () => {},
    rescanMs: 3_600_000,
  });
  try {
    await source.start();
    sink.check();
  } finally {
    await source.stop();
    rmSync(directory, { recursive: true, force: true });
  }
}

const SOURCES = [
  ['the API', throughApi],
  ['manifests', throughManifests],
] as const;

const repeat = <Item>(count: number, item: (index: number) => Item) =>
  Array.from({ length: count }, (_, index) => item(index));
const spec = (fields: object) => ({
  ...VICTIM,
  spec: { ...(VICTIM?.spec as object), ...fields },
});
const nested = (depth: number): unknown =>
  JSON.parse(`${'{"a":['.repeat(depth)}1${']}'.repeat(depth)}`);

/** Too large or too deep for the generator. */
const EXTREMES: Readonly<Record<string, Manifest>> = {
  'ten thousand endpoints': {
    ...slice('victim', '10.244.0.1', HTTP),
    endpoints: repeat(10_000, (index) => ({
      addresses: [`10.245.${index >> 8}.${index & 255}`],
    })),
  },
  'ten thousand ports': spec({
    ports: repeat(10_000, (index) => ({ name: `p${index}`, port: index + 1, protocol: 'UDP' })),
  }),
  'ten thousand source ranges': spec({
    loadBalancerSourceRanges: repeat(10_000, (index) => `10.${index >> 8}.${index & 255}.0/24`),
  }),
  'a name of a megabyte': { ...VICTIM, metadata: { name: 'x'.repeat(1 << 20) } },
  'an annotation of a megabyte': {
    ...VICTIM,
    metadata: {
      name: 'all',
      namespace: 'default',
      annotations: { 'portwide.dev/ports': '1-2,'.repeat(1 << 18) },
    },
  },
  'deep nesting in an ignored field': { ...VICTIM, status: { conditions: nested(200) } },
  'deep nesting in a field that is read': spec({ ports: nested(200) }),
};

for (const [source, through] of SOURCES) {
  describe(`fuzz: malformed objects through ${source}`, function () {
    this.timeout(120_000);

    it('tolerates generated objects', () =>
      fc.assert(
        fc.asyncProperty(
          fc.array(mutatedGroup(GROUPS), { minLength: 40, maxLength: 40 }),
          (groups) => through([...groups.flatMap(numbered), ...GOOD]),
        ),
        { seed: 50, numRuns: 50, endOnFailure: true },
      ));

    it('tolerates every odd value in every field', async () => {
      for (const group of GROUPS)
        await through([...GOOD, ...everyMutation(group).flatMap(numbered)]);
    });

    for (const [what, object] of Object.entries(EXTREMES)) {
      it(`tolerates ${what}`, () => through([object, ...GOOD]));
    }

    it('tolerates bytes that are not UTF-8', () => {
      const marked = serviceManifest('victim', {
        annotations: { note: '@@@' },
        spec: { clusterIPs: ['10.96.0.1'], ports: [{ port: 80, name: '@@@' }] },
      });
      const spoil = (text: string) => {
        const [first, ...rest] = text.split('@@@');
        const parts = rest.flatMap((part) => [Buffer.from([0xff, 0xc3, 0x28]), Buffer.from(part)]);
        return Buffer.concat([Buffer.from(first ?? ''), ...parts]);
      };
      return through([marked, ...GOOD], spoil);
    });
  });
}

it('tolerates nesting deeper than the stack, through the API', async () => {
  const deep = `${'['.repeat(200_000)}${']'.repeat(200_000)}`;
  const splice = (text: string) => text.replaceAll('"@deep@"', deep);
  await throughApi([{ ...VICTIM, status: '@deep@' }, spec({ ports: '@deep@' }), ...GOOD], splice);
});
