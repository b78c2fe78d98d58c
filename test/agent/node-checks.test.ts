import assert from 'node:assert/strict';
import { checkArguments, nodeChecks } from '../../agent/node-checks.ts';

const CHECKS = [
  { status: 'ok', name: 'RBAC', seen: 'allowed', action: '' },
  { status: 'warn', name: 'route_localnet', seen: '1', action: 'set it to 0' },
  { status: 'fail', name: 'local pods', seen: 'wrong', action: 'correct it' },
];

/** Checks whose runs the test ends. */
function build() {
  const runs: PromiseWithResolvers<string>[] = [];
  const clock = { now: 0 };
  const get = nodeChecks(
    () => {
      const run = Promise.withResolvers<string>();
      runs.push(run);
      return run.promise;
    },
    () => clock.now,
    () => clock.now,
  );
  const end = (index: number, checks: readonly object[] = CHECKS) =>
    runs[index]?.resolve(JSON.stringify({ status: 'fail', checks }));
  return { get, runs, clock, end };
}

describe('checks of the node for the status API', () => {
  it('have the flags of the agent, except flags that change the node', () => {
    const texts = {
      v: '3',
      clusterCidr: '10.0.0.0/8,fd00::/8',
      hostnameOverride: undefined,
      cleanup: 'false',
      initOnly: 'false',
      writeConfigTo: '',
    };
    assert.deepEqual(checkArguments(texts), [
      'check',
      '--output=json',
      '-v=3',
      '--cluster-cidr=10.0.0.0/8,fd00::/8',
    ]);
  });

  it('list the worst first', async () => {
    const { get, end, clock } = build();
    clock.now = 1000;
    const answer = get();
    end(0);
    const { at, checks, status, omitted } = await answer;
    assert.deepEqual(
      checks.map(({ name }) => name),
      ['local pods', 'route_localnet', 'RBAC'],
    );
    assert.deepEqual([at, status, omitted], ['1970-01-01T00:00:01.000Z', 'fail', 0]);
  });

  it('list at most 200', async () => {
    const { get, end } = build();
    const answer = get();
    end(0, [...Array.from({ length: 250 }, () => CHECKS[0] ?? {}), CHECKS[2] ?? {}]);
    const { checks, omitted } = await answer;
    assert.deepEqual([checks.length, omitted, checks[0]?.name], [200, 51, 'local pods']);
  });

  it('run once for all requests, and again when the answer is 30 s old', async () => {
    const { get, end, runs, clock } = build();
    const both = [get(), get()];
    assert.equal(runs.length, 1);
    clock.now = 500;
    end(0);
    assert.equal(new Set(await Promise.all(both)).size, 1);
    clock.now += 29_999;
    await get();
    assert.equal(runs.length, 1);
    clock.now += 1;
    void get();
    assert.equal(runs.length, 2);
  });

  for (const [took, kept] of [
    [1000, 50_000],
    [50_000, 120_000],
  ] as const) {
    it(`are kept for ${kept} ms if they took ${took} ms`, async () => {
      const { get, end, runs, clock } = build();
      const answer = get();
      clock.now = took;
      void get();
      end(0);
      await answer;
      clock.now += kept - 1;
      await get();
      assert.equal(runs.length, 1);
      clock.now += 1;
      void get();
      assert.equal(runs.length, 2);
    });
  }

  it('do not run again and again when they fail', async () => {
    const { get, runs, clock } = build();
    const failed = get();
    runs[0]?.reject(new Error('no such program'));
    await assert.rejects(failed, /no such program/);
    await assert.rejects(get(), /no such program/);
    assert.equal(runs.length, 1);
    clock.now = 30_000;
    void get();
    assert.equal(runs.length, 2);
  });
});
