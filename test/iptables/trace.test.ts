import assert from 'node:assert/strict';
import fc from 'fast-check';
import { IP_FAMILIES } from '../../api/objects.ts';
import { iptablesRuleset } from '../../iptables/backend.ts';
import { restoreInput } from '../../iptables/restore.ts';
import { TABLES } from '../../iptables/ruleset.ts';
import type { Route } from '../../services/route.ts';
import { type Cluster, expectedOutcomes, type Packet } from '../traffic/expected-outcome.ts';
import { arbitraryChange } from './generated.ts';
import { options } from './options.ts';
import { SimulatedTable } from './restore-simulator.ts';
import {
  ADDRESSES,
  clientPacket,
  clusterAfter,
  localDetectors,
  packets,
  REMOTE_ENDPOINT,
  VIP,
  wideRoute,
} from './test-cluster.ts';
import { packetPaths, parseTables, type Tables, trace } from './tracer.ts';

const BUILTIN = ['PREROUTING', 'INPUT', 'FORWARD', 'OUTPUT', 'POSTROUTING'];

/** Rules in the kernel after the first sync. */
function tablesFor(routes: readonly Route[], local: ReadonlySet<string>, fields = {}): Tables {
  const ruleset = iptablesRuleset(options(fields));
  ruleset.update(routes, []);
  const lines = new Map(
    TABLES.map((table) => {
      const kernel = new SimulatedTable(BUILTIN);
      const nothing = { chains: new Map<string, string>(), foreign: new Set<string>() };
      kernel.restore(restoreInput(ruleset.diff(table, nothing)));
      return [table, kernel.lines()];
    }),
  );
  return parseTables((table) => lines.get(table) ?? [], local);
}

describe('trace: generated packets through the iptables rules', () => {
  for (const family of IP_FAMILIES) {
    it(`gives each packet the outcome that its Route defines (${family})`, () => {
      const settings = fc.record({
        masqueradeAll: fc.boolean(),
        localDetector: localDetectors(family),
        holdsVips: fc.boolean(),
      });
      const steps = fc.array(arbitraryChange, { minLength: 10, maxLength: 40 });
      fc.assert(
        fc.property(steps, settings, (each, { holdsVips, ...rest }) => {
          const cluster = clusterAfter(each, family, { holdsVips, ...rest });
          const { routes, local, nodeAddresses } = cluster;
          const tables = tablesFor(routes, local, { family, nodeAddresses, ...rest });
          for (const packet of packets(family, local)) compare(tables, cluster, packet);
        }),
        { seed: 42, numRuns: 150, endOnFailure: true },
      );
    });
  }
});

function compare(tables: Tables, cluster: Cluster, packet: Packet): void {
  const { outcomes, sticky } = expectedOutcomes(cluster, packet);
  const paths = packetPaths(tables, packet);
  const actual = new Set(paths.map(({ outcome }) => outcome));
  const text = (set: ReadonlySet<string>) => [...set].sort().join('; ');
  if (text(actual) !== text(outcomes)) {
    const where = { packet, ...cluster, local: [...cluster.local] };
    assert.equal(text(actual), text(outcomes), JSON.stringify(where, null, 1));
  }
  if (!sticky) return;
  for (const { outcome, affinityEntries: addedEntries } of paths) {
    assert.deepEqual([...trace(tables, { ...packet, affinityEntries: addedEntries })], [outcome]);
  }
}

