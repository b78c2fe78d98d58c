import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { IP_FAMILIES } from '../../api/objects.ts';
import type { NftNotification } from '../../netlink/nftables/types.ts';
import type { NftWatchOptions } from '../../netlink/nftables/watch.ts';
import { NftMonitor, type TableOwner } from '../../nft/monitor.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

const LOADING = 10_000;

const END_OF_TRANSACTION = { table: undefined, kind: 'generation', family: 0 } as const;

function start(failure?: Error) {
  const timers = new FakeTimers();
  const sockets: NftWatchOptions[] = [];
  let closed = 0;
  /** Transactions of other programs; an error if they cannot be counted. */
  const foreign: { transactions: number | Error } = { transactions: 0 };
  const open = (options: NftWatchOptions) => {
    if (failure !== undefined) throw failure;
    sockets.push(options);
    return {
      close: async () => {
        closed += 1;
      },
    };
  };
  const monitor = new NftMonitor(timers, open, async () => {
    const { transactions } = foreign;
    if (transactions instanceof Error) throw transactions;
    return transactions;
  });
  const log: string[] = [];
  const owner = (...tables: string[]): TableOwner => ({
    families: IP_FAMILIES,
    tables,
    onExternalChange: (family, what) => log.push(`${tables[0]} ${family}: ${what}`),
    onWatchStarted: (family) => log.push(`${tables[0]} ${family} watch started`),
    onMissedChanges: (family) => log.push(`${tables[0]} ${family} missed changes`),
    onWatchFailed: (error) => log.push(`${tables[0]} ${error}`),
  });
  const change = (notification: Partial<NftNotification>) =>
    sockets[0]?.onChange({
      family: 2,
      table: 'a',
      name: undefined,
      kind: 'rule',
      isNew: true,
      portId: 7,
      ...notification,
    });
  return { timers, sockets, monitor, foreign, log, owner, change, closed: () => closed };
}

