import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createSource } from '../../agent/source.ts';
import { policyResources } from '../../sources/kubernetes/resources.ts';
import type { Source } from '../../sources/source.ts';
import { ApiServerDouble } from '../api-server/double.ts';
import { waitFor } from '../lab/wait.ts';
import { RecordingSink } from '../sources/recording-sink.ts';

const GROUP = {
  apiVersion: 'policy.networking.k8s.io/v1alpha1',
  kind: 'CIDRGroup',
  metadata: { name: 'a', uid: '7' },
  spec: { cidrs: ['nonsense'] },
};

const OBSERVER = {
  request: () => {},
  watchOpen: () => {},
  upToDate: () => {},
  notInstalled: () => {},
  watchStalled: () => {},
};

describe('source: what a source tells of an object that cannot be read', () => {
  let source: Source | undefined;
  afterEach(async () => {
    await source?.stop();
    source = undefined;
  });

  /** @returns warnings, and what was told for an Event. */
  async function told(options: { manifests?: string; master?: string }) {
    const warnings: object[] = [];
    const unreadable: unknown[] = [];
    source = createSource({
      options: { manifests: undefined, kubeconfig: '', master: '', ...options },
      resources: policyResources(),
      sink: new RecordingSink(),
      log: {
        info: () => {},
        warn: (details) => warnings.push(details),
        error: assert.fail,
        debug: () => {},
      },
      observer: OBSERVER,
      onUnreadable: ({ field }, object) => unreadable.push([field, object]),
    });
    await source.start();
    assert.deepEqual([...source.unreadable()], [['CIDRGroup', 1]]);
    return { warnings, unreadable };
  }

  it('of an API server: the log, and who writes an Event on it', async () => {
    const double = new ApiServerDouble();
    await double.listen();
    try {
      double.put(GROUP);
      const { warnings, unreadable } = await told({ master: double.url });
      assert.equal(warnings.length, 1);
      const object = { kind: 'CIDRGroup', key: 'a', uid: '7' };
      assert.deepEqual(unreadable, [['spec.cidrs[0]', object]]);
    } finally {
      await source?.stop();
      await double.close();
    }
  });

  it('of manifests: the log, for there is nowhere to write an Event', async () => {
    const manifests = mkdtempSync(join(tmpdir(), 'portwide-source-'));
    try {
      writeFileSync(join(manifests, 'a.json'), JSON.stringify(GROUP));
      const { warnings, unreadable } = await told({ manifests });
      assert.deepEqual([warnings.length, unreadable], [1, []]);
    } finally {
      rmSync(manifests, { recursive: true, force: true });
    }
  });
});

it('a source whose API server is not there says so once, for all kinds', async () => {
  const warnings: object[] = [];
  const source = createSource({
    // Nobody listens there.
    options: { manifests: undefined, kubeconfig: '', master: 'http://127.0.0.1:1' },
    resources: policyResources(),
    sink: new RecordingSink(),
    log: {
      info: () => {},
      warn: (details) => warnings.push(details),
      error: assert.fail,
      debug: () => {},
    },
    observer: OBSERVER,
  });
  void source.start();
  try {
    await waitFor('it says so', () => warnings.length > 0);
    const [{ kinds } = assert.fail()] = warnings as { kinds?: readonly string[] }[];
    assert.deepEqual(
      kinds?.toSorted(),
      policyResources()
        .map(({ kind }) => kind)
        .sort(),
    );
  } finally {
    await source.stop();
  }
});