describe('trace: one packet through the iptables rules', () => {
  const NODE = ADDRESSES.IPv4.node;
  const local: ReadonlySet<string> = new Set([NODE]);

  const exact = (fields: Partial<Route> = {}) =>
    wideRoute({
      id: 'exact',
      name: 'default/exact',
      match: { kind: 'port', protocol: 'TCP', port: 80 },
      clusterIP: '10.96.0.11',
      ...fields,
    });
  const own = (fields: Partial<Packet> = {}) =>
    clientPacket({ source: NODE, ...fields, inInterface: undefined });
  const outcomes = (routes: readonly Route[], sent: Packet, held = local) =>
    [...trace(tablesFor(routes, held, { nodeAddresses: [NODE] }), sent)].sort();

  it('masquerades packets of the node itself to a VIP with externalTrafficPolicy Local', () => {
    assert.deepEqual(outcomes([wideRoute({ externalLocal: true })], own()), [
      '10.244.0.2 port 80, masqueraded',
      '10.244.0.3 port 80, masqueraded',
    ]);
  });

  it('accepts a masqueraded packet in FORWARD, and clears its mark', () => {
    const routes = [wideRoute({ clusterEndpoints: [REMOTE_ENDPOINT] })];
    assert.deepEqual(outcomes(routes, clientPacket()), [
      '10.244.0.3 port 80, masqueraded, accepted',
    ]);
  });

  it('keeps session affinity across ports and VIPs, for each client', () => {
    const tables = tablesFor([wideRoute({ affinitySeconds: 60 })], local);
    const first = packetPaths(tables, clientPacket());
    assert.equal(new Set(first.map(({ outcome }) => outcome)).size, 2);
    for (const { outcome, affinityEntries } of first) {
      const again = trace(tables, clientPacket({ port: 5060, protocol: 'udp', affinityEntries }));
      assert.deepEqual([...again], [outcome.replace('port 80', 'port 5060')]);
      const elsewhere = trace(tables, clientPacket({ destination: '10.96.0.10', affinityEntries }));
      assert.deepEqual([...elsewhere], [outcome]);
      assert.equal(trace(tables, clientPacket({ source: '192.0.2.51', affinityEntries })).size, 2);
    }
  });

  it('accepts the VIP as source when the node is in the source ranges', () => {
    const routes = [
      wideRoute({ sourceRanges: ['192.0.2.0/24'], clusterEndpoints: [REMOTE_ENDPOINT] }),
    ];
    const sent = own({ source: VIP });
    const held = new Set([NODE, VIP]);
    assert.deepEqual(outcomes(routes, sent, held), ['10.244.0.3 port 80, masqueraded']);
    const others = [wideRoute({ sourceRanges: ['198.51.100.0/24'] })];
    assert.deepEqual(outcomes(others, sent, held), ['DROP']);
  });

  it('accepts a health check in INPUT', () => {
    const routes = [wideRoute({ externalLocal: true, healthCheckNodePort: 32000 })];
    const check = (destination: string) => clientPacket({ destination, port: 32000 });
    assert.deepEqual(outcomes(routes, check(NODE)), ['untouched, accepted']);
    assert.deepEqual(outcomes(routes, check(VIP), new Set([NODE, VIP])), ['untouched, accepted']);
  });

  it('does not treat a packet to a VIP that the node holds as a node port', () => {
    const ranged = wideRoute({ match: { kind: 'ranges', ranges: [] } });
    const routes = [ranged, exact({ id: 'np', loadBalancerIPs: [], nodePort: 30001 })];
    const sent = clientPacket({ port: 30001 });
    assert.deepEqual(outcomes(routes, sent, new Set([NODE, VIP])), [
      'REJECT icmp-port-unreachable',
    ]);
  });

  it('rejects a listed port without endpoints, even if another Service has all ports', () => {
    const none = exact({ clusterEndpoints: [], localEndpoints: [], hasEndpointsAnywhere: false });
    assert.deepEqual(outcomes([wideRoute(), none], clientPacket()), [
      'REJECT icmp-port-unreachable',
    ]);
    assert.equal(outcomes([wideRoute(), none], clientPacket({ port: 81 })).length, 2);
  });

  it('decides by range, then by all ports, for a VIP with its own chain', () => {
    const ranges = Array.from({ length: 400 }, (_, index) => {
      const port = 20_000 + 2 * index;
      return { protocol: 'TCP' as const, from: port, to: port };
    });
    const ranged = {
      id: 'ranged',
      name: 'default/ranged',
      match: { kind: 'ranges', ranges },
    } as const;
    const none = { clusterEndpoints: [], localEndpoints: [], hasEndpointsAnywhere: false };
    const served = outcomes([wideRoute(ranged)], clientPacket({ port: 20_798 }));
    assert.match(served.join(), /port 20798/);
    const refused = ['REJECT icmp-port-unreachable'];
    assert.deepEqual(outcomes([wideRoute(ranged)], clientPacket({ port: 20_799 })), refused);
    const shared = [wideRoute(), wideRoute({ ...ranged, ...none })];
    assert.deepEqual(outcomes(shared, clientPacket({ port: 20_798 })), refused);
    assert.match(outcomes(shared, clientPacket({ port: 20_799 })).join(), /port 20799/);
  });

  it('drops clients outside the source ranges of a listed port, even if another has all ports', () => {
    const ranged = exact({ sourceRanges: ['198.51.100.0/24'] });
    assert.deepEqual(outcomes([wideRoute(), ranged], clientPacket()), ['DROP']);
  });

  it('drops port 0 of an all-ports Service, and serves ping', () => {
    const routes = [wideRoute({ clusterEndpoints: [REMOTE_ENDPOINT] })];
    assert.deepEqual(outcomes(routes, clientPacket({ port: 0 })), ['DROP']);
    const ping = clientPacket({ port: 0, protocol: 'icmp' });
    assert.deepEqual(outcomes(routes, ping), ['10.244.0.3 port 0, masqueraded, accepted']);
  });
});
