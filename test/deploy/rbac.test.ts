import assert from 'node:assert/strict';
import { createKubernetesSource } from '../../sources/kubernetes/source.ts';
import { waitFor } from '../lab/lab.ts';
import { FakeApiServer, type Held } from '../sources/kubernetes/fake-api-server.ts';
import { readObject } from './manifests.ts';

interface Rule {
  readonly apiGroups: readonly string[];
  readonly resources: readonly string[];
  readonly verbs: readonly string[];
}

const { rules } = readObject<{ rules: readonly Rule[] }>('deploy/base/rbac.yaml', 'ClusterRole');

/** `verb group/resource` for every combination that a rule allows. */
function allowed(): string[] {
  return rules
    .flatMap(({ apiGroups, resources, verbs }) =>
      apiGroups.flatMap((group) =>
        resources.flatMap((resource) => verbs.map((verb) => `${verb} ${group}/${resource}`)),
      ),
    )
    .sort();
}

/** What RBAC makes of a request. */
function asked({ path, isWatch }: Held): string {
  const core = /^\/api\/v1\/(\w+)$/.exec(path);
  const [, group, resource] = core
    ? ['', '', core[1]]
    : (/^\/apis\/([^/]+)\/v1\/(\w+)$/.exec(path) ?? []);
  return `${isWatch ? 'watch' : 'list'} ${group}/${resource}`;
}

describe('the ClusterRole', () => {
  it('allows what the agent reads, and creating events, and nothing else', async () => {
    const server = new FakeApiServer();
    await server.listen();
    const source = createKubernetesSource({
      master: server.url,
      nodeName: 'node',
      sink: { upsert: () => {}, remove: () => {}, synced: () => {} },
      onProblem: () => {},
      log: { info: () => {}, warn: () => {} },
    });
    try {
      const started = source.start();
      await waitFor('three lists', () => server.requests.length === 3);
      for (const list of server.requests.slice(0, 3)) list.list('1', []);
      await started;
      await waitFor('three watches', () => server.requests.length === 6);
      const events = ['create', 'patch'].map((verb) => `${verb} events.k8s.io/events`);
      assert.deepEqual([...server.requests.map(asked), ...events].sort(), allowed());
    } finally {
      await source.stop();
      await server.close();
    }
  });
});
