import assert from 'node:assert/strict';
import { execa } from 'execa';
import { service } from '../fixtures.ts';
import { fakeAgent } from './agent.ts';

/** Gauges that kube-proxy gave the name of a counter; whoever asks for them knows them so. */
const KUBE_PROXYS = [
  'kubeproxy_sync_proxy_rules_iptables_total non-counter metrics should not have "_total" suffix',
  'kubeproxy_sync_proxy_rules_no_local_endpoints_total non-counter metrics should not have "_total" suffix',
];

describe('promtool check metrics', () => {
  const check = async (text: string) => {
    const { stdout, stderr } = await execa('promtool', ['check', 'metrics'], {
      input: text,
      reject: false,
    });
    return `${stdout}\n${stderr}`.split('\n').filter((line) => line !== '');
  };

  it('objects to nothing but names of kube-proxy', async () => {
    const { backends, table, metrics, start } = fakeAgent();
    backends[0].has = { rules: new Map([['nat', 1]]), marks: { inUse: 1, waiting: 0 } };
    table.upsert(service({ portsAnnotation: 'all' }));
    await start();
    metrics.api.request({ method: 'GET', host: '[::1]:443', code: undefined, seconds: 0.1 });
    metrics.api.watching('services', true);
    assert.deepEqual((await check(await metrics.registry.metrics())).sort(), KUBE_PROXYS);
  });

  it('would object', async () => {
    assert.equal((await check('# TYPE wrong_total gauge\nwrong_total 1\n')).length, 2);
  });
});
