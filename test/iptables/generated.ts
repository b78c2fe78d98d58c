/** Generates clusters for property tests, with few names and addresses, so that they collide. */
import fc from 'fast-check';
import type { ApiObject, EndpointSlice, Kind, Service } from '../../api/objects.ts';
import { endpoint, service, servicePort, slice } from '../fixtures.ts';

export type ClusterChange =
  | { readonly upsert: ApiObject }
  | { readonly remove: { readonly kind: Kind; readonly key: string } }
  | { readonly nodeAddresses: readonly string[] };

const NAMES = ['a', 'b', 'c', 'd'];
const VIPS = ['203.0.113.1', '203.0.113.17', '2001:db8:113::1'];

const ports = fc.uniqueArray(
  fc.record({
    name: fc.constantFrom('', 'http', 'dns'),
    protocol: fc.constantFrom('TCP' as const, 'UDP' as const, 'SCTP' as const),
    port: fc.constantFrom(53, 80, 8080),
    nodePort: fc.constantFrom(0, 30001, 30002),
  }),
  { selector: ({ name }) => name, maxLength: 2 },
);

const oneService: fc.Arbitrary<Service> = fc
  .record({
    name: fc.constantFrom(...NAMES),
    type: fc.constantFrom('ClusterIP' as const, 'NodePort' as const, 'LoadBalancer' as const),
    age: fc.nat(3),
    dual: fc.boolean(),
    portsAnnotation: fc.constantFrom(
      undefined,
      undefined,
      'all',
      '80-90,5060/UDP',
      '85/TCP',
      '53/TCP,80-82/TCP,8080/TCP',
      'x',
    ),
    ports,
    vips: fc.subarray(VIPS),
    externalIPs: fc.subarray(VIPS, { maxLength: 1 }),
    loadBalancerSourceRanges: fc.subarray(['192.0.2.0/24', '198.51.100.0/24', '2001:db8::/32']),
    externalTrafficPolicy: fc.constantFrom('Cluster' as const, 'Local' as const),
    internalTrafficPolicy: fc.constantFrom('Cluster' as const, 'Local' as const),
    affinitySeconds: fc.constantFrom(0, 60),
    healthCheckNodePort: fc.constantFrom(0, 32000),
  })
  .map(({ name, age, dual, vips, portsAnnotation, externalIPs, ...rest }) => {
    const index = NAMES.indexOf(name) + 1;
    return service({
      ...rest,
      name,
      portsAnnotation,
      externalIPs: portsAnnotation === undefined ? externalIPs : [],
      ports: rest.ports.map((port) => servicePort(port)),
      creationTimestamp: `2026-01-01T00:00:0${age}Z`,
      clusterIPs: [`10.96.0.${index}`, ...(dual ? [`fd00:10:96::${index}`] : [])],
      loadBalancerIngress: vips.map((ip) => ({ ip, ipMode: 'VIP' as const })),
    });
  });

const oneSlice: fc.Arbitrary<EndpointSlice> = fc
  .record({
    owner: fc.constantFrom(...NAMES),
    number: fc.nat(1),
    family: fc.constantFrom('IPv4' as const, 'IPv6' as const),
    ports,
    endpoints: fc.array(
      fc.record({
        last: fc.integer({ min: 1, max: 4 }),
        ready: fc.boolean(),
        terminating: fc.boolean(),
        nodeName: fc.constantFrom('node-a', 'node-b'),
      }),
      { maxLength: 4 },
    ),
  })
  .map(({ owner, number, family, ports: slicePorts, endpoints }) => {
    const prefix = family === 'IPv4' ? '10.244.0.' : 'fd00:10:244::';
    const name = `${owner}-${family.toLowerCase()}-${number}`;
    return slice(
      endpoints.map(({ last, ...state }) => endpoint(`${prefix}${last}`, state)),
      {
        name,
        family,
        serviceKey: `default/${owner}`,
        ports: slicePorts.map(({ name: portName, protocol, port }) => ({
          name: portName,
          protocol,
          port: port + 1000,
        })),
      },
    );
  });

export const arbitraryChange: fc.Arbitrary<ClusterChange> = fc.oneof(
  { arbitrary: oneService.map((upsert) => ({ upsert })), weight: 4 },
  { arbitrary: oneSlice.map((upsert) => ({ upsert })), weight: 4 },
  {
    arbitrary: fc
      .constantFrom(...NAMES)
      .map((name) => ({ remove: { kind: 'Service' as const, key: `default/${name}` } })),
    weight: 1,
  },
  {
    arbitrary: oneSlice.map(({ key }) => ({ remove: { kind: 'EndpointSlice' as const, key } })),
    weight: 1,
  },
  {
    arbitrary: fc.subarray([...VIPS, '192.0.2.7']).map((nodeAddresses) => ({ nodeAddresses })),
    weight: 1,
  },
);
