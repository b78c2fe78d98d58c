import assert from 'node:assert/strict';
import type { PortRange } from '../../api/ports.ts';
import type { OwnedSlices, Route } from '../../services/route.ts';
import { type SliceTranslation, spokenPorts, trafficPlan } from '../../traffic/plan.ts';
import { route } from '../fixtures.ts';

const CLUSTER_IP = '10.96.0.10';
const [LB, LB2] = ['203.0.113.1', '203.0.113.2'] as const;
const [FIRST, SECOND] = ['10.244.0.1', '10.244.1.1'] as const;

const udp = (from: number, to: number): PortRange => ({ protocol: 'UDP', from, to });
const tcp = (from: number, to: number): PortRange => ({ protocol: 'TCP', from, to });

/** A load balancer Service with two slices of ten UDP and ten TCP ports, each with an owner. */
function owning(fields: Partial<OwnedSlices> = {}): Route {
  const owned: OwnedSlices = {
    ranges: [udp(100, 119), tcp(300, 319)],
    portsPerPod: 10,
    owners: [
      { ordinal: 0, address: FIRST, serves: true, node: 'this' },
      { ordinal: 1, address: SECOND, serves: true, node: 'other' },
    ],
    udpVip: LB,
    priority: '2026-01-01 default/media',
    taken: new Map(),
    ...fields,
  };
  return route({
    match: { kind: 'ranges', ranges: owned.ranges },
    clusterIP: CLUSTER_IP,
    loadBalancerIPs: [LB, LB2],
    owned,
  });
}

const text = ({ address, ports: { protocol, from, to }, becomes }: SliceTranslation) =>
  `${address} ${from}-${to}/${protocol} ${becomes}`;
function planned(of: Route, spokenFor?: Parameters<typeof trafficPlan>[2]) {
  const { owned } = trafficPlan(of, false, spokenFor);
  assert.ok(owned !== undefined);
  const { inbound, outbound, speaker } = owned;
  return { inbound: inbound.map(text), outbound: outbound.map(text), speaker };
}
const ofProtocol = (texts: readonly string[], protocol: string) =>
  texts.filter((each) => each.includes(`/${protocol} `));

describe('plan: ports owned by pods', () => {
  it('serves UDP on the one VIP as which owners speak, and TCP on every VIP', () => {
    for (const udpVip of [CLUSTER_IP, LB, LB2]) {
      const { inbound, outbound, speaker } = planned(owning({ udpVip }));
      assert.deepEqual(ofProtocol(inbound, 'UDP'), [
        `${udpVip} 100-109/UDP ${FIRST}`,
        `${udpVip} 110-119/UDP ${SECOND}`,
      ]);
      assert.deepEqual(
        ofProtocol(inbound, 'TCP'),
        [CLUSTER_IP, LB, LB2].flatMap((vip) => [
          `${vip} 300-309/TCP ${FIRST}`,
          `${vip} 310-319/TCP ${SECOND}`,
        ]),
      );
      assert.deepEqual(outbound, [
        `${FIRST} 100-109/UDP ${udpVip}`,
        `${SECOND} 110-119/UDP ${udpVip}`,
      ]);
      assert.deepEqual(speaker, { vip: udpVip, ports: [udp(100, 119)] });
    }
  });

  it('serves no UDP while the VIP of owners is refused', () => {
    const { inbound, outbound, speaker } = planned(owning({ udpVip: undefined }));
    assert.deepEqual(ofProtocol(inbound, 'UDP'), []);
    assert.equal(ofProtocol(inbound, 'TCP').length, 6);
    assert.deepEqual([outbound, speaker], [[], undefined]);
    assert.deepEqual(spokenPorts(owning({ udpVip: undefined }), FIRST), []);
  });

  it('leaves out ports that another Service lists, on the VIP where it lists them', () => {
    const taken = new Map([
      [CLUSTER_IP, [udp(101, 101), tcp(301, 301)]],
      [LB, [udp(105, 105), tcp(315, 315)]],
    ]);
    const { inbound, outbound, speaker } = planned(owning({ taken }));
    assert.deepEqual(inbound, [
      `${CLUSTER_IP} 300-300/TCP ${FIRST}`,
      `${CLUSTER_IP} 302-309/TCP ${FIRST}`,
      `${CLUSTER_IP} 310-319/TCP ${SECOND}`,
      `${LB} 100-104/UDP ${FIRST}`,
      `${LB} 106-109/UDP ${FIRST}`,
      `${LB} 110-119/UDP ${SECOND}`,
      `${LB} 300-309/TCP ${FIRST}`,
      `${LB} 310-314/TCP ${SECOND}`,
      `${LB} 316-319/TCP ${SECOND}`,
      `${LB2} 300-309/TCP ${FIRST}`,
      `${LB2} 310-319/TCP ${SECOND}`,
    ]);
    assert.deepEqual(outbound, [
      `${FIRST} 100-104/UDP ${LB}`,
      `${FIRST} 106-109/UDP ${LB}`,
      `${SECOND} 110-119/UDP ${LB}`,
    ]);
    assert.deepEqual(speaker, { vip: LB, ports: [udp(100, 104), udp(106, 119)] });
    assert.deepEqual(spokenPorts(owning({ taken }), FIRST), [udp(100, 104), udp(106, 109)]);
    assert.deepEqual(spokenPorts(owning({ taken }), SECOND), [udp(110, 119)]);
  });

  it('lets a pod speak for the older Service from the ports that it owns by both', () => {
    const { inbound, outbound, speaker } = planned(
      owning(),
      new Map([
        [FIRST, [udp(90, 104)]],
        [SECOND, [udp(100, 109)]],
      ]),
    );
    // Packets to the VIP still reach the owner.
    assert.deepEqual(ofProtocol(inbound, 'UDP'), [
      `${LB} 100-109/UDP ${FIRST}`,
      `${LB} 110-119/UDP ${SECOND}`,
    ]);
    assert.deepEqual(outbound, [`${FIRST} 105-109/UDP ${LB}`, `${SECOND} 110-119/UDP ${LB}`]);
    assert.deepEqual(speaker, { vip: LB, ports: [udp(100, 119)] });
  });

  it('an owner that does not serve speaks, and gets no packets', () => {
    const owners = [{ ordinal: 0, address: FIRST, serves: false, node: 'this' }] as const;
    const { inbound, outbound } = planned(owning({ owners }));
    assert.deepEqual([inbound, outbound], [[], [`${FIRST} 100-109/UDP ${LB}`]]);
    assert.deepEqual(spokenPorts(owning({ owners }), FIRST), [udp(100, 109)]);
  });
});
