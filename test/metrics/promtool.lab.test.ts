import assert from 'node:assert/strict';
import { service } from '../fixtures.ts';
import { fakeAgent } from './agent.ts';
import { KUBE_PROXY_PROBLEMS, promtoolProblems } from './promtool.ts';

describe('promtool check metrics', () => {
  it('promtool rejects only names of kube-proxy', async () => {
    const { backends, table, metrics, start } = fakeAgent();
    backends[0].has = { rules: new Map([['nat', 1]]), marks: { inUse: 1, waiting: 0 } };
    table.upsert(service({ portsAnnotation: 'all' }));
    await start();
    metrics.api.request({ method: 'GET', host: '[::1]:443', code: undefined, seconds: 0.1 });
    metrics.api.watchOpen('Service', true);
    assert.deepEqual(
      (await promtoolProblems(await metrics.registry.metrics())).sort(),
      KUBE_PROXY_PROBLEMS,
    );
  });

  it('promtool rejects other wrong names', async () => {
    assert.equal((await promtoolProblems('# TYPE wrong_total gauge\nwrong_total 1\n')).length, 2);
  });
});
