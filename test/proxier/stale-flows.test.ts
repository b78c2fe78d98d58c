import assert from 'node:assert/strict';
import type { Protocol } from '../../api/objects.ts';
import { StaleFlowTracker } from '../../proxier/stale-flows.ts';
import type { Route } from '../../services/route.ts';
import { route } from '../fixtures.ts';

const VIP = '10.96.0.10';
const udp = (fields: Partial<Route>, addresses: readonly string[]) =>
  route({ match: { kind: 'port', protocol: 'UDP', port: 53 }, ...fields }, addresses);
const all = (fields: Partial<Route>, addresses: readonly string[]) =>
  route({ id: 'all', match: { kind: 'all' }, ...fields }, addresses);
const flow = (origDstPort: number, replySrc: string, replySrcPort = origDstPort) => ({
  origDst: VIP,
  origDstPort,
  replySrc,
  replySrcPort,
});

/** Replaces Routes one after the other and gives what the last change makes of flows. */
function judge(...versions: (Route | undefined)[]) {
  return judgeWith(false, versions);
}

/** The same for an agent that resets TCP connections to deleted endpoints. */
function judgeTcp(...versions: (Route | undefined)[]) {
  return judgeWith(true, versions);
}

function judgeWith(resetsTcp: boolean, versions: readonly (Route | undefined)[]) {
  const owners = new StaleFlowTracker(resetsTcp);
  let before: Route | undefined;
  let suspects = owners.takeCleanupScope();
  for (const after of versions) {
    owners.takeCleanupScope();
    owners.replace(before, after);
    suspects = owners.takeCleanupScope();
    before = after;
  }
  return {
    suspects,
    isStale: (candidate: ReturnType<typeof flow>, protocol: Protocol = 'UDP') =>
      suspects !== undefined &&
      owners.isStale(candidate, protocol, suspects, (address) => address === '192.0.2.1'),
  };
}

