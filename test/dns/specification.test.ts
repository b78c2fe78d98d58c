/**
 * The examples of the Kubernetes DNS-based service discovery specification, version 1.1.0, in its
 * order. TTLs are the server's. Unspecified values are CoreDNS's: weight, priority, and names of
 * endpoints without a hostname.
 */
import assert from 'node:assert/strict';
import type { ApiObject } from '../../api/objects.ts';
import type { DnsRecord } from '../../dns/records.ts';
import { endpoint, service, servicePort, slice } from '../fixtures.ts';
import { ask, zoneWith } from './zone-fixtures.ts';

const HTTPS = [servicePort({ name: 'https', port: 443 })];
const HTTPS_ENDPOINTS = [{ name: 'https', protocol: 'TCP', port: 443 }] as const;
const REVERSE_DB8_1 = '1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa';

/** The Services of the examples. */
const kubernetes = service({
  name: 'kubernetes',
  clusterIPs: ['10.3.0.1', '2001:db8::1'],
  ports: HTTPS,
});
const headless = service({ name: 'headless', clusterIPs: [], headless: true, ports: HTTPS });
const foo = service({
  name: 'foo',
  type: 'ExternalName',
  clusterIPs: [],
  ports: [],
  externalName: 'www.example.com.',
});
const endpoints = (...addresses: readonly string[]) =>
  slice(
    addresses.map((address) => endpoint(address)),
    {
      serviceKey: 'default/headless',
      family: addresses[0]?.includes(':') ? 'IPv6' : 'IPv4',
      ports: HTTPS_ENDPOINTS,
    },
  );
const pets = slice(
  [
    endpoint('10.3.0.100', { hostname: 'my-pet' }),
    endpoint('10.3.0.101', { hostname: 'my-pet-2' }),
    endpoint('10.3.0.102'),
    endpoint('10.3.0.103', { hostname: 'my-late-pet', ready: false }),
  ],
  { serviceKey: 'default/headless', ports: HTTPS_ENDPOINTS },
);
const pets6 = slice([endpoint('2001:db8::1', { hostname: 'my-pet' })], {
  name: 'pets-6',
  serviceKey: 'default/headless',
  family: 'IPv6',
  ports: HTTPS_ENDPOINTS,
});

interface Example {
  readonly section: string;
  readonly objects: readonly ApiObject[];
  readonly question: readonly [name: string, type: DnsRecord['type']];
  readonly answer: readonly string[] | 'NXDOMAIN' | 'NODATA';
}

