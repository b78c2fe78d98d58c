/** Generates valid but unusual clusters, to find elements that the kernel refuses. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { familyOf } from '../../api/addresses.ts';
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import { endpoint, service, servicePort, slice } from '../fixtures.ts';
import type { ClusterChange } from '../iptables/generated.ts';
import { PATIENCE } from '../lab/lab.ts';
import { createNamespace, type Namespace, type NetnsHelper } from '../netlink/namespace.ts';
import { change } from './generated.ts';
import { Node } from './node.ts';

/** Addresses for any use: cluster IPs, load balancer IPs, external IPs, pods, node addresses. */
const ADDRESSES: Readonly<Record<IpFamily, readonly string[]>> = {
  IPv4: ['10.96.0.1', '203.0.113.1', '203.0.113.2', '10.244.0.1', '192.0.2.7', '255.255.255.254'],
  IPv6: ['fd00::1', '2001:db8::1', '2001:db8::2', 'fd00:10:244::1', '2001:db8::7', 'fe80::1'],
};
const NAMES = ['a', 'b', 'c', 'd', 'e'];
const PORTS = [1, 80, 32_000, 65_535];

const cidr = (family: IpFamily) =>
  fc
    .tuple(fc.constantFrom(...ADDRESSES[family]), fc.nat(family === 'IPv4' ? 32 : 128))
    .map(([address, bits]) => canonical(address, Math.max(bits, 1)));

/** The canonical CIDR: bits after the prefix are zero. */
function canonical(address: string, bits: number): string {
  const isIPv4 = familyOf(address) === 'IPv4';
  const words = isIPv4 ? address.split('.').map(Number) : groupsOf(address);
  const width = isIPv4 ? 8 : 16;
  const masked = words.map((word, index) => {
    const kept = Math.min(Math.max(bits - index * width, 0), width);
    return word & ~((1 << (width - kept)) - 1) & (2 ** width - 1);
  });
  if (isIPv4) return `${masked.join('.')}/${bits}`;
  const text = masked.map((word) => word.toString(16)).join(':');
  return `${new URL(`http://[${text}]`).hostname.slice(1, -1)}/${bits}`;
}

function groupsOf(address: string): number[] {
  const [head = '', tail = ''] = address.split('::');
  const read = (text: string) =>
    text === '' ? [] : text.split(':').map((it) => Number(`0x${it}`));
  const [first, last] = [read(head), read(tail)];
  return [...first, ...Array<number>(8 - first.length - last.length).fill(0), ...last];
}

const range = fc
  .tuple(fc.constantFrom(...PORTS), fc.constantFrom(...PORTS), fc.constantFrom('', '/TCP', '/SCTP'))
  .map(([a, b, protocol]) => `${Math.min(a, b)}-${Math.max(a, b)}${protocol}`);

function oneService(family: IpFamily): fc.Arbitrary<ClusterChange> {
  const addresses = fc.subarray([...ADDRESSES[family]], { maxLength: 3 });
  return fc
    .record({
      name: fc.constantFrom(...NAMES),
      clusterIP: fc.constantFrom(...ADDRESSES[family]),
      portsAnnotation: fc.oneof(
        fc.constant(undefined),
        fc.constant('all'),
        fc.array(range, { minLength: 1, maxLength: 4 }).map((ranges) => ranges.join()),
      ),
      ports: fc.uniqueArray(fc.constantFrom(...PORTS), { minLength: 1 }),
      externalIPs: addresses,
      ingress: addresses,
      loadBalancerSourceRanges: fc.array(cidr(family), { maxLength: 8 }),
      externalTrafficPolicy: fc.constantFrom('Cluster' as const, 'Local' as const),
      affinitySeconds: fc.constantFrom(0, 1, 86_400),
      healthCheckNodePort: fc.constantFrom(0, 32_000),
    })
    .map(({ clusterIP, ingress, ports, externalIPs, ...rest }) => ({
      upsert: service({
        ...rest,
        type: 'LoadBalancer',
        clusterIPs: [clusterIP],
        externalIPs: rest.portsAnnotation === undefined ? externalIPs : [],
        ports: ports.flatMap((port) => [
          servicePort({ name: `t${port}`, port, nodePort: 30_000 + (port % 7) }),
          servicePort({ name: `u${port}`, port, protocol: 'UDP' }),
        ]),
        loadBalancerIngress: ingress.map((ip) => ({ ip, ipMode: 'VIP' as const })),
      }),
    }));
}

function oneSlice(family: IpFamily): fc.Arbitrary<ClusterChange> {
  const many = Array.from({ length: 300 }, (_, index) =>
    family === 'IPv4'
      ? `10.245.${index >> 8}.${index & 255}`
      : `fd00:10:245::${index.toString(16)}`,
  );
  return fc
    .record({
      owner: fc.constantFrom(...NAMES),
      addresses: fc.oneof(
        fc.subarray([...ADDRESSES[family]]),
        fc.constant(many),
        fc.constant(many.slice(0, 299)),
      ),
      port: fc.constantFrom(...PORTS),
      nodeName: fc.constantFrom('node-a', 'node-b'),
    })
    .map(({ owner, addresses, port, nodeName }) => ({
      upsert: slice(
        addresses.map((address) => endpoint(address, { nodeName })),
        {
          name: `${owner}-x`,
          family,
          serviceKey: `default/${owner}`,
          ports: PORTS.flatMap((each) => [
            { name: `t${each}`, protocol: 'TCP' as const, port },
            { name: `u${each}`, protocol: 'UDP' as const, port: each },
          ]),
        },
      ),
    }));
}

describe('fuzz: the kernel accepts the table of any valid cluster', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;
  beforeEach(async () => {
    namespace = await createNamespace();
    helper = namespace.helper();
  });
  afterEach(() => namespace[Symbol.asyncDispose]());

  for (const family of IP_FAMILIES) {
    it(`accepts every element and then has the desired state (${family})`, async function () {
      this.timeout(180_000 * PATIENCE);
      const step: fc.Arbitrary<ClusterChange> = fc.oneof(
        { weight: 4, arbitrary: oneService(family) },
        { weight: 4, arbitrary: oneSlice(family) },
        { weight: 2, arbitrary: change },
        {
          weight: 1,
          arbitrary: fc
            .subarray([...ADDRESSES[family]])
            .map((nodeAddresses) => ({ nodeAddresses })),
        },
      );
      await fc.assert(
        fc.asyncProperty(fc.array(step, { minLength: 4, maxLength: 16 }), async (steps) => {
          await helper.call('hold', 'flush ruleset', 'nft', '-f', '-');
          const node = await Node.start(family, helper);
          await node.apply(true);
          for (const one of steps) {
            await node.feed([one]);
            await node.apply(false);
          }
          assert.equal(await node.apply(true), 0);
          await node.stop();
        }),
        { seed: 11, numRuns: 12 },
      );
    });
  }
});