describe('stale-flows: stale conntrack entries', () => {
  it('are those to an endpoint that went; others stay', () => {
    const { isStale } = judge(udp({}, ['10.0.0.1', '10.0.0.2']), udp({}, ['10.0.0.2']));
    assert.equal(isStale(flow(53, '10.0.0.1', 8080)), true);
    assert.equal(isStale(flow(53, '10.0.0.2', 8080)), false);
    assert.equal(isStale(flow(53, '10.0.0.2', 9999)), true, 'a port that is no longer the target');
  });

  it('are those that nobody translated, once there is an endpoint', () => {
    const { isStale } = judge(udp({}, []), udp({}, ['10.0.0.1']));
    assert.equal(isStale(flow(53, VIP)), true);
    assert.equal(isStale(flow(5353, VIP)), false, 'a port that the Service does not serve');
  });

  it('are all of them when the last endpoint goes, or the Service', () => {
    for (const last of [udp({}, []), undefined]) {
      const { isStale } = judge(udp({}, ['10.0.0.1']), last);
      assert.equal(isStale(flow(53, '10.0.0.1', 8080)), true);
    }
  });

  it('none are looked for when endpoints only come, or when a TCP port changes', () => {
    assert.equal(
      judge(udp({}, ['10.0.0.1']), udp({}, ['10.0.0.1', '10.0.0.2'])).suspects,
      undefined,
    );
    assert.equal(judge(route({}, ['10.0.0.1']), route({}, [])).suspects, undefined);
  });

  it('draining endpoints keep theirs', () => {
    const before = udp({}, ['10.0.0.1', '10.0.0.2']);
    const { servingEndpoints } = before;
    const drained = udp({ servingEndpoints }, ['10.0.0.2']);
    assert.equal(judge(before, { ...drained, servingEndpoints }).suspects, undefined);
  });

  it('all ports: on any port of the VIP, to the port that the packet had', () => {
    const { isStale } = judge(all({}, ['10.0.0.1', '10.0.0.2']), all({}, ['10.0.0.2']));
    for (const port of [53, 40_000]) {
      assert.equal(isStale(flow(port, '10.0.0.1')), true);
      assert.equal(isStale(flow(port, '10.0.0.2')), false);
    }
    assert.equal(isStale({ ...flow(53, '10.0.0.1'), origDst: '10.96.0.99' }), false);
  });

  it('all ports turned off: flows to pods that stay live on, listed ports belong to their port', () => {
    const owners = new StaleFlowTracker();
    const wide = all({}, ['10.0.0.1', '10.0.0.2']);
    const listed = udp({}, ['10.0.0.1']);
    owners.replace(undefined, wide);
    owners.takeCleanupScope();
    owners.replace(wide, undefined);
    owners.replace(undefined, listed);
    const suspects = owners.takeCleanupScope();
    assert.ok(suspects !== undefined);
    const isStale = (candidate: ReturnType<typeof flow>) =>
      owners.isStale(candidate, 'UDP', suspects, () => false);
    assert.equal(isStale(flow(7000, '10.0.0.1')), false);
    assert.equal(isStale(flow(7000, '10.0.0.2')), true);
    assert.equal(isStale(flow(53, '10.0.0.1', 53)), true);
    assert.equal(isStale(flow(53, '10.0.0.1', 8080)), false);
  });

  it('all ports turned into TCP ports alone: flows to pods that stay live on', () => {
    const owners = new StaleFlowTracker();
    const wide = all({}, ['10.0.0.1', '10.0.0.2']);
    owners.replace(undefined, wide);
    owners.takeCleanupScope();
    owners.replace(wide, undefined);
    owners.replace(undefined, route({}, ['10.0.0.1']));
    const suspects = owners.takeCleanupScope();
    assert.ok(suspects !== undefined);
    assert.equal(
      owners.isStale(flow(7000, '10.0.0.1'), 'UDP', suspects, () => false),
      false,
    );
    assert.equal(
      owners.isStale(flow(7000, '10.0.0.2'), 'UDP', suspects, () => false),
      true,
    );
  });

  it('a VIP that is a node address: node ports and what others translate there stay', () => {
    const owners = new StaleFlowTracker();
    const nodeIP = '192.0.2.1';
    const lb = (addresses: readonly string[]) =>
      udp({ id: 'lb', clusterIP: '10.96.0.11', loadBalancerIPs: [nodeIP] }, addresses);
    owners.replace(undefined, udp({ id: 'np', nodePort: 30_053 }, ['10.0.0.9']));
    owners.replace(undefined, lb(['10.0.0.1', '10.0.0.2']));
    owners.takeCleanupScope();
    owners.replace(lb(['10.0.0.1', '10.0.0.2']), lb(['10.0.0.2']));
    for (const suspects of [owners.takeCleanupScope(), owners.fullCleanupScope()]) {
      assert.ok(suspects !== undefined);
      const isStale = (port: number, replySrc: string, replyPort = 8080) =>
        owners.isStale(
          { ...flow(port, replySrc, replyPort), origDst: nodeIP },
          'UDP',
          suspects,
          (address) => address === nodeIP,
        );
      assert.equal(isStale(53, '10.0.0.1'), true);
      assert.equal(isStale(53, '10.0.0.2'), false);
      assert.equal(isStale(30_053, '10.0.0.9'), false, 'a node port of another Service');
      assert.equal(isStale(5353, '10.0.0.77'), false, 'a host port of a CNI plug-in');
      assert.equal(isStale(123, nodeIP, 123), false, 'a daemon of the host');
    }
  });

  it('on a shared VIP a flow is held against the Service that its port belongs to', () => {
    const owners = new StaleFlowTracker();
    const wide = all({ id: 'wide' }, ['10.0.0.1']);
    owners.replace(undefined, udp({ id: 'exact' }, ['10.0.0.2']));
    owners.replace(undefined, wide);
    owners.takeCleanupScope();
    owners.replace(wide, all({ id: 'wide' }, []));
    const suspects = owners.takeCleanupScope();
    assert.ok(suspects !== undefined);
    assert.equal(
      owners.isStale(flow(53, '10.0.0.2', 8080), 'UDP', suspects, () => false),
      false,
    );
    assert.equal(
      owners.isStale(flow(54, '10.0.0.1'), 'UDP', suspects, () => false),
      true,
    );
  });

  it('node ports: only on addresses of the node', () => {
    const before = udp({ nodePort: 30_053 }, ['10.0.0.1']);
    const { isStale } = judge(before, udp({ nodePort: 30_053 }, []));
    const toNode = { ...flow(30_053, '10.0.0.1', 8080), origDst: '192.0.2.1' };
    assert.equal(isStale(toNode), true);
    assert.equal(isStale({ ...toNode, origDst: '198.51.100.7' }), false);
  });

  it('are those of SCTP too, which a new association between the same ports only renews', () => {
    const sctp = (addresses: readonly string[]) =>
      route({ match: { kind: 'port', protocol: 'SCTP', port: 53 } }, addresses);
    const { suspects, isStale } = judge(sctp(['10.0.0.1', '10.0.0.2']), sctp(['10.0.0.2']));
    assert.deepEqual(suspects?.protocols, new Set(['SCTP']));
    assert.equal(isStale(flow(53, '10.0.0.1', 8080), 'SCTP'), true);
    assert.equal(isStale(flow(53, '10.0.0.2', 8080), 'SCTP'), false);
    const first = judge(sctp([]), sctp(['10.0.0.1']));
    assert.equal(first.isStale(flow(53, VIP), 'SCTP'), true);
  });

  it('UDP and SCTP node ports of one number are told apart', () => {
    const owners = new StaleFlowTracker();
    const port = (protocol: Protocol, addresses: readonly string[]) =>
      route(
        { id: protocol, nodePort: 30_053, match: { kind: 'port', protocol, port: 53 } },
        addresses,
      );
    owners.replace(undefined, port('UDP', ['10.0.0.9']));
    owners.replace(undefined, port('SCTP', ['10.0.0.1']));
    owners.takeCleanupScope();
    owners.replace(port('SCTP', ['10.0.0.1']), port('SCTP', ['10.0.0.2']));
    const suspects = owners.takeCleanupScope();
    assert.ok(suspects !== undefined);
    const toNode = (replySrc: string) => ({
      ...flow(30_053, replySrc, 8080),
      origDst: '192.0.2.1',
    });
    const isStale = (replySrc: string, protocol: Protocol) =>
      owners.isStale(toNode(replySrc), protocol, suspects, () => true);
    assert.equal(isStale('10.0.0.1', 'SCTP'), true);
    assert.equal(isStale('10.0.0.9', 'UDP'), false);
  });

  describe('of TCP, where connections to deleted endpoints are to be reset', () => {
    const tcp = (fields: Partial<Route>, addresses: readonly string[]) => route(fields, addresses);
    const [one, two] = [
      { address: '10.0.0.1', port: 8080 },
      { address: '10.0.0.2', port: 8080 },
    ];

    it('are those to an endpoint that no EndpointSlice has any more', () => {
      for (const left of [['10.0.0.2'], []]) {
        const { suspects, isStale } = judgeTcp(tcp({}, ['10.0.0.1', '10.0.0.2']), tcp({}, left));
        assert.deepEqual(suspects?.protocols, new Set(['TCP']));
        assert.equal(isStale(flow(80, '10.0.0.1', 8080), 'TCP'), true);
        assert.equal(isStale(flow(80, '10.0.0.2', 8080), 'TCP'), left.length === 0);
        assert.equal(isStale(flow(81, '10.0.0.1', 8080), 'TCP'), false, 'a port not served');
        assert.equal(isStale(flow(80, VIP, 80), 'TCP'), false, 'not translated');
      }
    });

    it('are none while the endpoint drains, is not ready, or only changes its port', () => {
      const before = tcp({}, ['10.0.0.1', '10.0.0.2']);
      for (const after of [
        tcp({ servingEndpoints: [one, two] }, ['10.0.0.2']),
        tcp({ servingEndpoints: [two], notServingEndpoints: [one] }, ['10.0.0.2']),
        tcp({ servingEndpoints: [{ ...one, port: 9090 }, two] }, ['10.0.0.2']),
      ]) {
        assert.equal(judgeTcp(before, after).suspects, undefined);
      }
    });

    it('are none when the Service goes: its pods may stay', () => {
      assert.equal(judgeTcp(tcp({}, ['10.0.0.1']), undefined).suspects, undefined);
    });

    it('an endpoint that leaves while it is not ready counts, too', () => {
      const before = tcp({ servingEndpoints: [], notServingEndpoints: [one] }, []);
      const { isStale } = judgeTcp(before, tcp({}, []));
      assert.equal(isStale(flow(80, '10.0.0.1', 8080), 'TCP'), true);
    });

    it('none are looked for unless asked', () => {
      assert.equal(judge(tcp({}, ['10.0.0.1']), tcp({}, [])).suspects, undefined);
    });

    it('after a restart they are those that lead to no endpoint', () => {
      const owners = new StaleFlowTracker(true);
      owners.replace(undefined, tcp({}, ['10.0.0.2']));
      const suspects = owners.fullCleanupScope();
      const isStale = (replySrc: string) =>
        owners.isStale(flow(80, replySrc, 8080), 'TCP', suspects, () => false);
      assert.equal(isStale('10.0.0.1'), true);
      assert.equal(isStale('10.0.0.2'), false);
    });
  });
});
