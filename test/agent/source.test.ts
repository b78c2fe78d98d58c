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

describe('source: unreadable objects', () => {
  let source: Source | undefined;
  afterEach(async () => {
    await source?.stop();
    source = undefined;
  });

  /** @returns the logged warnings, and the objects passed to onUnreadable. */
  async function report(options: { manifests?: string; master?: string }) {
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
    assert.match([...source.faults()][0]?.object ?? '', /^CIDRGroup /);
    return { warnings, unreadable };
  }

  it('are logged and reported for an Event with an API server', async () => {
    const double = new ApiServerDouble();
    await double.listen();
    try {
      double.put(GROUP);
      const { warnings, unreadable } = await report({ master: double.url });
      assert.equal(warnings.length, 1);
      const object = { kind: 'CIDRGroup', key: 'a', uid: '7' };
      assert.deepEqual(unreadable, [['spec.cidrs[0]', object]]);
    } finally {
      await source?.stop();
      await double.close();
    }
  });

  it('are only logged with manifests, which have no API server for Events', async () => {
    const manifests = mkdtempSync(join(tmpdir(), 'portwide-source-'));
    try {
      writeFileSync(join(manifests, 'a.json'), JSON.stringify(GROUP));
      const { warnings, unreadable } = await report({ manifests });
      assert.deepEqual([warnings.length, unreadable], [1, []]);
    } finally {
      rmSync(manifests, { recursive: true, force: true });
    }
  });
});

it('source: an unreachable API server is logged once for all kinds', async () => {
  const warnings: object[] = [];
  const source = createSource({
    // A closed port.
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
    await waitFor('it is logged', () => warnings.length > 0);
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