const EXAMPLES: readonly Example[] = [
  {
    section: '2.2, record for schema version',
    objects: [],
    question: ['dns-version.cluster.local', 'TXT'],
    answer: ['TXT 1.1.0'],
  },
  {
    section: '2.3.1, cluster IP, IPv4',
    objects: [kubernetes],
    question: ['kubernetes.default.svc.cluster.local', 'A'],
    answer: ['A 10.3.0.1'],
  },
  {
    section: '2.3.1, cluster IP, IPv6',
    objects: [kubernetes],
    question: ['kubernetes.default.svc.cluster.local', 'AAAA'],
    answer: ['AAAA 2001:db8::1'],
  },
  {
    section: '2.3.2, SRV of a named port',
    objects: [kubernetes],
    question: ['_https._tcp.kubernetes.default.svc.cluster.local', 'SRV'],
    answer: ['SRV 0 100 443 kubernetes.default.svc.cluster.local'],
  },
  {
    section: '2.3.2, unnamed ports have no SRV',
    objects: [service({ name: 'kubernetes', ports: [servicePort({ port: 443 })] })],
    question: ['_tcp.kubernetes.default.svc.cluster.local', 'SRV'],
    answer: 'NXDOMAIN',
  },
  {
    section: '2.3.3, PTR of a cluster IP, IPv4',
    objects: [kubernetes],
    question: ['1.0.3.10.in-addr.arpa', 'PTR'],
    answer: ['PTR kubernetes.default.svc.cluster.local'],
  },
  {
    section: '2.3.3, PTR of a cluster IP, IPv6',
    objects: [kubernetes],
    question: [REVERSE_DB8_1, 'PTR'],
    answer: ['PTR kubernetes.default.svc.cluster.local'],
  },
  {
    section: '2.4.1, headless, IPv4',
    objects: [headless, endpoints('10.3.0.1', '10.3.0.2', '10.3.0.3')],
    question: ['headless.default.svc.cluster.local', 'A'],
    answer: ['A 10.3.0.1', 'A 10.3.0.2', 'A 10.3.0.3'],
  },
  {
    section: '2.4.1, headless, IPv6',
    objects: [headless, endpoints('2001:db8::1', '2001:db8::2', '2001:db8::3')],
    question: ['headless.default.svc.cluster.local', 'AAAA'],
    answer: ['AAAA 2001:db8::1', 'AAAA 2001:db8::2', 'AAAA 2001:db8::3'],
  },
  {
    section: '2.4.1, headless without ready endpoints',
    objects: [
      headless,
      slice([endpoint('10.3.0.1', { ready: false })], { serviceKey: headless.key }),
    ],
    question: ['headless.default.svc.cluster.local', 'A'],
    answer: 'NXDOMAIN',
  },
  {
    section: '2.4.1, endpoint with a hostname, IPv4',
    objects: [headless, pets],
    question: ['my-pet.headless.default.svc.cluster.local', 'A'],
    answer: ['A 10.3.0.100'],
  },
  {
    section: '2.4.1, endpoint with a hostname, IPv6',
    objects: [headless, pets, pets6],
    question: ['my-pet.headless.default.svc.cluster.local', 'AAAA'],
    answer: ['AAAA 2001:db8::1'],
  },
  {
    section: '2.4.1, several addresses of one hostname',
    objects: [
      headless,
      slice(
        [
          endpoint('10.3.0.100', { hostname: 'my-pet' }),
          endpoint('10.3.0.99', { hostname: 'my-pet' }),
        ],
        {
          serviceKey: headless.key,
        },
      ),
    ],
    question: ['my-pet.headless.default.svc.cluster.local', 'A'],
    answer: ['A 10.3.0.100', 'A 10.3.0.99'],
  },
  {
    section: '2.4.1, endpoint without a hostname: a generated identifier',
    objects: [headless, pets],
    question: ['10-3-0-102.headless.default.svc.cluster.local', 'A'],
    answer: ['A 10.3.0.102'],
  },
  {
    section: '2.4.1, endpoint that is not ready',
    objects: [headless, pets],
    question: ['my-late-pet.headless.default.svc.cluster.local', 'A'],
    answer: 'NXDOMAIN',
  },
  {
    section: '2.1, ready: publishNotReadyAddresses',
    objects: [{ ...headless, publishNotReadyAddresses: true }, pets],
    question: ['my-late-pet.headless.default.svc.cluster.local', 'A'],
    answer: ['A 10.3.0.103'],
  },
  {
    section: '2.4.2, SRV of endpoints',
    objects: [headless, pets],
    question: ['_https._tcp.headless.default.svc.cluster.local', 'SRV'],
    answer: [
      'SRV 0 100 443 10-3-0-102.headless.default.svc.cluster.local',
      'SRV 0 100 443 my-pet-2.headless.default.svc.cluster.local',
      'SRV 0 100 443 my-pet.headless.default.svc.cluster.local',
    ],
  },
  {
    section: '2.4.2, unnamed ports have no SRV',
    objects: [
      { ...headless, ports: [servicePort({ port: 443 })] },
      { ...pets, ports: [{ name: '', protocol: 'TCP', port: 443 }] },
    ],
    question: ['_tcp.headless.default.svc.cluster.local', 'SRV'],
    answer: 'NXDOMAIN',
  },
  {
    section: '2.4.3, PTR of an endpoint, IPv4',
    objects: [headless, pets],
    question: ['100.0.3.10.in-addr.arpa', 'PTR'],
    answer: ['PTR my-pet.headless.default.svc.cluster.local'],
  },
  {
    section: '2.4.3, PTR of an endpoint, IPv6',
    objects: [headless, pets, pets6],
    question: [REVERSE_DB8_1, 'PTR'],
    answer: ['PTR my-pet.headless.default.svc.cluster.local'],
  },
  {
    section: '2.4.3, PTR of an endpoint that is not ready',
    objects: [headless, pets],
    question: ['103.0.3.10.in-addr.arpa', 'PTR'],
    answer: 'NXDOMAIN',
  },
  ...(['A', 'AAAA'] as const).map((type) => ({
    section: `2.5, external name, ${type}`,
    objects: [foo],
    question: ['foo.default.svc.cluster.local', type] as const,
    answer: ['CNAME www.example.com'],
  })),
  {
    section: '2.6, deprecated: any address in any namespace',
    objects: [],
    question: ['10-3-0-1.default.pod.cluster.local', 'A'],
    answer: ['A 10.3.0.1'],
  },
];

describe('specification: DNS-based service discovery', () => {
  for (const { section, objects, question, answer } of EXAMPLES) {
    it(section, () => assert.deepEqual(ask(zoneWith(objects), ...question), answer));
  }

  it('2.4.2: has N times M SRV records for N endpoints and M named ports', () => {
    const names = ['a', 'b', 'c'];
    const ports = names.map(
      (name, index) => ({ name, protocol: 'UDP', port: 1000 + index }) as const,
    );
    const addresses = Array.from({ length: 5 }, (_, index) => endpoint(`10.3.0.${index}`));
    const zone = zoneWith([headless, slice(addresses, { serviceKey: headless.key, ports })]);
    const records = names.flatMap((name) =>
      ask(zone, `_${name}._udp.headless.default.svc.cluster.local`, 'SRV'),
    );
    assert.equal(new Set(records).size, 15);
  });
});
