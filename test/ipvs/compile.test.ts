import assert from 'node:assert/strict';
import fc from 'fast-check';
import { IP_FAMILIES } from '../../api/objects.ts';
import { compileIpvsItems, markOwners } from '../../ipvs/compile.ts';
import { destinationText, entryText, type IpvsItem, serviceText } from '../../ipvs/items.ts';
import type { Route } from '../../services/route.ts';
import { allowsOwnVips, trafficPlan } from '../../traffic/plan.ts';
import { route } from '../fixtures.ts';
import { arbitraryChange } from '../iptables/generated.ts';
import { clusterAfter } from '../iptables/test-cluster.ts';
import { compileOptions } from './simulated-node.ts';

const NODE = '192.0.2.7';
const VIP = '203.0.113.1';
const HERE = { address: '10.244.0.1', port: 8080 };
const THERE = { address: '10.244.0.2', port: 8080 };

/** Compiles with marks from 10 on, in the order in which owners first ask for one. */
function compile(from: Route, fields: Parameters<typeof compileOptions>[0] = {}): string[] {
  const owners: string[] = [];
  const options = compileOptions({
    family: from.family,
    nodeAddresses: [from.family === 'IPv4' ? NODE : '2001:db8::7'],
    verdicts: { drop: 1, reject: 2 },
    markOf: (owner) => {
      if (!owners.includes(owner)) owners.push(owner);
      return 10 + owners.indexOf(owner);
    },
    ...fields,
  });
  const plan = trafficPlan(from, allowsOwnVips(from, options.nodeAddresses));
  return compileIpvsItems(plan, options).map(itemText);
}

/** One line for each item, without undefined fields. */
function itemText(item: IpvsItem): string {
  switch (item.kind) {
    case 'service': {
      const { scheduler, schedulerFlags, persistenceSeconds } = item.config;
      const options = [
        scheduler,
        ...(schedulerFlags > 0 ? [`flags ${schedulerFlags}`] : []),
        ...(persistenceSeconds > 0 ? [`${persistenceSeconds} s`] : []),
      ];
      return `service ${serviceText(item.service)} (${options.join(', ')})`;
    }
    case 'destination':
      return `  ${destinationText(item.service, item.destination)}`;
    case 'address':
      return `bind ${item.address}`;
    case 'entry': {
      const { ip, protocol, port, portTo, ip2, mark, skbMark, comment } = item.entry;
      const fields = [ip, protocol, port, portTo === undefined ? undefined : `-${portTo}`, ip2];
      const all = [
        item.set.slice('KUBE-'.length),
        ...fields,
        mark === undefined ? undefined : `mark ${mark}`,
        skbMark === undefined ? undefined : `=> ${skbMark}`,
        comment,
      ];
      return all.filter((field) => field !== undefined).join(' ');
    }
  }
}

/** An all-ports Route with two endpoints, one of them on this node. */
function wide(fields: Partial<Route> = {}): Route {
  const [here, there] = [HERE, THERE].map(({ address }) => ({ address, port: undefined }));
  return route({
    match: { kind: 'all' },
    clusterEndpoints: here === undefined || there === undefined ? [] : [here, there],
    localEndpoints: here === undefined ? [] : [here],
    hasEndpointsAnywhere: true,
    ...fields,
  });
}

const listed = (fields: Partial<Route> = {}) =>
  route({
    clusterEndpoints: [HERE, THERE],
    localEndpoints: [HERE],
    hasEndpointsAnywhere: true,
    ...fields,
  });

const NONE = { clusterEndpoints: [], localEndpoints: [], hasEndpointsAnywhere: false };

