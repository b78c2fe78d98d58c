import assert from 'node:assert/strict';
import { mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { restartOnChange } from '../../agent/config-restart.ts';
import { waitFor } from '../lab/wait.ts';
import type { LogLine } from '../metrics/agent.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

const HEAD = 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n';

describe('config-restart: restartOnChange', () => {
  let directory: string;
  let path: string;
  let restart: ReturnType<typeof restartOnChange> | undefined;
  const timers = new FakeTimers();
  const statuses: number[] = [];
  const log: LogLine[] = [];

  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-restart-'));
    path = join(directory, 'config.conf');
    statuses.length = 0;
    log.length = 0;
    writeFileSync(path, HEAD);
  });
  afterEach(() => {
    restart?.stop();
    rmSync(directory, { recursive: true, force: true });
  });
  const start = (jitter: number) => {
    restart = restartOnChange({
      file: { path, content: HEAD },
      texts: { manifests: directory },
      options: { configRestartJitter: jitter },
      log: pino({ base: null }, { write: (line) => log.push(JSON.parse(line)) }),
      exit: (status) => statuses.push(status),
      timers,
      random: () => 0.25,
    });
  };
  const replace = (content: string) => {
    writeFileSync(join(directory, 'draft'), content);
    renameSync(join(directory, 'draft'), path);
  };
  const changes = () => restart?.changes();

  it('waits for a random time, counts the change, and exits with status 75', async () => {
    start(30_000);
    assert.equal(changes()?.isPending, false);
    replace(`${HEAD}mode: iptables\n`);
    await waitFor('the restart is pending', () => changes()?.isPending);
    assert.deepEqual(changes()?.counts, { accepted: 1, unusable: 0, cancelled: 0 });
    assert.equal(log.at(-1)?.seconds, 7.5);
    timers.advance(7499);
    assert.deepEqual(statuses, []);
    timers.advance(1);
    await waitFor('the process exits', () => statuses.length > 0);
    assert.deepEqual(statuses, [75]);
  });

  it('exits immediately without jitter', async () => {
    start(0);
    replace(`${HEAD}mode: iptables\n`);
    await waitFor('the process exits', () => statuses.length > 0);
    assert.deepEqual(statuses, [75]);
  });

  it('keeps running when the file is reverted or becomes invalid', async () => {
    start(30_000);
    replace(`${HEAD}mode: iptables\n`);
    await waitFor('the restart is pending', () => changes()?.isPending);
    replace(`${HEAD}mode: nonsense\n`);
    await waitFor('the restart is cancelled', () => changes()?.counts.unusable === 1);
    assert.deepEqual(changes(), {
      isPending: false,
      counts: { accepted: 1, unusable: 1, cancelled: 1 },
    });
    timers.advance(60_000);
    assert.deepEqual(statuses, []);
  });
});
