import assert from 'node:assert/strict';
import type { IpFamily } from '../../../api/objects.ts';
import { RefusalSets } from '../../../status/traffic/refusal-sets.ts';
import { ServiceIndex } from '../../../status/traffic/service-index.ts';
import { route } from '../../fixtures.ts';

const MODE = { mayBeTranslated: false };
/** In the set of VIPs. */
const KEYS = { '10.96.0.10': '0a60000a', '10.96.0.11': '0a60000b' } as const;

/** Sets as the kernel has them. */
class FakeTables {
  readonly vips = new Set<string>();
  /** What the next transaction does before it is applied. */
  before: () => Promise<void> | void = () => {};
  running = 0;
  mostRunning = 0;
  written = 0;

  async change(_: IpFamily, set: string, added: readonly Buffer[], deleted: readonly Buffer[]) {
    await this.#transaction(set, () => {
      for (const key of deleted) assert.ok(this.vips.delete(key.toString('hex')));
      for (const key of added) this.vips.add(key.toString('hex'));
    });
  }

  async replace(_: IpFamily, set: string, keys: readonly Buffer[]) {
    await this.#transaction(set, () => {
      this.vips.clear();
      for (const key of keys) this.vips.add(key.toString('hex'));
    });
  }

  async #transaction(set: string, apply: () => void): Promise<void> {
    if (set !== 'vips') return;
    this.written += 1;
    this.running += 1;
    this.mostRunning = Math.max(this.mostRunning, this.running);
    const { before } = this;
    this.before = () => {};
    try {
      await before();
      apply();
    } finally {
      this.running -= 1;
    }
  }
}

describe('RefusalSets: the sets of VIPs whose refused packets are logged', () => {
  const first = route({ id: 'a', clusterIP: '10.96.0.10' });
  const second = route({ id: 'b', clusterIP: '10.96.0.11' });

  async function created() {
    const index = new ServiceIndex();
    index.replaceRoute(undefined, first);
    const tables = new FakeTables();
    const sets = new RefusalSets(tables, index, MODE);
    await sets.create('IPv4', async (all) => {
      for (const { name, keys } of all) {
        if (name === 'vips') for (const key of keys) tables.vips.add(key.toString('hex'));
      }
    });
    return { index, tables, sets };
  }

  it('follow the Routes, and write nothing without a change', async () => {
    const { index, tables, sets } = await created();
    index.replaceRoute(undefined, second);
    await sets.refresh();
    assert.deepEqual([...tables.vips], [KEYS['10.96.0.10'], KEYS['10.96.0.11']]);
    index.replaceRoute(first, undefined);
    await sets.refresh();
    assert.deepEqual([...tables.vips], [KEYS['10.96.0.11']]);
    const { written } = tables;
    await sets.refresh();
    assert.equal(tables.written, written);
  });

  for (const isApplied of [false, true]) {
    it(`recover at the next refresh from an error, ${isApplied ? 'whose transaction was applied' : 'which applied nothing'}`, async () => {
      const { index, tables, sets } = await created();
      index.replaceRoute(undefined, second);
      tables.before = () => {
        if (isApplied) tables.vips.add(KEYS['10.96.0.11']);
        throw new Error('transaction failed');
      };
      await assert.rejects(sets.refresh(), /transaction failed/);
      // Without a further change.
      await sets.refresh();
      assert.deepEqual([...tables.vips], [KEYS['10.96.0.10'], KEYS['10.96.0.11']]);
      index.replaceRoute(first, undefined);
      await sets.refresh();
      assert.deepEqual([...tables.vips], [KEYS['10.96.0.11']]);
    });
  }

  it('do not refresh twice at a time, and lose no change that arrives meanwhile', async () => {
    const { index, tables, sets } = await created();
    index.replaceRoute(undefined, second);
    const { promise: paused, resolve: goOn } = Promise.withResolvers<void>();
    tables.before = () => paused;
    const running = sets.refresh();
    index.replaceRoute(first, undefined);
    await sets.refresh();
    goOn();
    await running;
    await sets.refresh();
    assert.equal(tables.mostRunning, 1);
    assert.deepEqual([...tables.vips], [KEYS['10.96.0.11']]);
  });

  it('close cleanly during a refresh', async () => {
    const { index, tables, sets } = await created();
    index.replaceRoute(undefined, second);
    const { promise: paused, reject: cancel } = Promise.withResolvers<void>();
    tables.before = () => paused;
    const running = sets.refresh();
    const closed = sets.close();
    cancel(new Error('netlink socket closed'));
    await Promise.all([running, closed]);
    index.replaceRoute(first, undefined);
    const { written } = tables;
    await sets.refresh();
    assert.equal(tables.written, written);
  });
});
