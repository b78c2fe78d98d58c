import assert from 'node:assert/strict';
import { mock } from 'node:test';
import { Registry } from 'prom-client';
import { countPolicies } from '../../agent/policy-metrics.ts';
import {
  createPolicyObserver,
  reportPolicyFaults,
  reportUnreadable,
} from '../../agent/policy-observer.ts';
import { InvalidObject } from '../../api/errors.ts';
import type { IpFamily } from '../../api/objects.ts';
import type { Policy, PolicyFault } from '../../api/policy-objects.ts';
import { readObject } from '../../api/read-object.ts';
import type { Events } from '../../events/recorder.ts';
import { metricDefiner } from '../../metrics/define.ts';
import { policyMetrics } from '../../metrics/policy.ts';
import { networkPolicy } from '../e2e/policy-manifests.ts';
import { Scrape } from '../metrics/scrape.ts';

function world() {
  const log: [level: string, message: string, details: object][] = [];
  const at = (level: string) => (details: object, message: string) => {
    log.push([level, message, details]);
  };
  const events: unknown[] = [];
  const regarding: unknown[] = [];
  const record: Events['warning'] = (about, reason, note) => {
    events.push([`${about.kind} ${about.name}`, reason, note]);
    regarding.push(about);
  };
  const recorder: Events = {
    normal: () => assert.fail('no Event of this type is known'),
    warning: record,
    // All nodes find the same fault in the object.
    sharedWarning: (about, ...rest) => {
      assert.notEqual(about.kind, 'Node');
      record(about, ...rest);
    },
  };
  const registry = new Registry();
  const metrics = policyMetrics(
    metricDefiner(registry),
    {
      policies: () => [],
      unreadable: () => [],
      policySets: () => [],
      elements: () => [],
      names: () => ({
        names: 1,
        addresses: 1,
        evictions: 0,
        queries: 0,
        answers: 0,
        unasked: 0,
        unreadable: 0,
        givenUp: 0,
        overdue: 0,
        notLearned: 0,
        isNotObserving: false,
      }),
      queueDrops: async () => 0,
      forgedAnswers: async () => 0,
      denied: async () => [],
    },
    ['IPv4', 'IPv6'],
  );
  const logger = { info: at('info'), warn: at('warn'), error: at('error'), debug: at('debug') };
  const enforced: IpFamily[] = [];
  const observer = createPolicyObserver({
    log: logger,
    metrics,
    events: recorder,
    nodeName: 'node-a',
    onEnforced: (family) => enforced.push(family),
  });
  const known = new Map<string, Policy>();
  const upsert = (now: Policy) => {
    reportPolicyFaults({ log: logger, events: recorder }, known.get(now.key), now);
    known.set(now.key, now);
  };
  const scrape = async () => new Scrape(await registry.metrics());
  const logged = (level: string) =>
    log.filter(([of]) => of === level).map(([, message]) => message);
  return { observer, enforced, known, upsert, events, recorder, regarding, scrape, logged, log };
}

/** A policy with the given faults. */
function policy(name: string, ...faults: readonly PolicyFault[]) {
  const read = readObject(networkPolicy(name, { podSelector: {} }), ['NetworkPolicy']);
  assert.ok(read?.kind === 'NetworkPolicy');
  return { ...read, faults };
}

const PORT: PolicyFault = { field: 'spec.ingress[0].ports[0]', reason: 'is no port' };
const PEER: PolicyFault = { field: 'spec.egress[0].to[0]', reason: 'is no peer' };

