import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { metricDefiner } from '../../metrics/define.ts';
import { createDnsMetrics } from '../../metrics/dns.ts';
import { type PolicySources, policyMetrics } from '../../metrics/policy.ts';
import { fakeAgent } from '../metrics/agent.ts';
import { ROOT, readPage } from './page.ts';

const OWN = /^(portwide|kubeproxy|coredns|kubernetes|rest_client)_/;

describe('docs/operate/metrics.md', () => {
  const page = readPage('docs/operate/metrics.md');
  const agent = fakeAgent().metrics.registry;
  policyMetrics(metricDefiner(agent), {} as PolicySources, []);
  const registries = [agent, createDnsMetrics(53, '').registry];
  const registered = registries.flatMap((registry) => registry.getMetricsAsArray());
  // Some metrics of the DNS server are defined later, with the part that they measure.
  const literals = globSync('metrics/*.ts', { cwd: ROOT }).flatMap((file) => [
    ...readFileSync(join(ROOT, file), 'utf8').matchAll(/'((?:coredns|portwide)_[a-z_]+)'/g),
  ]);
  const names = [...registered.map(({ name }) => name), ...literals.map(([, name = '']) => name)];
  const defined = [...new Set(names)].filter((name) => OWN.test(name));
  const cells = [...page.matchAll(/^\| (`[^|]+) \|/gm)].map(([, cell = '']) => cell);
  const listed = cells
    .flatMap((cell) => [...cell.matchAll(/`([a-z_]+)`/g)].map(([, name = '']) => name))
    .filter((name) => OWN.test(name));

  it('lists every metric that the agent and the DNS server define', () => {
    assert.ok(defined.length > 80, `${defined.length}`);
    assert.deepEqual(
      defined.filter((name) => !listed.includes(name)),
      [],
    );
  });

  it('lists no metric that does not exist', () => {
    assert.deepEqual(
      listed.filter((name) => !defined.includes(name)),
      [],
    );
  });
});
