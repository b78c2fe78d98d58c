import assert from 'node:assert/strict';
import type { Protocol } from '../../api/objects.ts';
import { IPS_SEEN_REPLY } from '../../netlink/conntrack/entry.ts';
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
  status: IPS_SEEN_REPLY,
});

/** Replaces a Route by each version in turn, and checks flows after the last change. */
function check(...versions: (Route | undefined)[]) {
  return checkWith(false, versions);
}

/** The same for an agent that resets TCP connections to deleted endpoints. */
function checkTcp(...versions: (Route | undefined)[]) {
  return checkWith(true, versions);
}

function checkWith(resetsTcp: boolean, versions: readonly (Route | undefined)[]) {
  const tracker = new StaleFlowTracker(resetsTcp);
  let before: Route | undefined;
  let scope = tracker.takeCleanupScope();
  for (const after of versions) {
    tracker.takeCleanupScope();
    tracker.replaceRoute(before, after);
    scope = tracker.takeCleanupScope();
    before = after;
  }
  return {
    scope,
    isStale: (candidate: ReturnType<typeof flow>, protocol: Protocol = 'UDP') =>
      scope !== undefined &&
      tracker.isStale(candidate, protocol, scope, (address) => address === '192.0.2.1'),
  };
}

describe('stale-flows: stale conntrack entries', () => {
  it('finds entries of a removed endpoint stale, not of others', () => {
    const { isStale } = check(udp({}, ['10.0.0.1', '10.0.0.2']), udp({}, ['10.0.0.2']));
    assert.equal(isStale(flow(53, '10.0.0.1', 8080)), true);
    assert.equal(isStale(flow(53, '10.0.0.2', 8080)), false);
    assert.equal(isStale(flow(53, '10.0.0.2', 9999)), true, 'a port that is no longer the target');
  });

  it('looks at each endpoint of a change a few times, however many there are', () => {
    const COUNT = 500;
    let reads = 0;
    const counted = (third: number): Route => {
      const addresses = Array.from(
        { length: COUNT },
        (_, n) => `10.0.${third + (n >> 8)}.${n & 255}`,
      );
      const endpoints = addresses.map((address) => ({
        get address() {
          reads += 1;
          return address;
        },
        port: 8080,
      }));
      const lists = { clusterEndpoints: endpoints, servingEndpoints: endpoints };
      return { ...udp({}, addresses), ...lists };
    };
    const [before, after] = [counted(0), counted(0)];
    check(before, { ...after, servingEndpoints: after.servingEndpoints.slice(0, -1) });
    assert.ok(reads < 20 * COUNT, `${reads}`);
  });

  it('finds untranslated entries stale once the Service has an endpoint', () => {
    const { isStale } = check(udp({}, []), udp({}, ['10.0.0.1']));
    assert.equal(isStale(flow(53, VIP)), true);
    assert.equal(isStale(flow(5353, VIP)), false, 'a port that the Service does not serve');
  });

  it('finds all entries stale when the last endpoint or the Service is removed', () => {
    for (const last of [udp({}, []), undefined]) {
      const { isStale } = check(udp({}, ['10.0.0.1']), last);
      assert.equal(isStale(flow(53, '10.0.0.1', 8080)), true);
    }
  });

  it('looks at no other Route of the VIP when one changes, because a Service may list thousands of ports', () => {
    const tracker = new StaleFlowTracker();
    let reads = 0;
    const routes = Array.from({ length: 100 }, (_, index) => {
      const match = { kind: 'port', protocol: 'TCP', port: index + 1 } as const;
      return Object.defineProperty(route({ match }), 'id', {
        get: () => {
          reads += 1;
          return `port ${index}`;
        },
      });
    });
    for (const one of routes) tracker.replaceRoute(undefined, one);
    for (const one of routes) tracker.replaceRoute(one, undefined);
    assert.equal(reads, 200);
  });

  it('does not search entries when endpoints are only added, or a TCP port changes', () => {
    assert.equal(check(udp({}, ['10.0.0.1']), udp({}, ['10.0.0.1', '10.0.0.2'])).scope, undefined);
    assert.equal(check(route({}, ['10.0.0.1']), route({}, [])).scope, undefined);
  });

  it('keeps entries of draining endpoints', () => {
    const before = udp({}, ['10.0.0.1', '10.0.0.2']);
    const { servingEndpoints } = before;
    const drained = udp({ servingEndpoints }, ['10.0.0.2']);
    assert.equal(check(before, { ...drained, servingEndpoints }).scope, undefined);
  });

  it('finds entries on any port of an all-ports VIP stale, to the same port of a removed endpoint', () => {
    const { isStale } = check(all({}, ['10.0.0.1', '10.0.0.2']), all({}, ['10.0.0.2']));
    for (const port of [53, 40_000]) {
      assert.equal(isStale(flow(port, '10.0.0.1')), true);
      assert.equal(isStale(flow(port, '10.0.0.2')), false);
    }
    assert.equal(isStale({ ...flow(53, '10.0.0.1'), origDst: '10.96.0.99' }), false);
  });

  it('keeps entries of remaining endpoints on other ports when all-ports is turned off', () => {
    const tracker = new StaleFlowTracker();
    const wide = all({}, ['10.0.0.1', '10.0.0.2']);
    const listed = udp({}, ['10.0.0.1']);
    tracker.replaceRoute(undefined, wide);
    tracker.takeCleanupScope();
    tracker.replaceRoute(wide, undefined);
    tracker.replaceRoute(undefined, listed);
    const scope = tracker.takeCleanupScope();
    assert.ok(scope !== undefined);
    const isStale = (candidate: ReturnType<typeof flow>) =>
      tracker.isStale(candidate, 'UDP', scope, () => false);
    assert.equal(isStale(flow(7000, '10.0.0.1')), false);
    assert.equal(isStale(flow(7000, '10.0.0.2')), true);
    assert.equal(isStale(flow(53, '10.0.0.1', 53)), true);
    assert.equal(isStale(flow(53, '10.0.0.1', 8080)), false);
  });

  it('keeps UDP entries of remaining endpoints when an all-ports Service becomes TCP only', () => {
    const tracker = new StaleFlowTracker();
    const wide = all({}, ['10.0.0.1', '10.0.0.2']);
    tracker.replaceRoute(undefined, wide);
    tracker.takeCleanupScope();
    tracker.replaceRoute(wide, undefined);
    tracker.replaceRoute(undefined, route({}, ['10.0.0.1']));
    const scope = tracker.takeCleanupScope();
    assert.ok(scope !== undefined);
    assert.equal(
      tracker.isStale(flow(7000, '10.0.0.1'), 'UDP', scope, () => false),
      false,
    );
    assert.equal(
      tracker.isStale(flow(7000, '10.0.0.2'), 'UDP', scope, () => false),
      true,
    );
  });

  it('finds UDP entries that outlived all-ports stale once their endpoint leaves the TCP-only Service', () => {
    const tracker = new StaleFlowTracker();
    const wide = all({}, ['10.0.0.1', '10.0.0.2']);
    const listed = (addresses: readonly string[]) => route({}, addresses);
    const isStale = (replySrc: string) => {
      const scope = tracker.takeCleanupScope();
      return (
        scope !== undefined && tracker.isStale(flow(7000, replySrc), 'UDP', scope, () => false)
      );
    };
    tracker.replaceRoute(undefined, wide);
    tracker.takeCleanupScope();
    tracker.replaceRoute(wide, undefined);
    tracker.replaceRoute(undefined, listed(['10.0.0.1', '10.0.0.2']));
    assert.equal(isStale('10.0.0.1'), false);
    tracker.replaceRoute(listed(['10.0.0.1', '10.0.0.2']), listed(['10.0.0.1']));
    assert.equal(isStale('10.0.0.1'), false);
    tracker.replaceRoute(listed(['10.0.0.1']), listed(['10.0.0.3']));
    assert.equal(isStale('10.0.0.1'), true);
    tracker.replaceRoute(listed(['10.0.0.3']), listed(['10.0.0.2']));
    assert.equal(tracker.takeCleanupScope(), undefined, 'no entry is left');
  });

  it('finds entries to ports that no Service serves stale after a restart, unless they lead to an endpoint', () => {
    const tracker = new StaleFlowTracker();
    tracker.replaceRoute(undefined, udp({}, ['10.0.0.1']));
    const scope = tracker.fullCleanupScope();
    const isStale = (replySrc: string, isNode = false) =>
      tracker.isStale(flow(7000, replySrc), 'UDP', scope, () => isNode);
    assert.equal(isStale('10.0.0.9'), true);
    assert.equal(isStale('10.0.0.1'), false);
    assert.equal(isStale(VIP), false, 'not translated');
    assert.equal(isStale('10.0.0.9', true), false, 'a host port of a CNI plug-in');
  });

  it('finds TCP entries without translation and answer stale after a restart, if the Service has an endpoint', () => {
    const tracker = new StaleFlowTracker();
    tracker.replaceRoute(undefined, route({}, ['10.0.0.1']));
    tracker.replaceRoute(
      undefined,
      route({ id: 'empty', match: { kind: 'port', protocol: 'TCP', port: 81 } }, []),
    );
    assert.equal(tracker.takeCleanupScope(), undefined);
    const scope = tracker.fullCleanupScope();
    assert.ok(scope.protocols.has('TCP'));
    const isStale = (port: number, replySrc: string, status: number) =>
      tracker.isStale({ ...flow(port, replySrc), status }, 'TCP', scope, () => false);
    assert.equal(isStale(80, VIP, 0), true);
    assert.equal(isStale(80, VIP, IPS_SEEN_REPLY), false);
    assert.equal(isStale(80, '10.0.0.9', 0), false, 'translated');
    assert.equal(isStale(81, VIP, 0), false, 'no endpoint');
    assert.equal(isStale(82, VIP, 0), false, 'a port that no Service serves');
  });

  it('keeps entries of node ports and other programs on a VIP that is a node address', () => {
    const tracker = new StaleFlowTracker();
    const nodeIP = '192.0.2.1';
    const lb = (addresses: readonly string[]) =>
      udp({ id: 'lb', clusterIP: '10.96.0.11', loadBalancerIPs: [nodeIP] }, addresses);
    tracker.replaceRoute(undefined, udp({ id: 'np', nodePort: 30_053 }, ['10.0.0.9']));
    tracker.replaceRoute(undefined, lb(['10.0.0.1', '10.0.0.2']));
    tracker.takeCleanupScope();
    tracker.replaceRoute(lb(['10.0.0.1', '10.0.0.2']), lb(['10.0.0.2']));
    for (const scope of [tracker.takeCleanupScope(), tracker.fullCleanupScope()]) {
      assert.ok(scope !== undefined);
      const isStale = (port: number, replySrc: string, replyPort = 8080) =>
        tracker.isStale(
          { ...flow(port, replySrc, replyPort), origDst: nodeIP },
          'UDP',
          scope,
          (address) => address === nodeIP,
        );
      assert.equal(isStale(53, '10.0.0.1'), true);
      assert.equal(isStale(53, '10.0.0.2'), false);
      assert.equal(isStale(30_053, '10.0.0.9'), false, 'a node port of another Service');
      assert.equal(isStale(5353, '10.0.0.77'), false, 'a host port of a CNI plug-in');
      assert.equal(isStale(123, nodeIP, 123), false, 'a daemon of the host');
    }
  });

  it('checks entries on a shared VIP against the Service that serves the port', () => {
    const tracker = new StaleFlowTracker();
    const wide = all({ id: 'wide' }, ['10.0.0.1']);
    tracker.replaceRoute(undefined, udp({ id: 'exact' }, ['10.0.0.2']));
    tracker.replaceRoute(undefined, wide);
    tracker.takeCleanupScope();
    tracker.replaceRoute(wide, all({ id: 'wide' }, []));
    const scope = tracker.takeCleanupScope();
    assert.ok(scope !== undefined);
    assert.equal(
      tracker.isStale(flow(53, '10.0.0.2', 8080), 'UDP', scope, () => false),
      false,
    );
    assert.equal(
      tracker.isStale(flow(54, '10.0.0.1'), 'UDP', scope, () => false),
      true,
    );
  });

  it('finds entries of node ports stale on node addresses only', () => {
    const before = udp({ nodePort: 30_053 }, ['10.0.0.1']);
    const { isStale } = check(before, udp({ nodePort: 30_053 }, []));
    const toNode = { ...flow(30_053, '10.0.0.1', 8080), origDst: '192.0.2.1' };
    assert.equal(isStale(toNode), true);
    assert.equal(isStale({ ...toNode, origDst: '198.51.100.7' }), false);
  });

  it('finds SCTP entries stale, which a new association between the same ports would refresh', () => {
    const sctp = (addresses: readonly string[]) =>
      route({ match: { kind: 'port', protocol: 'SCTP', port: 53 } }, addresses);
    const { scope, isStale } = check(sctp(['10.0.0.1', '10.0.0.2']), sctp(['10.0.0.2']));
    assert.deepEqual(scope?.protocols, new Set(['SCTP']));
    assert.equal(isStale(flow(53, '10.0.0.1', 8080), 'SCTP'), true);
    assert.equal(isStale(flow(53, '10.0.0.2', 8080), 'SCTP'), false);
    const first = check(sctp([]), sctp(['10.0.0.1']));
    assert.equal(first.isStale(flow(53, VIP), 'SCTP'), true);
  });

  it('distinguishes UDP and SCTP node ports with the same number', () => {
    const tracker = new StaleFlowTracker();
    const port = (protocol: Protocol, addresses: readonly string[]) =>
      route(
        { id: protocol, nodePort: 30_053, match: { kind: 'port', protocol, port: 53 } },
        addresses,
      );
    tracker.replaceRoute(undefined, port('UDP', ['10.0.0.9']));
    tracker.replaceRoute(undefined, port('SCTP', ['10.0.0.1']));
    tracker.takeCleanupScope();
    tracker.replaceRoute(port('SCTP', ['10.0.0.1']), port('SCTP', ['10.0.0.2']));
    const scope = tracker.takeCleanupScope();
    assert.ok(scope !== undefined);
    const toNode = (replySrc: string) => ({
      ...flow(30_053, replySrc, 8080),
      origDst: '192.0.2.1',
    });
    const isStale = (replySrc: string, protocol: Protocol) =>
      tracker.isStale(toNode(replySrc), protocol, scope, () => true);
    assert.equal(isStale('10.0.0.1', 'SCTP'), true);
    assert.equal(isStale('10.0.0.9', 'UDP'), false);
  });

  describe('TCP entries with --reset-deleted-endpoint-connections:', () => {
    const tcp = (fields: Partial<Route>, addresses: readonly string[]) => route(fields, addresses);
    const [one, two] = [
      { address: '10.0.0.1', port: 8080 },
      { address: '10.0.0.2', port: 8080 },
    ];

    it('finds TCP entries stale of an endpoint that no EndpointSlice has any longer', () => {
      for (const left of [['10.0.0.2'], []]) {
        const { scope, isStale } = checkTcp(tcp({}, ['10.0.0.1', '10.0.0.2']), tcp({}, left));
        assert.deepEqual(scope?.protocols, new Set(['TCP']));
        assert.equal(isStale(flow(80, '10.0.0.1', 8080), 'TCP'), true);
        assert.equal(isStale(flow(80, '10.0.0.2', 8080), 'TCP'), left.length === 0);
        assert.equal(isStale(flow(81, '10.0.0.1', 8080), 'TCP'), false, 'a port not served');
        assert.equal(isStale(flow(80, VIP, 80), 'TCP'), false, 'not translated');
      }
    });

    it('keeps TCP entries of an endpoint that drains, is not ready, or changes its port', () => {
      const before = tcp({}, ['10.0.0.1', '10.0.0.2']);
      for (const after of [
        tcp({ servingEndpoints: [one, two] }, ['10.0.0.2']),
        tcp({ servingEndpoints: [two], notServingEndpoints: [one] }, ['10.0.0.2']),
        tcp({ servingEndpoints: [{ ...one, port: 9090 }, two] }, ['10.0.0.2']),
      ]) {
        assert.equal(checkTcp(before, after).scope, undefined);
      }
    });

    it('keeps TCP entries when the Service is deleted, because its pods may remain', () => {
      assert.equal(checkTcp(tcp({}, ['10.0.0.1']), undefined).scope, undefined);
    });

    it('finds TCP entries stale of an endpoint that was deleted while not ready', () => {
      const before = tcp({ servingEndpoints: [], notServingEndpoints: [one] }, []);
      const { isStale } = checkTcp(before, tcp({}, []));
      assert.equal(isStale(flow(80, '10.0.0.1', 8080), 'TCP'), true);
    });

    it('does not search TCP entries without the flag', () => {
      assert.equal(check(tcp({}, ['10.0.0.1']), tcp({}, [])).scope, undefined);
    });

    it('finds TCP entries to addresses that are not endpoints stale after a restart', () => {
      const tracker = new StaleFlowTracker(true);
      tracker.replaceRoute(undefined, tcp({}, ['10.0.0.2']));
      const scope = tracker.fullCleanupScope();
      const isStale = (replySrc: string) =>
        tracker.isStale(flow(80, replySrc, 8080), 'TCP', scope, () => false);
      assert.equal(isStale('10.0.0.1'), true);
      assert.equal(isStale('10.0.0.2'), false);
    });
  });
});
