import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { NftWatchOptions } from '../../../netlink/nftables/watch.ts';
import { FakeTables } from '../../../nft/fake-tables.ts';
import { NftMonitor } from '../../../nft/monitor.ts';
import type { PolicyChange, PolicyState } from '../../../policy/compile/change.ts';
import { LEGACY_NAMES, POLICY_TABLE, STAGING_TABLE } from '../../../policy/compile/policy-table.ts';
import { Enforcer } from '../../../policy/enforce/enforcer.ts';
import { PolicyKernel } from '../../../policy/enforce/kernel.ts';
import { FakeTimers } from '../../sync/fake-timers.ts';
import { address, chainRule, DENY_REST, peers, policyChange, policySetChain } from '../fixtures.ts';

const FAMILY = 'IPv4';
const peer = (number: number) =>
  ({ set: 'peers', list: 1, address: address(FAMILY, number) }) as const;
const STATE: PolicyState = {
  chains: [policySetChain('egress', 1, [chainRule({ peers: peers(1, 'peers') }), DENY_REST])],
  elements: [{ set: 'egress-pods', address: address(FAMILY, 1), policySetId: 1 }, peer(2)],
};

/** An enforcer of one IP family with tables in memory. */
function start() {
  const timers = new FakeTimers();
  const [main, staging, legacy] = [
    new FakeTables(FAMILY, POLICY_TABLE),
    new FakeTables(FAMILY, STAGING_TABLE),
    new FakeTables(FAMILY, LEGACY_NAMES.stagingTable),
  ];
  staging.otherTables = [main];
  const sockets: NftWatchOptions[] = [];
  const open = (options: NftWatchOptions) => {
    sockets.push(options);
    return { close: async () => {} };
  };
  const foreign = { transactions: 0 };
  const monitor = new NftMonitor(timers, open, async () => foreign.transactions);
  const log: string[] = [];
  let changes: PolicyChange[] = [];
  const kernel = new PolicyKernel({
    families: [FAMILY],
    onWarning: (_, message) => log.push(message),
    open: () => ({
      main: main.tables,
      staging: staging.tables,
      legacyStaging: legacy.tables,
    }),
  });
  const enforcer = new Enforcer({
    kernel,
    source: {
      takeChanges: () => changes.splice(0),
      snapshot: () => STATE,
      fqdnContent: () => ({ elements: [], entries: [] }),
    },
    observer: {
      started: () => {},
      unchanged: () => log.push('unchanged'),
      compiled: () => {},
      applied: (_, isFull) => log.push(isFull ? 'all' : 'change'),
      failed: (_, error) => log.push(String(error)),
      driftDetected: (_, what) => log.push(what),
      missedChanges: () => log.push('missed changes'),
      watchFailed: (error) => log.push(String(error)),
    },
    timers,
    monitor,
  });
  const pass = async (milliseconds: number) => {
    timers.advance(milliseconds);
    for (let turn = 0; turn < 10; turn++) await nextTurn();
  };
  const change = (...some: PolicyChange[]) => {
    changes = some;
    enforcer.changed();
  };
  const isWhole = () => main.chains.has('commit-marker') && main.sets.get('peers')?.size === 1;
  return { enforcer, monitor, foreign, main, staging, sockets, log, pass, change, isWhole };
}

describe('fake-enforcer: the policy enforcer, on tables in memory', () => {
  it('writes nothing before start(), then the whole table, then changes', async () => {
    const { enforcer, main, staging, log, pass, change } = start();
    change();
    await pass(1000);
    assert.deepEqual([main.log, log], [[], []]);
    enforcer.start();
    await pass(0);
    assert.deepEqual(main.log, [
      'replace table, rules of all, add peers 1, add egress-pods 1',
      'rules of forward,input,output,dns-prerouting,dns-output,commit-marker',
    ]);
    assert.deepEqual(staging.log, []);
    main.log = [];
    change(policyChange(FAMILY, { remove: [peer(2)], add: [peer(3)] }));
    await pass(0);
    assert.deepEqual(main.log, ['delete peers 1, add peers 1']);
    enforcer.changed();
    await pass(0);
    assert.deepEqual(log, ['all', 'change', 'unchanged']);
  });

  it('enforces the staging table while it replaces the table of an earlier agent', async () => {
    const { enforcer, main, staging, pass, isWhole } = start();
    main.chains.set('commit-marker', 0);
    enforcer.start();
    await pass(0);
    assert.deepEqual(staging.log, [
      'replace table, rules of all, add peers 1, add egress-pods 1',
      `rules of forward,input,output,dns-prerouting,dns-output,commit-marker, delete table ${POLICY_TABLE}`,
      'delete table',
    ]);
    assert.ok(isWhole());
  });

  it('rewrites the table when it is deleted externally, once a second at most', async () => {
    const { enforcer, main, sockets, log, pass, isWhole } = start();
    enforcer.start();
    await pass(0);
    const flush = () => {
      main.clear();
      const [socket] = sockets;
      assert.ok(socket);
      socket.onChange({
        ...{ family: 2, table: POLICY_TABLE, name: undefined },
        ...{ kind: 'table', isNew: false, portId: 1 },
      });
      const end = { family: 0, table: undefined, kind: 'generation' } as const;
      socket.onChange({ ...end, name: undefined, isNew: true, portId: 1 });
    };
    flush();
    await pass(0);
    assert.ok(isWhole());
    flush();
    await pass(999);
    assert.ok(!isWhole());
    await pass(1);
    assert.ok(isWhole());
    const lost = `table ip ${POLICY_TABLE} was deleted`;
    assert.deepEqual(log, ['all', lost, 'all', lost, 'all']);
  });

  it('rewrites the table when another program committed before the watch started', async () => {
    const { enforcer, monitor, foreign, main, log, pass, isWhole } = start();
    const load = Promise.withResolvers<void>();
    monitor.waitForLoad(load.promise);
    enforcer.start();
    await pass(0);
    main.clear();
    foreign.transactions += 1;
    await pass(0);
    assert.ok(!isWhole());
    load.resolve();
    await pass(0);
    await pass(0);
    assert.deepEqual([log, isWhole()], [['all', 'missed changes', 'all'], true]);
  });

  it('rewrites the table when notifications were lost, but writes nothing before its start', async () => {
    const { enforcer, monitor, sockets, log, pass } = start();
    monitor.register({
      families: [FAMILY],
      tables: [],
      onExternalChange: () => {},
      onWatchStarted: () => {},
      onMissedChanges: () => {},
      onWatchFailed: () => {},
    })(FAMILY);
    await pass(10_000);
    sockets[0]?.onOverrun(new Error('ENOBUFS'));
    await pass(1000);
    assert.deepEqual(log, []);
    enforcer.start();
    await pass(0);
    sockets[0]?.onOverrun(new Error('ENOBUFS'));
    await pass(1000);
    assert.deepEqual(log, ['all', 'missed changes', 'all']);
  });

  it('rewrites the table after a change that the kernel refused', async () => {
    const { enforcer, log, pass, change, isWhole } = start();
    enforcer.start();
    await pass(0);
    change(policyChange(FAMILY, { remove: [peer(9)] }));
    await pass(0);
    assert.equal(log.length, 2);
    assert.match(log[1] ?? '', /^PolicyRefusedError: .*delete element .* in set peers: ENOENT/);
    await pass(99);
    assert.equal(log.length, 2);
    await pass(1);
    assert.deepEqual([log[2], isWhole()], ['all', true]);
  });
});