describe('monitor: watch of nf_tables', () => {
  it('opens one socket when all families of all owners and all other loads have loaded', async () => {
    const { timers, sockets, monitor, log, owner } = start();
    const [a, b] = [monitor.register(owner('a')), monitor.register(owner('b'))];
    const other = Promise.withResolvers<void>();
    monitor.waitForLoad(other.promise);
    a('IPv4');
    a('IPv6');
    b('IPv4');
    other.resolve();
    timers.advance(LOADING - 1);
    await nextTurn();
    assert.deepEqual([sockets.length, log], [0, []]);
    b('IPv6');
    b('IPv6');
    await nextTurn();
    assert.equal(sockets.length, 1);
    assert.deepEqual(log, [
      'a IPv4 watch started',
      'a IPv6 watch started',
      'b IPv4 watch started',
      'b IPv6 watch started',
    ]);
    assert.equal(timers.pending, 0);
  });

  it('waits for the follow-up work of a load before it starts the watch', async () => {
    const { sockets, monitor, owner } = start();
    const loaded = monitor.register(owner('a'));
    const after = Promise.withResolvers<void>();
    loaded('IPv4', after.promise);
    loaded('IPv6');
    await nextTurn();
    assert.equal(sockets.length, 0);
    after.resolve();
    await nextTurn();
    assert.equal(sockets.length, 1);
  });

  it('starts the watch 10 s after the first load when other loads take longer', async () => {
    const { timers, sockets, monitor, log, owner } = start();
    const [a, b] = [monitor.register(owner('a')), monitor.register(owner('b'))];
    timers.advance(10 * LOADING);
    assert.equal(sockets.length, 0);
    a('IPv4', new Promise(() => {}));
    timers.advance(LOADING);
    await nextTurn();
    assert.deepEqual([sockets.length, log], [1, ['a IPv4 watch started']]);
    b('IPv6');
    b('IPv4');
    a('IPv6');
    await nextTurn();
    assert.deepEqual(
      [sockets.length, log.slice(1)],
      [1, ['b IPv6 watch started', 'b IPv4 watch started', 'a IPv6 watch started']],
    );
  });

  it('does not start the watch when only loads without an owner end', async () => {
    const { sockets, monitor } = start();
    monitor.waitForLoad(Promise.resolve());
    await nextTurn();
    assert.equal(sockets.length, 0);
  });

  it('reports changes to the owner of the table and family', async () => {
    const { monitor, log, owner, change } = start();
    const [a, b] = [
      monitor.register({ ...owner('a', 'a-guard'), families: ['IPv4'] }),
      monitor.register(owner('b')),
    ];
    a('IPv4');
    b('IPv4');
    b('IPv6');
    await nextTurn();
    log.length = 0;
    const commit = (...changes: readonly Partial<NftNotification>[]) => {
      for (const each of changes) change(each);
      change(END_OF_TRANSACTION);
    };
    commit({});
    commit({ name: 'services' });
    commit({ table: 'a-guard', kind: 'table' });
    commit({ table: 'b', family: 10, kind: 'element', name: 'cluster-ips' });
    // Not reported: family inet, a family without owner, another table.
    commit({ family: 1 }, { family: 10 }, { table: 'c' });
    assert.deepEqual(log, [
      'a IPv4: rule added in table ip a',
      'a IPv4: rule of chain services added in table ip a',
      'a IPv4: table ip a-guard was changed',
      'b IPv6: element of cluster-ips added in table ip6 b',
    ]);
  });

  it('names the table or chain that a transaction deleted, not its content', async () => {
    const { monitor, log, owner, change, sockets } = start();
    const a = monitor.register({ ...owner('a', 'a-guard'), families: ['IPv4'] });
    a('IPv4');
    await nextTurn();
    log.length = 0;
    const deletes: readonly Partial<NftNotification>[] = [
      { name: 'services' },
      { kind: 'chain', name: 'services' },
      { kind: 'chain', name: 'other' },
    ];
    for (const each of deletes) change({ ...each, isNew: false });
    assert.deepEqual(log, []);
    change(END_OF_TRANSACTION);
    for (const each of deletes) change({ ...each, table: 'a-guard', isNew: false });
    for (const table of ['a', 'a-guard']) change({ table, kind: 'table', isNew: false });
    change(END_OF_TRANSACTION);
    change({ kind: 'table', isNew: false });
    sockets[0]?.onOverrun(new Error('ENOBUFS'));
    change(END_OF_TRANSACTION);
    assert.deepEqual(log, [
      'a IPv4: chain services of table ip a was deleted',
      'a IPv4: table ip a-guard was deleted',
      'a IPv4: table ip a was deleted',
      'a IPv4: table ip a was deleted',
      'a IPv4 missed changes',
    ]);
  });

  it('reports missed changes to every owner when notifications were lost', async () => {
    const { monitor, log, owner, sockets } = start();
    const [a, b] = [
      monitor.register({ ...owner('a'), families: ['IPv6'] }),
      monitor.register(owner('b')),
    ];
    a('IPv6');
    b('IPv4');
    b('IPv6');
    await nextTurn();
    log.length = 0;
    sockets[0]?.onOverrun(new Error('ENOBUFS'));
    assert.deepEqual(log, [
      'a IPv6 missed changes',
      'b IPv4 missed changes',
      'b IPv6 missed changes',
    ]);
  });

  for (const [what, before, after] of [
    ['another program committed a transaction', 0, 1],
    ['transactions cannot be counted', new Error('EPERM'), new Error('EPERM')],
  ] as const) {
    it(`reports missed changes of each family when ${what} before the watch started`, async () => {
      const { timers, foreign, monitor, log, owner } = start();
      foreign.transactions = before;
      const loaded = monitor.register(owner('a'));
      await nextTurn();
      foreign.transactions = after;
      loaded('IPv4');
      timers.advance(LOADING);
      await nextTurn();
      // Counted when the watch started.
      foreign.transactions = 2;
      loaded('IPv6');
      await nextTurn();
      assert.deepEqual(
        log,
        ['IPv4', 'IPv6'].flatMap((family) => [
          `a ${family} watch started`,
          `a ${family} missed changes`,
        ]),
      );
    });
  }

  it('reports nothing after close, though the watch was starting', async () => {
    const { monitor, foreign, log, owner } = start();
    const loaded = monitor.register({ ...owner('a'), families: ['IPv4'] });
    foreign.transactions = 1;
    loaded('IPv4');
    await monitor.close();
    await nextTurn();
    assert.deepEqual(log, []);
  });

  it('calls onWatchFailed of every owner once when the socket fails, and does not retry', async () => {
    const { timers, monitor, log, owner } = start(new Error('no nf_tables'));
    const [a, b] = [monitor.register(owner('a')), monitor.register(owner('b'))];
    a('IPv4');
    a('IPv6');
    b('IPv4');
    timers.advance(LOADING);
    await nextTurn();
    b('IPv6');
    timers.advance(LOADING);
    await nextTurn();
    assert.deepEqual(log, ['a Error: no nf_tables', 'b Error: no nf_tables']);
  });

  it('closes its socket, and opens none after close', async () => {
    const early = start();
    const loaded = early.monitor.register(early.owner('a'));
    loaded('IPv4');
    await early.monitor.close();
    loaded('IPv6');
    await nextTurn();
    assert.deepEqual([early.sockets.length, early.timers.pending], [0, 0]);

    const late = start();
    const done = late.monitor.register(late.owner('a'));
    done('IPv4');
    done('IPv6');
    await nextTurn();
    await late.monitor.close();
    assert.deepEqual([late.sockets.length, late.closed()], [1, 1]);
  });
});
