import assert from 'node:assert/strict';
import { service } from '../fixtures.ts';
import { fakeAgent, type LogLine } from '../metrics/agent.ts';

const WARN = 40;

/** Lines that an operator is to see, without what syncs say at each time. */
const important = (log: readonly LogLine[]) =>
  log
    .filter(({ level }) => level >= WARN)
    .map(({ msg, service: key, family }) => [msg, key ?? family]);

describe('observer: the log', () => {
  it('names the Service, the field and the reason of a refusal', async () => {
    const { table, log, pass, start } = fakeAgent();
    const bad = service({ portsAnnotation: 'all', type: 'NodePort' });
    table.upsert(bad);
    await start();
    const [line] = log.filter(({ level }) => level === WARN);
    assert.deepEqual(
      [line?.service, line?.field, line?.reason],
      ['default/web', 'spec.type', 'NodePort'],
    );
    table.upsert({ ...bad, type: 'ClusterIP' });
    await pass(1000);
    const cleared = log.find(({ msg }) => msg === 'Service is no longer refused for this');
    assert.deepEqual([cleared?.level, cleared?.service], [30, 'default/web']);
  });

  it('warns of rules that were mended, and not of those that just came', async () => {
    const { backends, table, log, pass, start } = fakeAgent();
    const [v4, v6] = backends;
    const mended = () =>
      log.filter(({ msg }) => msg === 'wrote rules that the kernel lacked').length;
    v6.report = { written: 0 };
    await start();
    assert.equal(mended(), 0, 'the first sync writes everything');
    v4.error = new Error('no');
    table.upsert(service());
    await pass(0);
    v4.error = undefined;
    await pass(1000);
    const last = log.findLast(({ msg, family }) => msg === 'synced' && family === 'IPv4');
    assert.deepEqual([last?.full, last?.written, mended()], [true, 1, 0]);
    await pass(30_000);
    await pass(1000);
    assert.equal(mended(), 1);
  });

  it('says when syncs succeed again, once', async () => {
    const { backends, table, log, pass, start } = fakeAgent();
    const again = () => log.filter(({ msg }) => msg === 'syncs succeed again');
    await start();
    backends[0].error = new Error('no');
    table.upsert(service());
    await pass(5000);
    assert.deepEqual(again(), []);
    backends[0].error = undefined;
    await pass(60_000);
    assert.deepEqual(
      again().map(({ level, family }) => [level, family]),
      [[30, 'IPv4']],
    );
  });

  it('tells syncs that fail again and again as one line with a count, and after a minute as an error', async () => {
    const { backends, table, log, pass, start } = fakeAgent();
    await start();
    backends[0].error = new Error('no');
    table.upsert(service());
    for (let second = 0; second < 120; second++) await pass(1000);
    const told = log.filter(({ level, msg }) => level >= WARN && /^sync failed/.test(msg));
    assert.deepEqual([told[0]?.level, told[0]?.repeated], [WARN, undefined]);
    assert.ok(told.length < 6, `${told.length} lines`);
    assert.equal(told.at(-1)?.level, 50);
    assert.ok(Number(told[1]?.repeated) > 1, JSON.stringify(told[1]));
  });

  it('says what was lost', async () => {
    const { backends, log, pass, start } = fakeAgent();
    // A comparison with the kernel is not due yet.
    for (const backend of backends) backend.takes = 60_000;
    await start();
    backends[0].lost = 'chain KUBE-PROXY-CANARY of table nat';
    await pass(30_000);
    assert.deepEqual(important(log), [
      [
        'somebody changed our rules (chain KUBE-PROXY-CANARY of table nat); writing them again',
        'IPv4',
      ],
    ]);
  });
});