describe('policy-observer: reports of network policy', () => {
  it('logs the first apply and each failure, and records an Event at the first failure', async () => {
    const { observer, enforced, events, scrape, logged } = world();
    observer.started('IPv4');
    observer.applied('IPv4', true, 20);
    observer.started('IPv4');
    observer.failed('IPv4', new Error('rule 7 is refused\nError: another'));
    observer.started('IPv4');
    observer.failed('IPv4', new Error('rule 7 is refused\nError: another'));
    observer.started('IPv4');
    observer.applied('IPv4', true, 20);
    observer.started('IPv4');
    observer.unchanged('IPv4');
    assert.deepEqual(enforced, ['IPv4']);
    assert.deepEqual(logged('info'), [
      'enforcing network policies',
      'network policies can be applied again',
    ]);
    assert.deepEqual(logged('warn'), [
      'cannot apply network policies; keeping the current rules and retrying',
    ]);
    assert.deepEqual(events, [['Node node-a', 'FailedToApplyNetworkPolicy', 'rule 7 is refused']]);
    const scraped = await scrape();
    const labels = { ip_family: 'IPv4' };
    assert.equal(scraped.value('portwide_policy_apply_failures_total', labels), 2);
    assert.equal(scraped.value('portwide_policy_apply_duration_seconds_sum', labels), 0.04);
  });

  it('updates the timestamp of the last apply also when nothing changed', async () => {
    mock.timers.enable({ apis: ['Date'], now: 1_000_000 });
    try {
      const { observer, scrape } = world();
      const waits = async () => {
        mock.timers.tick(1000);
        const scraped = await scrape();
        const time = (what: string) =>
          scraped.value(`portwide_policy_last_${what}_timestamp_seconds`, { ip_family: 'IPv4' });
        return (time('applied') ?? 0) < (time('queued') ?? 0);
      };
      assert.equal(await waits(), true, 'at the start');
      observer.started('IPv4');
      observer.applied('IPv4', true, 20);
      assert.equal(await waits(), false);
      observer.started('IPv4');
      observer.failed('IPv4', new Error('refused'));
      assert.equal(await waits(), true);
      observer.started('IPv4');
      observer.unchanged('IPv4');
      assert.equal(await waits(), false);
    } finally {
      mock.timers.reset();
    }
  });

  it('exports 0 as the time before the first apply and as the initial count of drift', async () => {
    const { observer, scrape } = world();
    observer.applied('IPv6', true, 1);
    observer.driftDetected('IPv6', 'table deleted', true);
    const scraped = await scrape();
    const value = (name: string, ip_family: string) =>
      scraped.value(`portwide_policy_${name}`, { ip_family });
    assert.equal(value('last_applied_timestamp_seconds', 'IPv4'), 0);
    assert.ok((value('last_applied_timestamp_seconds', 'IPv6') ?? 0) > 0);
    assert.ok((value('last_queued_timestamp_seconds', 'IPv4') ?? 0) > 0);
    assert.deepEqual(
      ['IPv4', 'IPv6'].map((family) => value('external_changes_total', family)),
      [0, 1],
    );
  });

  it('records an Event on an unreadable object of network policy', () => {
    const { events, recorder, regarding } = world();
    const problem = new InvalidObject('AdminNetworkPolicy a', 'spec.subject', 'is required');
    const report = (kind: 'AdminNetworkPolicy' | 'NetworkPolicy' | 'Service', key: string) =>
      reportUnreadable(recorder, problem, { kind, key, uid: 'u' });
    report('AdminNetworkPolicy', 'a');
    report('NetworkPolicy', 'default/b');
    report('Service', 'default/c');
    const note =
      'spec.subject: is required; ignored, and the last readable version, if any, remains in force';
    assert.deepEqual(events, [
      ['AdminNetworkPolicy a', 'Unreadable', note],
      ['NetworkPolicy b', 'Unreadable', note],
    ]);
    assert.deepEqual(regarding, [
      {
        apiVersion: 'policy.networking.k8s.io/v1alpha1',
        kind: 'AdminNetworkPolicy',
        namespace: '',
        name: 'a',
        uid: 'u',
      },
      {
        apiVersion: 'networking.k8s.io/v1',
        kind: 'NetworkPolicy',
        namespace: 'default',
        name: 'b',
        uid: 'u',
      },
    ]);
  });

  it('reports each part of a policy that fails closed once', () => {
    const { known, upsert, events, logged, log } = world();
    upsert(policy('a', PORT));
    upsert(policy('a', PORT));
    upsert(policy('a', PORT, PEER));
    upsert(policy('b'));
    assert.deepEqual(events, [
      ['NetworkPolicy a', 'FailsClosed', 'spec.ingress[0].ports[0]: is no port'],
      ['NetworkPolicy a', 'FailsClosed', 'spec.egress[0].to[0]: is no peer'],
    ]);
    assert.equal(logged('warn').length, 2);
    assert.deepEqual(log[0]?.[2], { policy: 'NetworkPolicy default/a', ...PORT });
    upsert(policy('a', PEER));
    assert.equal(logged('info').length, 1);
    assert.deepEqual(countPolicies(known.values()), [
      { kind: 'NetworkPolicy', state: 'sound', count: 1 },
      { kind: 'NetworkPolicy', state: 'faulty', count: 1 },
    ]);
    known.delete('default/a');
    upsert(policy('a', PEER));
    assert.equal(events.length, 3, 'a recreated policy is reported again');
  });
});
