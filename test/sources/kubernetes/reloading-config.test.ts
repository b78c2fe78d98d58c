/** A kubeconfig that is mended, or changed, while the agent runs. */
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

describe('followed-config: a kubeconfig that changes', () => {
  let directory: string;
  let world: SourceFixture;
  let other: ApiServerDouble;

  beforeEach(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-followed-'));
    world = new SourceFixture({
      bookmarkMs: 20,
      cluster: { kubeconfig: join(directory, 'kubeconfig'), master: '', configPollMs: 10 },
    });
    other = new ApiServerDouble();
    await Promise.all([world.double.listen(), other.listen()]);
    world.double.put(service('a', 1), service('b', 1));
    other.put(service('c', 1));
  });
  afterEach(async () => {
    await world.stop();
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

  it('is used as soon as it names an API server that is there', async () => {
    const { url } = other;
    await other.close();
    use(url);
    world.start();
    await until('it is tried', () => world.waits.length > 3);
    use(world.double.url);
    await world.started;
    await world.waitForServices({ a: 1, b: 1 });
  });

  it('ends the wait for a server that is not there', async () => {
    use('http://127.0.0.1:1');
    world.holdDelays = true;
    world.start();
    await until('they wait', () => world.delays.length === 3);
    use(world.double.url);
    await world.started;
    await world.waitForServices({ a: 1, b: 1 });
  });

  it('leads to another API server, also from watches that are alive', async () => {
    use(world.double.url);
    await world.startAndWatch();
    use(other.url);
    await world.waitForServices({ c: 1 });
    for (const resource of ['services', 'endpointslices', 'nodes']) {
      await until('the other is watched', () => other.watching(resource) === 1);
      await until('the first is not', () => world.double.watching(resource) === 0);
    }
    assert.ok(world.logged.includes('the kubeconfig has changed; connecting anew'));
  });

  it('costs nothing that is in force while the server that it names is not there', async () => {
    use(world.double.url);
    await world.startAndWatch();
    use('http://127.0.0.1:1');
    await until('it is tried', () => world.waits.length > 3);
    world.double.put(service('d', 1));
    await world.waitForServices({ a: 1, b: 1, d: 1 });
    use(other.url);
    await world.waitForServices({ c: 1 });
  });

  it('is no change while it cannot be used, which is said once', async () => {
    use(world.double.url);
    await world.startAndWatch();
    write('{"clusters": [');
    const told = () => world.logged.filter((line) => /cannot be used/.test(line)).length;
    await until('it is said', () => told() === 1);
    world.double.breakWatches('cut');
    world.double.put(service('d', 1));
    await world.waitForServices({ a: 1, b: 1, d: 1 });
    assert.equal(told(), 1);
    use(other.url);
    await world.waitForServices({ c: 1 });
  });

  it('is no change while reading it hangs: watches are opened as it was before', async () => {
    await world.stop();
    const kubeconfig = join(directory, 'kubeconfig');
    world = new SourceFixture({
      cluster: { kubeconfig, master: '', configPollMs: 10 },
      timeouts: { ...PATIENT, credentials: 300 },
    });
    await world.double.listen();
    use(world.double.url);
    await world.startAndWatch();
    // As a file system that is away: nobody writes to it.
    execFileSync('mkfifo', [join(directory, 'new')]);
    renameSync(join(directory, 'new'), kubeconfig);
    try {
      const told = () => world.logged.filter((line) => /cannot be used/.test(line)).length;
      await until('it is said', () => told() === 1);
      world.double.breakWatches('cut');
      world.double.put(service('d', 1));
      await world.waitForServices({ d: 1 });
      assert.equal(told(), 1);
    } finally {
      // Ends the read.
      closeSync(openSync(kubeconfig, constants.O_RDWR | constants.O_NONBLOCK));
    }
  });
});
