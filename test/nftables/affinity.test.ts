import assert from 'node:assert/strict';
import { addressBytes } from '../../netlink/core/address.ts';
import { portKey } from '../../nft/keys.ts';
import {
  type AffinityTargets,
  affinityTargets,
  changedAffinityTargets,
  isStaleAffinity,
} from '../../nftables/affinity.ts';
import type { VipSharing } from '../../nftables/compile.ts';
import { endpointData } from '../../nftables/keys.ts';
import type { PlannedRoute } from '../../nftables/plan.ts';
import type { Route } from '../../services/route.ts';
import { route } from '../fixtures.ts';

const [A, B, C] = ['10.244.0.1', '10.244.0.2', '10.244.0.3'] as const;
const VIP = '10.96.0.10';
const LB = '203.0.113.1';
const CLIENT = '192.0.2.1';
const NODE = '192.0.2.7';

const planned = (of: Route, sharing: Readonly<Record<string, VipSharing>> = {}): PlannedRoute => ({
  route: of,
  sharing: new Map(Object.entries(sharing)),
  allowsOwnVips: false,
});
const listed = (pods: readonly string[], fields: Partial<Route> = {}) =>
  planned(route({ affinitySeconds: 60, ...fields }, pods));
const allPorts = (pods: readonly string[], slot = 0) =>
  planned(route({ affinitySeconds: 60, match: { kind: 'all' } }, pods), {
    [VIP]: { slot, sharesWithAllPorts: false },
  });

/** An affinity entry: the client of this VIP (and port) is served by this pod. */
const portEntry = (pod: string, vip = VIP, port = 80) => ({
  key: Buffer.concat([addressBytes(CLIENT), addressBytes(vip), portKey('TCP', port)]),
  data: endpointData({ address: pod, port: 8080 }),
});
const vipEntry = (pod: string, vip = VIP) => ({
  key: Buffer.concat([addressBytes(CLIENT), addressBytes(vip)]),
  data: addressBytes(pod),
});

/** Whether affinity entries with these pods are stale, for one map. */
function isStale(
  before: readonly PlannedRoute[],
  after: readonly PlannedRoute[],
  map: string,
  element: ReturnType<typeof vipEntry>,
): boolean {
  const targets = changedAffinityTargets(affinityTargets(before), affinityTargets(after)).get(map);
  return targets !== undefined && isStaleAffinity(element, targets, 4, false);
}

describe('affinity: stale affinity entries', () => {
  it('finds no entry stale when no endpoint was removed', () => {
    for (const after of [
      listed([A, B]),
      listed([A, B, C]),
      listed([A, B], { affinitySeconds: 61 }),
    ]) {
      assert.equal(
        changedAffinityTargets(affinityTargets([listed([A, B])]), affinityTargets([after])).size,
        0,
      );
    }
    assert.equal(affinityTargets([planned(route({}, [A]))]).size, 0);
    assert.equal(
      changedAffinityTargets(affinityTargets([]), affinityTargets([listed([A])])).size,
      0,
    );
  });

  it('finds entries of a removed endpoint stale, for its VIP and port only', () => {
    const change = [[listed([A, B])], [listed([B, C])], 'affinity'] as const;
    assert.ok(isStale(...change, portEntry(A)));
    assert.ok(!isStale(...change, portEntry(B)));
    assert.ok(!isStale(...change, portEntry(A, '10.96.0.11')));
    assert.ok(!isStale(...change, portEntry(A, VIP, 81)));
  });

  it('finds entries of an endpoint with a changed port stale', () => {
    const moved = listed([], { clusterEndpoints: [{ address: A, port: 8081 }] });
    assert.ok(isStale([listed([A])], [moved], 'affinity', portEntry(A)));
  });

  it('finds all entries stale when affinity is turned off, the Service is deleted, or its map changes', () => {
    for (const after of [[listed([A, B], { affinitySeconds: 0 })], [], [allPorts([A, B])]]) {
      assert.ok(isStale([listed([A, B])], after, 'affinity', portEntry(A)));
    }
    assert.ok(isStale([allPorts([A], 1)], [allPorts([A], 2)], 'affinity-ips-1', vipEntry(A)));
    assert.ok(!isStale([allPorts([A], 1)], [allPorts([A], 1)], 'affinity-ips-1', vipEntry(A)));
  });

  it('finds all entries stale when the affinity timeout becomes shorter', () => {
    const shorter = [[listed([A, B])], [listed([A, B], { affinitySeconds: 59 })]] as const;
    assert.ok(isStale(...shorter, 'affinity', portEntry(A)));
    assert.ok(!isStale(...shorter, 'affinity', portEntry(A, VIP, 81)));
  });

  it('finds entries of all-ports Services stale by VIP', () => {
    const change = [[allPorts([A, B])], [allPorts([B])], 'affinity-ips-0'] as const;
    assert.ok(isStale(...change, vipEntry(A)));
    assert.ok(!isStale(...change, vipEntry(B)));
    assert.ok(!isStale(...change, vipEntry(A, LB)));
  });

  it('keeps entries of endpoints that another Service now has on the VIP', () => {
    const other = listed([A, C], { id: 'other' });
    assert.ok(!isStale([listed([A, B])], [other], 'affinity', portEntry(A)));
    assert.ok(isStale([listed([A, B])], [other], 'affinity', portEntry(B)));
  });

  it('finds all entries stale when externalTrafficPolicy changes', () => {
    const local = (externalLocal: boolean, pods: readonly string[]) =>
      listed(pods, {
        externalLocal,
        loadBalancerIPs: [LB],
        nodePort: 30_080,
        localEndpoints: [{ address: C, port: 8080 }],
      });
    // Pods and the node use every endpoint, external clients only local endpoints. Affinity entries do not distinguish
    // these clients.
    const change = [[local(true, [A, B])], [local(true, [A])], 'affinity'] as const;
    assert.ok(isStale(...change, portEntry(B, LB)));
    assert.ok(!isStale(...change, portEntry(C, LB)));
    assert.ok(isStale([local(true, [A])], [local(false, [A])], 'affinity', portEntry(A, LB)));
    assert.ok(isStale([local(false, [A])], [local(true, [A])], 'affinity', portEntry(A, LB)));
    assert.ok(!isStale([local(false, [A])], [local(true, [A])], 'affinity', portEntry(A)));
    assert.ok(isStale(...change, portEntry(B, NODE, 30_080)));
    assert.ok(!isStale(...change, portEntry(A, NODE, 30_080)));
  });

  it('finds entries of endpoints on other nodes stale when internalTrafficPolicy becomes Local', () => {
    const fields = { localEndpoints: [{ address: B, port: 8080 }] };
    const change = [
      [listed([A, B], fields)],
      [listed([A, B], { ...fields, internalLocal: true })],
    ] as const;
    assert.ok(isStale(...change, 'affinity', portEntry(A)));
    assert.ok(!isStale(...change, 'affinity', portEntry(B)));
  });

  it('finds entries of unknown VIPs stale in a full sync only', () => {
    const targets =
      affinityTargets([listed([A])]).get('affinity') ?? new Map<string, AffinityTargets>();
    assert.ok(!isStaleAffinity(portEntry(A), targets, 4, true));
    assert.ok(isStaleAffinity(portEntry(A, LB), targets, 4, true));
    assert.ok(!isStaleAffinity(portEntry(A, LB), targets, 4, false));
    assert.ok(
      isStaleAffinity({ key: portEntry(A).key }, targets, 4, false),
      'an entry without data',
    );
  });
});
