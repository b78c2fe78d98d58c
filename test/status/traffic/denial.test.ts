import assert from 'node:assert/strict';
import { PolicyModel } from '../../../policy/model/model.ts';
import { explainDenial } from '../../../status/traffic/denial.ts';
import type { PacketHeader } from '../../../status/traffic/packet.ts';
import { HERE, networkPolicy, node, pod, type TestObject } from '../../policy/objects.ts';

const PACKET: PacketHeader = {
  family: 'IPv4',
  protocol: 6,
  source: '10.0.0.2',
  destination: '10.0.0.1',
  sourcePort: 40_000,
  destinationPort: 80,
};
const PODS = [pod('web', { addresses: ['10.0.0.1'] }), pod('db', { addresses: ['10.0.0.2'] })];

function policies(...objects: readonly TestObject[]) {
  const model = new PolicyModel({ nodeName: HERE });
  for (const object of [...PODS, node(HERE, ['192.168.0.1']), ...objects]) model.upsert(object);
  return { model, names: { hasPeer: () => false } };
}

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
