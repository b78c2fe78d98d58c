import assert from 'node:assert/strict';
import { serviceRef } from '../../events/event.ts';
import { EventRecorder } from '../../events/recorder.ts';
import type { Resource } from '../../sources/kubernetes/resources.ts';
import {
  dnsResources,
  SERVICE_CIDRS,
  servingAndPolicyResources,
  servingResources,
} from '../../sources/kubernetes/resources.ts';
import { KubernetesSource } from '../../sources/kubernetes/source.ts';
import { ApiServerDouble } from '../api-server/double.ts';
import { waitFor } from '../lab/lab.ts';
import { readObject } from './manifests.ts';
import { allowedRequests as allowed, BASE_ROLE as BASE, POLICY_ROLE as POLICY } from './roles.ts';

const DNS = 'deploy/dns/rbac.yaml';

/** Requests of an agent that reads these kinds, in the same form. */
async function requested(
  resources: readonly Resource[],
  { writesEvents = true, ownsPorts = false } = {},
): Promise<string[]> {
  const double = new ApiServerDouble();
  const recorder = new EventRecorder({
    nodeName: 'node',
    nodes: () => 1,
    onDropped: (reason) => assert.fail(`an Event was dropped: ${reason}`),
    log: { warn: () => {} },
  });
  const source = new KubernetesSource({
    master: `http://127.0.0.1:${await double.listen()}`,
    resources,
    sink: { upsert: () => {}, remove: () => {}, synced: () => {} },
    onProblem: () => {},
    log: { info: () => {}, warn: () => {} },
    onSessions: (open) => recorder.connect(open),
  });
  const all = () =>
    new Set(double.requests().map(({ verb, group, resource }) => `${verb} ${group}/${resource}`));
  try {
    await source.start();
    if (ownsPorts) source.podWatches.begin('default', () => {});
    // A repeated Event is a patch of the existing one.
    for (const verb of writesEvents ? ['create', 'patch'] : []) {
      recorder.warning(serviceRef('default/web', ''), 'RefusedNodePort', 'spec.type: no');
      await waitFor(`an Event: ${verb}`, () => all().has(`${verb} events.k8s.io/events`));
    }
    const watches = resources.length + (ownsPorts ? 1 : 0);
    await waitFor(
      'watches',
      () => [...all()].filter((each) => /^watch/.test(each)).length === watches,
    );
    return [...all()].sort();
  } finally {
    await source.stop();
    await recorder.stop();
    await double.close();
  }
}

describe('rbac: ClusterRole', () => {
  it("the role of the agent allows exactly the agent's requests", async () => {
    const resources = [...servingResources('node'), SERVICE_CIDRS];
    const requests = await requested(resources, { ownsPorts: true });
    assert.deepEqual(requests, allowed(BASE));
  });

  it('the role of the DNS server allows exactly its requests', async () => {
    assert.deepEqual(await requested(dnsResources(), { writesEvents: false }), allowed(DNS));
  });

  it('the role of network policy adds exactly the requests of --network-policy', async () => {
    const policy = await requested([...servingAndPolicyResources('node'), SERVICE_CIDRS]);
    // Sorted without duplicates; nothing of the base is repeated.
    assert.deepEqual(policy, allowed(BASE, POLICY));
  });

  it('the role of network policy is bound to the same account, and is not part of the base', () => {
    const binding = readObject<{ roleRef: { name: string }; subjects: object[] }>(
      POLICY,
      'ClusterRoleBinding',
    );
    assert.equal(binding.roleRef.name, readObject(POLICY, 'ClusterRole').metadata.name);
    const base = readObject<{ subjects: object[] }>(BASE, 'ClusterRoleBinding');
    assert.deepEqual(binding.subjects, base.subjects);
    assert.notEqual(binding.metadata.name, base.metadata.name);
    assert.ok(!allowed(BASE).some((each) => /namespaces|polic|cidrgroups/.test(each)));
  });
});
