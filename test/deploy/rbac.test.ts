import assert from 'node:assert/strict';
import { serviceRef } from '../../events/event.ts';
import { EventRecorder } from '../../events/recorder.ts';
import { servingResources } from '../../sources/kubernetes/resources.ts';
import { createKubernetesSource } from '../../sources/kubernetes/source.ts';
import { ApiServerDouble } from '../api-server/double.ts';
import { waitFor } from '../lab/lab.ts';
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

describe('the ClusterRole', () => {
  it('allows what the agent asks for, and nothing else', async () => {
    const double = new ApiServerDouble();
    const recorder = new EventRecorder({
      nodeName: 'node',
      onDropped: (reason) => assert.fail(`an Event was dropped: ${reason}`),
      log: { warn: () => {} },
    });
    const source = createKubernetesSource({
      master: `http://127.0.0.1:${await double.listen()}`,
      resources: servingResources('node'),
      sink: { upsert: () => {}, remove: () => {}, synced: () => {} },
      onProblem: () => {},
      log: { info: () => {}, warn: () => {} },
      onSessions: (open) => recorder.connect(open),
    });
    const asked = () =>
      new Set(double.requests().map(({ verb, group, resource }) => `${verb} ${group}/${resource}`));
    try {
      await source.start();
      // The same again is a change of the Event that is there.
      for (const verb of ['create', 'patch']) {
        recorder.warning(serviceRef('default/web', ''), 'RefusedNodePort', 'spec.type: no');
        await waitFor(`an Event: ${verb}`, () => asked().has(`${verb} events.k8s.io/events`));
      }
      await waitFor(
        'watches',
        () => [...asked()].filter((each) => /^watch/.test(each)).length === 3,
      );
      assert.deepEqual([...asked()].sort(), allowed());
    } finally {
      await source.stop();
      await recorder.stop();
      await double.close();
    }
  });
});
