import assert from 'node:assert/strict';
import { PolicyModel } from '../../policy/model/model.ts';
import { PolicyActivity } from '../../status/policy-activity.ts';
import { SyncActivity } from '../../status/sync-activity.ts';
import { policyStatus, policySummaries } from '../../status/views/policies.ts';
import {
  adminPolicy,
  baselinePolicy,
  HERE,
  labelled,
  networkPolicy,
  pod,
  rule,
  THERE,
} from '../policy/objects.ts';

const observer = {
  started: () => {},
  unchanged: () => {},
  compiled: () => {},
  applied: () => {},
  failed: () => {},
  driftDetected: () => {},
  missedChanges: () => {},
  watchFailed: () => {},
};

function modelWithPods(): PolicyModel {
  const model = new PolicyModel({ nodeName: HERE });
  for (const [name, nodeName] of [
    ['a', HERE],
    ['b', HERE],
    ['c', THERE],
  ] as const) {
    model.upsert(pod(name, { nodeName, addresses: [`10.0.0.${name.charCodeAt(0)}`] }));
  }
  return model;
}

describe('policies: views of the status API', () => {
  it('lists policies in order of evaluation, with the pods of this node to which they apply', () => {
    const model = modelWithPods();
    const faults = [{ field: 'spec.egress[0]', reason: 'unknown' }];
    model.upsert(baselinePolicy({ ingress: [rule()] }));
    model.upsert(
      networkPolicy('only-a', {
        subject: { namespaces: 'default', pods: labelled({ app: 'a' }) },
        ingress: [],
      }),
    );
    model.upsert(
      networkPolicy('only-c', {
        subject: { namespaces: 'default', pods: labelled({ app: 'c' }) },
        egress: [rule(), rule()],
        faults,
      }),
    );
    model.upsert(adminPolicy('second', { priority: 7, egress: [rule()] }));
    model.upsert(adminPolicy('first', { priority: 3, egress: [rule()] }));
    const rows = policySummaries({ model });
    assert.deepEqual(
      rows.map(({ name, localPods, ingressRules, egressRules, state }) => [
        name,
        localPods,
        ingressRules,
        egressRules,
        state,
      ]),
      [
        ['first', 2, null, 1, 'ok'],
        ['second', 2, null, 1, 'ok'],
        ['only-a', 1, 0, null, 'ok'],
        ['only-c', 0, null, 2, 'faulty'],
        // A NetworkPolicy isolates pod a.
        ['default', 1, 1, null, 'ok'],
      ],
    );
    const status = policyStatus({ model, activity: new PolicyActivity() });
    assert.deepEqual([status.policies, status.faulty, status.isolatedPods], [5, 1, 1]);
  });

  it('says when policies were written last, and why they cannot be written', () => {
    const activity = new PolicyActivity(undefined, () => Date.parse('2026-11-22T12:00:00Z'));
    const model = modelWithPods();
    const status = () => policyStatus({ model, activity });
    assert.deepEqual([status().lastSync, status().failure], [null, null]);
    const observing = activity.observing(observer);
    observing.applied('IPv4', true, 1);
    assert.equal(status().lastSync, '2026-11-22T12:00:00.000Z');
    observing.failed('IPv4', new Error('no memory'));
    observing.failed('IPv4', new Error('no memory\nError: another'));
    assert.deepEqual([status().failure?.message, status().failure?.count], ['no memory', 2]);
    observing.unchanged('IPv4');
    assert.equal(status().failure, null);
  });

  it('logs what other programs change, and the repair, apart from rules of Services', () => {
    const at = Date.parse('2026-11-22T12:00:00Z');
    const syncs = new SyncActivity(() => at);
    const activity = new PolicyActivity(syncs, () => at);
    const observing = activity.observing(observer);
    observing.applied('IPv4', true, 1);
    observing.driftDetected('IPv4', 'cannot add FQDN addresses', false);
    assert.deepEqual(syncs.changes, []);
    observing.driftDetected('IPv4', 'table deleted in table portwide-policy', true);
    observing.applied('IPv6', true, 5);
    observing.applied('IPv4', true, 5);
    assert.deepEqual(
      syncs.changes.map(({ kind, rules, message, undoneAt }) => [kind, rules, message, undoneAt]),
      [
        ['external', 'policies', 'table deleted in table portwide-policy', at],
        ['repair', 'policies', 'table deleted in table portwide-policy', undefined],
      ],
    );
    assert.deepEqual(policyStatus({ model: modelWithPods(), activity }).lastDrift, {
      at: '2026-11-22T12:00:00.000Z',
      change: 'table deleted in table portwide-policy',
      count: 1,
    });
  });
});
