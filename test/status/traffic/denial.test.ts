import assert from 'node:assert/strict';
import type { DetailedEntry } from '../../../netlink/conntrack/conntrack.ts';
import { PolicyModel } from '../../../policy/model/model.ts';
import { explainDenial, matchesDenied, serviceOfDenied } from '../../../status/traffic/denial.ts';
import { flowEntry } from '../../../status/traffic/flow-entry.ts';
import type { FlowFilter } from '../../../status/traffic/flow-filter.ts';
import type { PacketHeader } from '../../../status/traffic/packet.ts';
import { ServiceIndex } from '../../../status/traffic/service-index.ts';
import { route } from '../../fixtures.ts';
import { HERE, networkPolicy, node, pod, type TestObject } from '../../policy/objects.ts';
import { NO_FILTER } from './fake-traffic.ts';

const PACKET: PacketHeader = {
  family: 'IPv4',
  protocol: 6,
  source: '10.0.0.2',
  destination: '10.0.0.1',
  sourcePort: 40_000,
  destinationPort: 80,
};
const PODS = [pod('web', { addresses: ['10.0.0.1'] }), pod('db', { addresses: ['10.0.0.2'] })];

const ENTRY = {
  family: 'IPv4',
  ...{ protocol: 6, id: 1, zone: 0, status: 0 },
  ...{ origSrc: '10.0.0.2', origDst: '10.0.0.1', origSrcPort: 40_000, origDstPort: 8080 },
  ...{ replySrc: '10.0.0.1', replyDst: '10.0.0.2', replySrcPort: 8080, replyDstPort: 40_000 },
  details: { counters: undefined, tcpState: undefined, startedAt: undefined },
} satisfies DetailedEntry;

function policies(...objects: readonly TestObject[]) {
  const model = new PolicyModel({ nodeName: HERE });
  for (const object of [...PODS, node(HERE, ['192.168.0.1']), ...objects]) model.upsert(object);
  return { model, names: { hasPeer: () => false } };
}

describe('denial: the Service of a denied packet', () => {
  const index = new ServiceIndex();
  const destinations = { index, isNodeAddress: () => false };
  const endpoints = ['10.0.0.1'];
  const web = { id: 'web', serviceKey: 'shop/web', clusterIP: '10.96.0.1' };
  const old = { id: 'old', serviceKey: 'shop/old', clusterIP: '10.96.0.2' };
  for (const each of [web, old]) index.replaceRoute(undefined, route(each, endpoints));
  const packet = {
    ...PACKET,
    destinationPort: route({}, endpoints).servingEndpoints[0]?.port ?? 0,
  };

  it('the Service that translated the packet, with the destination of the client', () => {
    const original = { address: '10.96.0.1', port: 80 };
    assert.deepEqual(serviceOfDenied(packet, original, destinations), {
      service: 'shop/web',
      destination: original,
      note: '',
      possible: [],
    });
  });

  it('else the first by name with the endpoint, and says that there are more', () => {
    assert.deepEqual(serviceOfDenied(packet, undefined, destinations), {
      service: 'shop/old',
      destination: { address: '10.0.0.1', port: packet.destinationPort },
      note: '; also an endpoint of Service shop/web',
      possible: [old, web].map((each) => route(each, endpoints)),
    });
    const none = serviceOfDenied({ ...packet, protocol: 1 }, undefined, destinations);
    assert.equal(none.service, null);
  });

  it('filters by each Service and VIP that the client may have used', () => {
    const { possible } = serviceOfDenied(packet, undefined, destinations);
    const flow = flowEntry(ENTRY, undefined);
    const event = { event: 'denied', service: 'shop/old', flow } as const;
    const selects = (filter: Partial<FlowFilter>) =>
      matchesDenied(event, possible, { ...NO_FILTER, ...filter });
    assert.equal(selects({ service: 'shop/web' }), true);
    assert.equal(selects({ service: 'shop/web', ip: '10.96.0.1', port: 80 }), true);
    assert.equal(selects({ service: 'shop/web', ip: '10.96.0.2' }), false);
    assert.equal(selects({ service: 'shop/none' }), false);
    assert.equal(selects({ namespace: 'shop' }), true);
    assert.equal(selects({ namespace: 'sho' }), false);
    assert.equal(selects({ ip: '10.96.0.2', port: 81 }), false);
  });
});

describe('denial: which policy denied a packet', () => {
  const INGRESS = 'portwide deny network-policy ingress ';
  const deny = networkPolicy('deny', { ingress: [] });

  it('the policies that isolate the pod', () => {
    assert.deepEqual(explainDenial(INGRESS, PACKET, policies(deny)), {
      reason:
        'network policy (tier NetworkPolicy, ingress): the pod is isolated by NetworkPolicy default/deny, and none of its rules allows it',
      policies: ['NetworkPolicy default/deny'],
    });
  });

  it('at most ten policies', () => {
    const many = Array.from({ length: 12 }, (_, index) =>
      networkPolicy(`deny-${index + 10}`, { ingress: [] }),
    );
    const denial = explainDenial(INGRESS, PACKET, policies(...many));
    assert.equal(denial?.policies.length, 10);
    assert.match(denial.reason, /NetworkPolicy default\/deny-19 and 2 more, and none of their/);
  });

  it('a packet without ports, and of a protocol that no Service has', () => {
    const icmp = { ...PACKET, protocol: 1, destinationPort: 0 };
    assert.deepEqual(explainDenial(INGRESS, icmp, policies(deny))?.policies, [
      'NetworkPolicy default/deny',
    ]);
  });

  it('no policy if policies have changed since: none denies, or another tier', () => {
    const changed = 'the policies have changed since: ';
    assert.deepEqual(explainDenial(INGRESS, PACKET, policies()), {
      reason: `network policy (tier NetworkPolicy, ingress); ${changed}no rule matches, and no NetworkPolicy isolates the pod`,
      policies: [],
    });
    const other = explainDenial('portwide deny admin ingress ', PACKET, policies(deny));
    assert.match(other?.reason ?? '', /^network policy \(tier Admin, ingress\); the policies have/);
    assert.deepEqual(other?.policies, []);
  });

  it('evaluates only the direction whose rule logged the packet', () => {
    const given = policies(deny);
    const evaluated: string[] = [];
    const withRules = given.model.withRules.bind(given.model);
    given.model.withRules = (pod, direction, use) => {
      evaluated.push(direction);
      return withRules(pod, direction, use);
    };
    explainDenial(INGRESS, PACKET, given);
    assert.deepEqual(evaluated, ['ingress']);
    explainDenial('portwide deny admin egress ', PACKET, given);
    assert.deepEqual(evaluated, ['ingress', 'egress']);
  });

  it('only the tier without policies, and nothing for the log of another program', () => {
    assert.deepEqual(explainDenial(INGRESS, PACKET, undefined), {
      reason: 'network policy (tier NetworkPolicy, ingress)',
      policies: [],
    });
    assert.equal(explainDenial('portwide refused', PACKET, policies(deny)), undefined);
    assert.equal(explainDenial('portwide deny x ingress ', PACKET, policies(deny)), undefined);
  });
});
