import assert from 'node:assert/strict';
import { IP_FAMILIES, type IpFamily } from '../../../api/objects.ts';
import type { OwnedSet } from '../../../netlink/nftables/owned-table.ts';
import type { RouteListener } from '../../../proxier/route-table.ts';
import type { Route } from '../../../services/route.ts';
import { RefusalSets } from '../../../status/traffic/refusal-sets.ts';
import { type NodePort, ServiceIndex } from '../../../status/traffic/service-index.ts';
import { route } from '../../fixtures.ts';

const MODE = { mayBeTranslated: false };
/** In the set of VIPs. */
const KEYS = { '10.96.0.10': '0a60000a', '10.96.0.11': '0a60000b' } as const;

/** Sets as the kernel has them. */
class FakeTables {
  readonly vips = new Set<string>();
  readonly nodePorts = new Set<string>();
  /** Added and deleted keys. */
  readonly keysWritten: string[] = [];
  /** What the next transaction does before it is applied. */
  before: () => Promise<void> | void = () => {};
  running = 0;
  mostRunning = 0;
  written = 0;

  async create(sets: readonly OwnedSet[]): Promise<void> {
    for (const { name, keys } of sets) {
      if (name !== 'vips' && name !== 'node-ports') continue;
      for (const key of keys) this.#keys(name).add(key.toString('hex'));
    }
  }

  async change(_: IpFamily, set: string, added: readonly Buffer[], deleted: readonly Buffer[]) {
    const keys = this.#keys(set);
    this.keysWritten.push(...[...added, ...deleted].map((key) => key.toString('hex')));
    await this.#transaction(set, () => {
      for (const key of deleted) assert.ok(keys.delete(key.toString('hex')));
      for (const key of added) keys.add(key.toString('hex'));
    });
  }

  async replace(_: IpFamily, set: string, after: readonly Buffer[]) {
    const keys = this.#keys(set);
    await this.#transaction(set, () => {
      keys.clear();
      for (const key of after) keys.add(key.toString('hex'));
    });
  }

  #keys(set: string): Set<string> {
    assert.ok(set === 'vips' || set === 'node-ports', set);
    return set === 'vips' ? this.vips : this.nodePorts;
  }

  async #transaction(set: string, apply: () => void): Promise<void> {
    if (set !== 'vips') {
      apply();
      return;
    }
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

/** Notes what is read of it. */
class CountedIndex extends ServiceIndex {
  reads: string[] = [];
  watches = 0;

  override routesOf(vip: string): Route[] {
    this.reads.push(vip);
    return super.routesOf(vip);
  }

  override routeOfNodePort(family: IpFamily, port: NodePort): Route | undefined {
    this.reads.push(`${port.protocol} ${port.port}`);
    return super.routeOfNodePort(family, port);
  }

  override watch(listener: RouteListener): () => void {
    this.watches += 1;
    const stop = super.watch(listener);
    return () => {
      this.watches -= 1;
      stop();
    };
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
    await sets.create('IPv4', (all) => tables.create(all));
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

  it('recover together, if the first of several sets fails', async () => {
    const { index, tables, sets } = await created();
    index.replaceRoute(undefined, route({ id: 'c', clusterIP: '10.96.0.12', nodePort: 30_080 }));
    tables.before = () => {
      throw new Error('transaction failed');
    };
    await assert.rejects(sets.refresh(), /transaction failed/);
    await sets.refresh();
    assert.deepEqual([...tables.vips], [KEYS['10.96.0.10'], '0a60000c']);
    assert.deepEqual([...tables.nodePorts], ['0600000075800000']);
  });

  it('compute and write only the keys of changed Services', async () => {
    const many = Array.from({ length: 500 }, (_, number) =>
      route({
        id: `${number}`,
        clusterIP: `10.97.${number >> 8}.${number & 255}`,
        nodePort: number + 1,
      }),
    );
    const index = new CountedIndex();
    for (const each of many) index.replaceRoute(undefined, each);
    const tables = new FakeTables();
    const sets = new RefusalSets(tables, index, MODE);
    await sets.create('IPv4', (all) => tables.create(all));
    assert.equal(index.reads.length, 2 * many.length);
    index.reads = [];
    await sets.refresh();
    assert.deepEqual(index.reads, []);

    const [changed] = many;
    index.replaceRoute(changed, route({ id: '0', clusterIP: '10.97.0.0', nodePort: 30_000 }));
    await sets.refresh();
    assert.deepEqual(index.reads, ['10.97.0.0', 'TCP 1', 'TCP 30000']);
    assert.deepEqual(tables.keysWritten, ['0600000075300000', '0600000000010000']);
  });

  it('of one family are written, and the error named, if the other fails', async () => {
    const index = new ServiceIndex();
    const tables = new FakeTables();
    const sets = new RefusalSets(tables, index, MODE);
    for (const family of IP_FAMILIES) await sets.create(family, (all) => tables.create(all));
    index.replaceRoute(undefined, first);
    index.replaceRoute(
      undefined,
      route({ id: 'six', family: 'IPv6', clusterIP: 'fd00:10:96::10' }),
    );
    tables.before = () => {
      throw new Error('transaction failed');
    };
    await assert.rejects(sets.refresh(), { message: 'IPv4: transaction failed' });
    assert.deepEqual([...tables.vips], ['fd000010009600000000000000000010']);
    await sets.refresh();
    assert.ok(tables.vips.has(KEYS['10.96.0.10']));
  });

  it('end their watch of the index when they are closed', async () => {
    const index = new CountedIndex();
    const sets = new RefusalSets(new FakeTables(), index, MODE);
    for (const family of IP_FAMILIES) await sets.create(family, async () => {});
    assert.equal(index.watches, 2);
    await sets.close();
    assert.equal(index.watches, 0);
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
