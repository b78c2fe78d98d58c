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

const placed = (of: Route, places: Readonly<Record<string, VipSharing>> = {}): PlannedRoute => ({
  route: of,
  sharing: new Map(Object.entries(places)),
  allowsOwnVips: false,
});
const listed = (pods: readonly string[], fields: Partial<Route> = {}) =>
  placed(route({ affinitySeconds: 60, ...fields }, pods));
const wide = (pods: readonly string[], slot = 0) =>
  placed(route({ affinitySeconds: 60, match: { kind: 'all' } }, pods), {
    [VIP]: { slot, sharesWithAllPorts: false },
  });

/** What a packet noted: a client of this VIP (and port) was served by this pod. */
const ofPort = (pod: string, vip = VIP, port = 80) => ({
  key: Buffer.concat([addressBytes(CLIENT), addressBytes(vip), portKey('TCP', port)]),
  data: endpointData({ address: pod, port: 8080 }),
});
const ofVip = (pod: string, vip = VIP) => ({
  key: Buffer.concat([addressBytes(CLIENT), addressBytes(vip)]),
  data: addressBytes(pod),
});

/** By map: whether clients of these pods are to forget them. */
function broken(
  before: readonly PlannedRoute[],
  after: readonly PlannedRoute[],
  map: string,
  element: ReturnType<typeof ofVip>,
): boolean {
  const loyalties = changedAffinityTargets(affinityTargets(before), affinityTargets(after)).get(
    map,
  );
  return loyalties !== undefined && isStaleAffinity(element, loyalties, 4, false);
}

describe('affinity: what clients are to forget', () => {
  it('is nothing where no endpoint went', () => {
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
    assert.equal(affinityTargets([placed(route({}, [A]))]).size, 0);
    assert.equal(
      changedAffinityTargets(affinityTargets([]), affinityTargets([listed([A])])).size,
      0,
    );
  });

  it('is the endpoint that went, of that VIP and port', () => {
    const change = [[listed([A, B])], [listed([B, C])], 'affinity'] as const;
    assert.ok(broken(...change, ofPort(A)));
    assert.ok(!broken(...change, ofPort(B)));
    assert.ok(!broken(...change, ofPort(A, '10.96.0.11')));
    assert.ok(!broken(...change, ofPort(A, VIP, 81)));
  });

  it('is the endpoint at another port', () => {
    const moved = listed([], { clusterEndpoints: [{ address: A, port: 8081 }] });
    assert.ok(broken([listed([A])], [moved], 'affinity', ofPort(A)));
  });

  it('is all where affinity ends, the Service goes, or it moves to another map', () => {
    for (const after of [[listed([A, B], { affinitySeconds: 0 })], [], [wide([A, B])]]) {
      assert.ok(broken([listed([A, B])], after, 'affinity', ofPort(A)));
    }
    assert.ok(broken([wide([A], 1)], [wide([A], 2)], 'affinity-ips-1', ofVip(A)));
    assert.ok(!broken([wide([A], 1)], [wide([A], 1)], 'affinity-ips-1', ofVip(A)));
  });

  it('is all where it would be remembered for longer than it is to be by now', () => {
    const shorter = [[listed([A, B])], [listed([A, B], { affinitySeconds: 59 })]] as const;
    assert.ok(broken(...shorter, 'affinity', ofPort(A)));
    assert.ok(!broken(...shorter, 'affinity', ofPort(A, VIP, 81)));
  });

  it('is, of all ports, by VIP', () => {
    const change = [[wide([A, B])], [wide([B])], 'affinity-ips-0'] as const;
    assert.ok(broken(...change, ofVip(A)));
    assert.ok(!broken(...change, ofVip(B)));
    assert.ok(!broken(...change, ofVip(A, LB)));
  });

  it('is not what another Service has on the VIP by now', () => {
    const other = listed([A, C], { id: 'other' });
    assert.ok(!broken([listed([A, B])], [other], 'affinity', ofPort(A)));
    assert.ok(broken([listed([A, B])], [other], 'affinity', ofPort(B)));
  });

  it('differs for clients inside and outside', () => {
    const local = (externalLocal: boolean, pods: readonly string[]) =>
      listed(pods, {
        externalLocal,
        loadBalancerIPs: [LB],
        nodePort: 30_080,
        localEndpoints: [{ address: C, port: 8080 }],
      });
    // Pods and the node have every endpoint, clients outside the local ones: who is who is unknown.
    const change = [[local(true, [A, B])], [local(true, [A])], 'affinity'] as const;
    assert.ok(broken(...change, ofPort(B, LB)));
    assert.ok(!broken(...change, ofPort(C, LB)));
    assert.ok(broken([local(true, [A])], [local(false, [A])], 'affinity', ofPort(A, LB)));
    assert.ok(broken([local(false, [A])], [local(true, [A])], 'affinity', ofPort(A, LB)));
    assert.ok(!broken([local(false, [A])], [local(true, [A])], 'affinity', ofPort(A)));
    assert.ok(broken(...change, ofPort(B, NODE, 30_080)));
    assert.ok(!broken(...change, ofPort(A, NODE, 30_080)));
  });

  it('internal policy Local: what is not local', () => {
    const fields = { localEndpoints: [{ address: B, port: 8080 }] };
    const change = [
      [listed([A, B], fields)],
      [listed([A, B], { ...fields, internalLocal: true })],
    ] as const;
    assert.ok(broken(...change, 'affinity', ofPort(A)));
    assert.ok(!broken(...change, 'affinity', ofPort(B)));
  });

  it('is what nobody knows, when everything is compared', () => {
    const known =
      affinityTargets([listed([A])]).get('affinity') ?? new Map<string, AffinityTargets>();
    assert.ok(!isStaleAffinity(ofPort(A), known, 4, true));
    assert.ok(isStaleAffinity(ofPort(A, LB), known, 4, true));
    assert.ok(!isStaleAffinity(ofPort(A, LB), known, 4, false));
    assert.ok(isStaleAffinity({ key: ofPort(A).key }, known, 4, false), 'what leads nowhere');
  });
});
