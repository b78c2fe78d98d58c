import assert from 'node:assert/strict';
import { service } from '../fixtures.ts';
import { fakeAgent, type LogLine } from '../metrics/agent.ts';

const WARN = 40;

/** Warnings and errors. */
const important = (log: readonly LogLine[]) =>
  log
    .filter(({ level }) => level >= WARN)
    .map(({ msg, service: key, family }) => [msg, key ?? family]);

describe('observer: log lines', () => {
  it('logs service, field and reason of a refusal', async () => {
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
    const cleared = log.find(({ msg }) => msg === 'Service is no longer refused for this reason');
    assert.deepEqual([cleared?.level, cleared?.service], [30, 'default/web']);
  });

  it('warns about repaired rules, not about new rules', async () => {
    const { backends, table, log, pass, start } = fakeAgent();
    const [v4, v6] = backends;
    const repairs = () =>
      log.filter(({ msg }) => msg === 'resync repaired external changes of the rules').length;
    v6.report = { written: 0 };
    await start();
    assert.equal(repairs(), 0, 'the first sync writes everything');
    v4.error = new Error('no');
    table.upsert(service());
    await pass(0);
    v4.error = undefined;
    await pass(1000);
    const last = log.findLast(({ msg, family }) => msg === 'synced' && family === 'IPv4');
    assert.deepEqual([last?.full, last?.written, repairs()], [true, 1, 0]);
    await pass(30_000);
    await pass(1000);
    assert.equal(repairs(), 1);
  });

  it('logs once when syncs succeed again', async () => {
    const { backends, table, log, pass, start } = fakeAgent();
    const recoveries = () => log.filter(({ msg }) => msg === 'syncs succeed again');
    await start();
    backends[0].error = new Error('no');
    table.upsert(service());
    await pass(5000);
    assert.deepEqual(recoveries(), []);
    backends[0].error = undefined;
    await pass(60_000);
    assert.deepEqual(
      recoveries().map(({ level, family }) => [level, family]),
      [[30, 'IPv4']],
    );
  });

  it('logs repeated sync failures as one line with a count, and as an error after a minute', async () => {
    const { backends, table, log, pass, start } = fakeAgent();
    await start();
    backends[0].error = new Error('no');
    table.upsert(service());
    for (let second = 0; second < 120; second++) await pass(1000);
    const lines = log.filter(({ level, msg }) => level >= WARN && /^sync failed/.test(msg));
    assert.deepEqual([lines[0]?.level, lines[0]?.repeated], [WARN, undefined]);
    assert.ok(lines.length < 6, `${lines.length} lines`);
    assert.equal(lines.at(-1)?.level, 50);
    assert.ok(Number(lines[1]?.repeated) > 1, JSON.stringify(lines[1]));
  });

  it('logs external changes of the rules', async () => {
    const { backends, log, pass, start } = fakeAgent();
    // A full comparison with the kernel is not due yet.
    for (const backend of backends) backend.takes = 60_000;
    await start();
    backends[0].lost = 'chain KUBE-PROXY-CANARY of table nat';
    await pass(30_000);
    assert.deepEqual(important(log), [
      ['rules were changed by another program; restoring them', 'IPv4'],
    ]);
  });
});
