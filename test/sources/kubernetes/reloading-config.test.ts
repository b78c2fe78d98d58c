/** A kubeconfig that changes while the agent runs. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import {
  closeSync,
  constants,
  mkdtempSync,
  openSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ApiServerDouble } from '../../api-server/double.ts';
import { until } from '../recording-sink.ts';
import { PATIENT, SourceFixture, service } from './source-fixture.ts';

describe('reloading-config: a kubeconfig that changes', () => {
  let directory: string;
  let fixture: SourceFixture;
  let other: ApiServerDouble;

  beforeEach(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-reloading-'));
    fixture = new SourceFixture({
      bookmarkMs: 20,
      cluster: { kubeconfig: join(directory, 'kubeconfig'), master: '', configPollMs: 10 },
    });
    other = new ApiServerDouble();
    await Promise.all([fixture.double.listen(), other.listen()]);
    fixture.double.put(service('a', 1), service('b', 1));
    other.put(service('c', 1));
  });
  afterEach(async () => {
    await fixture.stop();
    await other.close();
    rmSync(directory, { recursive: true, force: true });
  });

  const write = (text: string) => {
    writeFileSync(join(directory, 'new'), text);
    renameSync(join(directory, 'new'), join(directory, 'kubeconfig'));
  };
  const use = (server: string) =>
    write(
      JSON.stringify({
        clusters: [{ name: 'c', cluster: { server } }],
        users: [{ name: 'u', user: {} }],
        contexts: [{ name: 'x', context: { cluster: 'c', user: 'u' } }],
        'current-context': 'x',
      }),
    );

  it('is used as soon as it names a reachable API server', async () => {
    const { url } = other;
    await other.close();
    use(url);
    fixture.start();
    await until('connecting has failed several times', () => fixture.waits.length > 3);
    use(fixture.double.url);
    await fixture.started;
    await fixture.waitForServices({ a: 1, b: 1 });
  });

  it('ends the wait for an unreachable server', async () => {
    use('http://127.0.0.1:1');
    fixture.holdDelays = true;
    fixture.start();
    await until('all reflectors wait', () => fixture.delays.length === 3);
    use(fixture.double.url);
    await fixture.started;
    await fixture.waitForServices({ a: 1, b: 1 });
  });

  it('moves open watches to another API server', async () => {
    use(fixture.double.url);
    await fixture.startAndWatch();
    use(other.url);
    await fixture.waitForServices({ c: 1 });
    for (const resource of ['services', 'endpointslices', 'nodes']) {
      await until('the other server has the watch', () => other.watching(resource) === 1);
      await until('the first server has no watch', () => fixture.double.watching(resource) === 0);
    }
    assert.ok(fixture.logged.includes('kubeconfig changed; reconnecting'));
  });

  it('keeps objects and watches while its new server is unreachable', async () => {
    use(fixture.double.url);
    await fixture.startAndWatch();
    use('http://127.0.0.1:1');
    await until('connecting has failed several times', () => fixture.waits.length > 3);
    fixture.double.put(service('d', 1));
    await fixture.waitForServices({ a: 1, b: 1, d: 1 });
    use(other.url);
    await fixture.waitForServices({ c: 1 });
  });

  it('is ignored while it is invalid, with one log message', async () => {
    use(fixture.double.url);
    await fixture.startAndWatch();
    write('{"clusters": [');
    const logCount = () =>
      fixture.logged.filter((line) => /cannot load kubeconfig/.test(line)).length;
    await until('the problem is logged', () => logCount() === 1);
    fixture.double.breakWatches('cut');
    fixture.double.put(service('d', 1));
    await fixture.waitForServices({ a: 1, b: 1, d: 1 });
    assert.equal(logCount(), 1);
    use(other.url);
    await fixture.waitForServices({ c: 1 });
  });

  it('is ignored while reading it hangs; watches open with the previous kubeconfig', async () => {
    await fixture.stop();
    const kubeconfig = join(directory, 'kubeconfig');
    fixture = new SourceFixture({
      cluster: { kubeconfig, master: '', configPollMs: 10 },
      timeouts: { ...PATIENT, credentials: 300 },
    });
    await fixture.double.listen();
    use(fixture.double.url);
    await fixture.startAndWatch();
    // A FIFO without a writer behaves like a file system that hangs.
    execFileSync('mkfifo', [join(directory, 'new')]);
    renameSync(join(directory, 'new'), kubeconfig);
    try {
      const logCount = () =>
        fixture.logged.filter((line) => /cannot load kubeconfig/.test(line)).length;
      await until('the problem is logged', () => logCount() === 1);
      fixture.double.breakWatches('cut');
      fixture.double.put(service('d', 1));
      await fixture.waitForServices({ d: 1 });
      assert.equal(logCount(), 1);
    } finally {
      // Ends the read.
      closeSync(openSync(kubeconfig, constants.O_RDWR | constants.O_NONBLOCK));
    }
  });
});