describe('compile: a Route in the ipvs mode', () => {
  it('compiles a listed port on a cluster IP', () => {
    assert.deepEqual(compile(route({}, ['10.244.0.1'])), [
      'IPVS-IPS 10.96.0.10',
      'bind 10.96.0.10',
      'service TCP 10.96.0.10:80 (rr)',
      '  TCP 10.96.0.10:80 > 10.244.0.1:8080',
      'CLUSTER-IP 10.96.0.10 TCP 80',
      'LOOP-BACK 10.244.0.1 TCP 8080 10.244.0.1',
    ]);
  });

  it('compiles an IPv6 Route', () => {
    assert.deepEqual(compile(route({ family: 'IPv6' }, ['fd00:10:244::1'])), [
      'IPVS-IPS fd00:10:96::a',
      'bind fd00:10:96::a',
      'service TCP fd00:10:96::a:80 (rr)',
      '  TCP fd00:10:96::a:80 > fd00:10:244::1:8080',
      'CLUSTER-IP fd00:10:96::a TCP 80',
      'LOOP-BACK fd00:10:244::1 TCP 8080 fd00:10:244::1',
    ]);
  });

  it('compiles a load balancer VIP with source ranges and externalTrafficPolicy Local', () => {
    const from = listed({
      clusterIP: undefined,
      loadBalancerIPs: [VIP],
      externalLocal: true,
      healthCheckNodePort: 32000,
      sourceRanges: ['192.0.2.0/24', '198.51.100.9'],
    });
    assert.deepEqual(compile(from), [
      `IPVS-IPS ${VIP}`,
      `bind ${VIP}`,
      'HEALTH-CHECK-NODE-PORT 32000',
      `HEALTH-CHECK-VIP ${VIP} TCP 32000`,
      // For clients inside the cluster, which reach endpoints on other nodes too.
      'service FWM 10 (rr)',
      '  FWM 10 > 10.244.0.1:8080',
      '  FWM 10 > 10.244.0.2:8080',
      `service TCP ${VIP}:80 (rr)`,
      `  TCP ${VIP}:80 > 10.244.0.1:8080`,
      `MARKS ${VIP} mark 10 default/web TCP cluster`,
      `INSIDE-PORTS ${VIP} TCP 80 => 10`,
      `LOAD-BALANCER ${VIP} TCP 80`,
      `LOAD-BALANCER-LOCAL ${VIP} TCP 80`,
      `LOAD-BALANCER-FW ${VIP} TCP 80`,
      `LOAD-BALANCER-SOURCE-CIDR ${VIP} TCP 80 192.0.2.0/24`,
      `LOAD-BALANCER-SOURCE-IP ${VIP} TCP 80 198.51.100.9`,
      // The node is in the source ranges, and connects with the VIP as its source.
      `LOAD-BALANCER-SOURCE-IP ${VIP} TCP 80 ${VIP}`,
      'LOOP-BACK 10.244.0.1 TCP 8080 10.244.0.1',
      'LOOP-BACK 10.244.0.2 TCP 8080 10.244.0.2',
      'LOOP-BACK 10.244.0.1 TCP 8080 10.244.0.1',
    ]);
  });

  it('compiles a node port: TCP by port, SCTP by address and port', () => {
    const one = { clusterIP: undefined, nodePort: 30001, clusterEndpoints: [HERE] };
    const [tcp, sctp] = [
      compile(listed(one)),
      compile(listed({ ...one, match: { kind: 'port', protocol: 'SCTP', port: 80 } })),
    ].map((lines) => lines.filter((line) => !line.startsWith('LOOP-BACK')));
    assert.deepEqual(tcp, [
      'NODE-PORT-TCP 30001',
      `service TCP ${NODE}:30001 (rr)`,
      `  TCP ${NODE}:30001 > 10.244.0.1:8080`,
    ]);
    assert.deepEqual(sctp, [
      `service SCTP ${NODE}:30001 (rr)`,
      `  SCTP ${NODE}:30001 > 10.244.0.1:8080`,
      `NODE-PORT-SCTP-HASH ${NODE} SCTP 30001`,
    ]);
  });

  it('compiles all ports', () => {
    assert.deepEqual(compile(wide({ loadBalancerIPs: [VIP] })), [
      'IPVS-IPS 10.96.0.10',
      'bind 10.96.0.10',
      `IPVS-IPS ${VIP}`,
      `bind ${VIP}`,
      'ALL-PORTS-IPS 10.96.0.10',
      `ALL-PORTS-IPS ${VIP}`,
      'service FWM 10 (rr)',
      '  FWM 10 > 10.244.0.1:0',
      '  FWM 10 > 10.244.0.2:0',
      'ALL-PORTS 10.96.0.10 => 10',
      'MARKS 10.96.0.10 mark 10 default/web cluster',
      'CLUSTER-IP-MARK 10.96.0.10 mark 10',
      `ALL-PORTS ${VIP} => 10`,
      `MARKS ${VIP} mark 10 default/web cluster`,
      `LOAD-BALANCER-MARK ${VIP} mark 10`,
      'ALL-PORTS-LOOP-BACK 10.244.0.1/32 10.244.0.1/32',
      'ALL-PORTS-LOOP-BACK 10.244.0.2/32 10.244.0.2/32',
      'ALL-PORTS-LOOP-BACK 10.244.0.1/32 10.244.0.1/32',
    ]);
  });

  it('compiles port ranges with source ranges and externalTrafficPolicy Local', () => {
    const from = wide({
      match: {
        kind: 'ranges',
        ranges: [
          { protocol: 'TCP', from: 80, to: 90 },
          { protocol: 'UDP', from: 5060, to: 5060 },
        ],
      },
      clusterIP: undefined,
      loadBalancerIPs: [VIP],
      externalLocal: true,
      sourceRanges: ['198.51.100.0/24'],
    });
    assert.deepEqual(
      compile(from).filter((line) => !line.includes('LOOP-BACK')),
      [
        `IPVS-IPS ${VIP}`,
        `bind ${VIP}`,
        `ALL-PORTS-IPS ${VIP}`,
        'service FWM 10 (rr)',
        '  FWM 10 > 10.244.0.1:0',
        '  FWM 10 > 10.244.0.2:0',
        'service FWM 11 (rr)',
        '  FWM 11 > 10.244.0.1:0',
        `PORT-RANGES ${VIP} TCP 80 -90 => 11`,
        `PORT-RANGES ${VIP} UDP 5060 => 11`,
        `MARKS ${VIP} mark 11 default/web local`,
        `MARKS ${VIP} mark 10 default/web cluster`,
        `INSIDE-PORT-RANGES ${VIP} TCP 80 -90 => 10`,
        `INSIDE-PORT-RANGES ${VIP} UDP 5060 => 10`,
        `PORT-RANGES-FW ${VIP} mark 11`,
        `PORT-RANGES-FW ${VIP} mark 10`,
        `PORT-RANGES-SOURCE ${VIP} TCP 80 -90 198.51.100.0/24`,
        `PORT-RANGES-SOURCE ${VIP} UDP 5060 198.51.100.0/24`,
      ],
    );
  });

  it('rejects when there is no endpoint: by IPVS, and for all ports by the reject mark', () => {
    assert.deepEqual(compile(route()), [
      'IPVS-IPS 10.96.0.10',
      'bind 10.96.0.10',
      'service TCP 10.96.0.10:80 (rr)',
      'CLUSTER-IP 10.96.0.10 TCP 80',
    ]);
    assert.ok(compile(wide(NONE)).includes('ALL-PORTS 10.96.0.10 => 2'));
  });

  it('drops when the traffic policy leaves the node no endpoint', () => {
    const here = { internalLocal: true, localEndpoints: [] };
    assert.ok(compile(listed(here)).includes('DROP 10.96.0.10 TCP 80'));
    assert.ok(compile(wide(here)).includes('ALL-PORTS 10.96.0.10 => 1'));
    const outside = { loadBalancerIPs: [VIP], externalLocal: true, localEndpoints: [] };
    const lines = compile(listed(outside));
    assert.ok(lines.includes(`DROP-OUTSIDE ${VIP} TCP 80`));
    assert.ok(!lines.includes(`DROP ${VIP} TCP 80`), 'clients inside the cluster are served');
    const wideLines = compile(wide(outside));
    assert.ok(wideLines.includes(`ALL-PORTS ${VIP} => 1`));
    assert.ok(wideLines.includes(`INSIDE-ALL-PORTS ${VIP} => 10`));
  });

  it('makes services persistent when there is session affinity', () => {
    assert.ok(
      compile(listed({ affinitySeconds: 60 })).includes('service TCP 10.96.0.10:80 (rr, 60 s)'),
    );
    assert.ok(compile(wide({ affinitySeconds: 60 })).includes('service FWM 10 (rr, 60 s)'));
  });

  it('sets the flags of a hashing scheduler: hash ports, skip draining destinations', () => {
    const lines = compile(wide(), { scheduler: 'mh' });
    assert.ok(lines.includes('service FWM 10 (mh, flags 24)'));
  });

  it('does not bind a VIP that is a node address', () => {
    const lines = compile(listed({ clusterIP: undefined, loadBalancerIPs: [NODE] }));
    assert.ok(lines.includes(`service TCP ${NODE}:80 (rr)`));
    assert.ok(!lines.some((line) => /^(bind|IPVS-IPS)/.test(line)));
  });

  it('rejects all ports when no mark is left', () => {
    const lines = compile(wide(), { markOf: () => undefined });
    assert.deepEqual(lines, [
      'IPVS-IPS 10.96.0.10',
      'bind 10.96.0.10',
      'ALL-PORTS-IPS 10.96.0.10',
      'ALL-PORTS 10.96.0.10 => 2',
    ]);
  });
});

