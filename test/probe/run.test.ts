import assert from 'node:assert/strict';
import { boundedConcurrency, conntrackProblem, openFilesLimit } from '../../probe/limits.ts';
import { withoutNetns } from '../../probe/namespace.ts';
import { endpointName, resultOfAnswer, resultOfError } from '../../probe/outcome.ts';
import { type ProbePlan, probesOf, runProbes } from '../../probe/run.ts';

const PLAN: ProbePlan = {
  ...{ vip: '10.96.0.10', source: undefined, timeout: 1000, expected: undefined },
  ...{ count: 2, concurrency: 4 },
  selections: [
    { protocol: 'TCP', ports: [80, 81, 82] },
    { protocol: 'UDP', ports: [81, 90] },
  ],
};

describe('probe: runs', () => {
  it('probes each port of each protocol as often as asked, with bounded concurrency', async () => {
    const seen: string[] = [];
    let open = 0;
    let most = 0;
    const tally = await runProbes(PLAN, async (protocol, port) => {
      seen.push(`${protocol} ${port}`);
      open += 1;
      most = Math.max(most, open);
      await new Promise((resolve) => setImmediate(resolve));
      open -= 1;
      return { outcome: port === 81 ? 'rejected' : 'answered', text: 'pod-1' };
    });
    const tcp = ['TCP 80', 'TCP 81', 'TCP 82'];
    const udp = ['UDP 81', 'UDP 90'];
    assert.deepEqual(seen, [...tcp, ...tcp, ...udp, ...udp]);
    assert.equal(seen.length, probesOf(PLAN));
    assert.equal(most, 4);
    assert.deepEqual(
      tally.rows('UDP', [81, 90]).map(({ outcome, probes }) => [outcome, probes]),
      [
        ['answered', 2],
        ['rejected', 2],
      ],
    );
  });
});

describe('probe: outcomes', () => {
  for (const [code, outcome] of [
    ['ECONNREFUSED', 'rejected'],
    ['ETIMEDOUT', 'timed out'],
    ['EHOSTUNREACH', 'unreachable'],
    ['ENETUNREACH', 'unreachable'],
    ['EADDRNOTAVAIL', 'failed'],
    ['EMFILE', 'failed'],
  ] as const) {
    it(`${code} is ${outcome}`, () => assert.equal(resultOfError(code).outcome, outcome));
  }

  it('an answer must match the expected text', () => {
    assert.equal(resultOfAnswer('pod-1', undefined).outcome, 'answered');
    assert.equal(resultOfAnswer('pod-1', /^pod/).outcome, 'answered');
    assert.equal(resultOfAnswer('', /^pod/).outcome, 'unexpected');
  });

  for (const [line, name] of [
    ['pod-1', 'pod-1'],
    ['{"host":"pod-1","protocol":"TCP"}', 'pod-1'],
    ['{"hostname":"web-0"}', 'web-0'],
    ['{"host":1}', '{"host":1}'],
    ['{broken', '{broken'],
    ['', '(no text)'],
    ['\u001b[31mred\u0000', '\\u001b[31mred\\u0000'],
    ['x'.repeat(100), `${'x'.repeat(60)}...`],
  ] as const) {
    it(`the endpoint of ${JSON.stringify(line).slice(0, 40)} is ${JSON.stringify(name)}`, () =>
      assert.equal(endpointName(line), name));
  }
});

describe('probe: limits', () => {
  it('open sockets stay below the limit of open files', () => {
    const limits = (soft: string) =>
      `Limit                     Soft Limit           Hard Limit           Units\nMax open files            ${soft}                 4096                 files\n`;
    assert.equal(openFilesLimit(limits('1024')), 1024);
    assert.equal(openFilesLimit(limits('unlimited')), undefined);
    assert.equal(openFilesLimit(''), undefined);
    assert.equal(boundedConcurrency(200, undefined), 200);
    assert.equal(boundedConcurrency(200, 1024), 200);
    assert.equal(boundedConcurrency(5000, 1024), 960);
    assert.equal(boundedConcurrency(200, 10), 1);
  });

  for (const [probes, count, max, isRefused] of [
    [200, '100', '262144', false],
    [65_535, '200000', '262144', true],
    [100, '300', '250', true],
    [100, undefined, undefined, false],
  ] as const) {
    it(`${probes} probes with ${count} of ${max} conntrack entries are ${isRefused ? 'refused' : 'allowed'}`, () => {
      assert.equal(conntrackProblem(probes, count, max) !== undefined, isRefused);
    });
  }
});

describe('probe: in another network namespace', () => {
  it('--netns is left out of the arguments, in both forms', () => {
    assert.deepEqual(
      withoutNetns(['probe', '10.0.0.1', '--netns', 'a', '--ports=80', '--netns=b', '--seed', '1']),
      ['probe', '10.0.0.1', '--ports=80', '--seed', '1'],
    );
  });
});