describe('compile: generated Routes in the ipvs mode', () => {
  for (const family of IP_FAMILIES) {
    it(`gives equal items for equal Routes, and asks for the marks of their owners (${family})`, () => {
      const settings = { masqueradeAll: false, localDetector: undefined, holdsVips: false };
      fc.assert(
        fc.property(fc.array(arbitraryChange, { minLength: 5, maxLength: 25 }), (steps) => {
          const { routes, nodeAddresses } = clusterAfter(steps, family, settings);
          for (const each of routes) {
            const asked = new Set<string>();
            const options = compileOptions({ family, nodeAddresses });
            const markOf = (owner: string) => {
              asked.add(owner);
              return options.markOf(owner);
            };
            const planned = (of: Route) => trafficPlan(of, allowsOwnVips(of, nodeAddresses));
            const items = compileIpvsItems(planned(each), { ...options, markOf });
            assert.deepEqual(compileIpvsItems(planned(structuredClone(each)), options), items);
            assert.deepEqual([...asked].sort(), markOwners(planned(each)).sort());
            checkReferences(items);
          }
        }),
        { seed: 42, numRuns: 100 },
      );
    });
  }
});

/**
 * Asserts that destinations have a service, equal entries have equal marks, and marks have a
 * record.
 */
function checkReferences(items: readonly IpvsItem[]): void {
  const services = new Set<string>();
  const recorded = new Set<number>();
  const marks = new Map<string, number | undefined>();
  for (const item of items) {
    if (item.kind === 'service') services.add(serviceText(item.service));
    if (item.kind !== 'entry') continue;
    const { set, entry } = item;
    if (set === 'KUBE-MARKS') recorded.add(entry.mark ?? 0);
    const key = entryText(set, entry);
    assert.ok(!marks.has(key) || marks.get(key) === entry.skbMark, key);
    marks.set(key, entry.skbMark);
  }
  for (const item of items) {
    if (item.kind === 'destination') assert.ok(services.has(serviceText(item.service)));
    if (item.kind === 'service' && item.service.kind === 'mark') {
      assert.ok(recorded.has(item.service.mark), `mark ${item.service.mark} has a record`);
    }
  }
}
