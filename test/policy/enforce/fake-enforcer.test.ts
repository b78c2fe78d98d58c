import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { NftWatchOptions } from '../../../netlink/nftables/watch.ts';
import { FakeTables } from '../../../nft/fake-tables.ts';
import { NftMonitor } from '../../../nft/monitor.ts';
import type { PolicyChange, PolicyState } from '../../../policy/compile/change.ts';
import { POLICY_TABLE, STAGING_TABLE } from '../../../policy/compile/policy-table.ts';
import { Enforcer } from '../../../policy/enforce/enforcer.ts';
import { PolicyKernel } from '../../../policy/enforce/kernel.ts';
import { FakeTimers } from '../../sync/fake-timers.ts';
import { address, chainRule, DENY_REST, peers, policyChange, policySetChain } from '../fixtures.ts';

const FAMILY = 'IPv4';
const peer = (number: number) =>
  ({ set: 'peers', list: 1, address: address(FAMILY, number) }) as const;
const STATE: PolicyState = {
  chains: [policySetChain('egress', 1, [chainRule({ peers: peers(1, 'peers') }), DENY_REST])],
  elements: [{ set: 'egress-pods', address: address(FAMILY, 1), profile: 1 }, peer(2)],
};

/** An enforcer of one family on tables in memory. */
function start() {
  const timers = new FakeTimers();
  const [main, guard] = [
    new FakeTables(FAMILY, POLICY_TABLE),
    new FakeTables(FAMILY, STAGING_TABLE),
  ];
  guard.otherTables = [main];
  const sockets: NftWatchOptions[] = [];
  const monitor = new NftMonitor(timers, (options) => {
    sockets.push(options);
    return { close: async () => {} };
  });
  const log: string[] = [];
  let changes: PolicyChange[] = [];
  const kernel = new PolicyKernel({
    families: [FAMILY],
    nft: {
      check: async () => {},
      run: (script) => (script.includes(`${STAGING_TABLE} {`) ? guard : main).nft.run(script),
    },
    onWarning: (_, message) => log.push(message),
    open: () => ({ main: main.tables, guard: guard.tables }),
  });
  const enforcer = new Enforcer({
    kernel,
    source: {
      takeChanges: () => changes.splice(0),
      snapshot: () => STATE,
      fqdnContent: () => ({ elements: [], answers: [] }),
    },
    observer: {
      started: () => {},
      unchanged: () => log.push('unchanged'),
      compiled: () => {},
      applied: (_, isFull) => log.push(isFull ? 'all' : 'change'),
      failed: (_, error) => log.push(String(error)),
      driftDetected: (_, what) => log.push(what),
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
  const isWhole = () => main.chains.has('complete') && main.sets.get('peers')?.size === 1;
  return { enforcer, monitor, main, guard, sockets, log, pass, change, isWhole };
}

describe('fake-enforcer: the policy enforcer, on tables in memory', () => {
  it('writes nothing before it is started, then everything, then what changes', async () => {
    const { enforcer, main, guard, log, pass, change } = start();
    change();
    await pass(1000);
    assert.deepEqual([main.log, log], [[], []]);
    enforcer.start();
    await pass(0);
    assert.deepEqual(main.log, [
      'replace table',
      'rules of all, add peers 1, add egress-pods 1',
      'rules of forward,input,output,complete',
    ]);
    assert.deepEqual(guard.log, []);
    main.log = [];
    change(policyChange(FAMILY, { remove: [peer(2)], add: [peer(3)] }));
    await pass(0);
    assert.deepEqual(main.log, ['delete peers 1, add peers 1']);
    enforcer.changed();
    await pass(0);
    assert.deepEqual(log, ['all', 'change', 'unchanged']);
  });

  it('has a guard stand in for the table of an earlier agent until the new one judges', async () => {
    const { enforcer, main, guard, pass, isWhole } = start();
    main.chains.set('complete', 0);
    enforcer.start();
    await pass(0);
    assert.deepEqual(guard.log, [
      'replace table',
      'rules of all, add peers 1, add egress-pods 1',
      `rules of forward,input,output,complete, delete table ${POLICY_TABLE}`,
      'delete table',
    ]);
    assert.ok(isWhole());
  });

  it('writes everything again when others delete its table, once a second at most', async () => {
    const { enforcer, main, sockets, log, pass, isWhole } = start();
    enforcer.start();
    await pass(0);
    const flush = () => {
      main.clear();
      const [socket] = sockets;
      assert.ok(socket);
      socket.onChange({ family: 2, table: POLICY_TABLE, kind: 'table', isNew: false, portId: 1 });
    };
    flush();
    await pass(0);
    assert.ok(isWhole());
    flush();
    await pass(999);
    assert.ok(!isWhole());
    await pass(1);
    assert.ok(isWhole());
    const lost = `table deleted in table ${POLICY_TABLE}`;
    assert.deepEqual(log, ['all', lost, 'all', lost, 'all']);
  });

  it('writes everything again when the table went before the monitor listened', async () => {
    const { enforcer, monitor, main, log, pass, isWhole } = start();
    const load = Promise.withResolvers<void>();
    monitor.waitForLoad(load.promise);
    enforcer.start();
    await pass(0);
    main.clear();
    await pass(0);
    assert.ok(!isWhole());
    load.resolve();
    await pass(0);
    await pass(0);
    assert.deepEqual([log, isWhole()], [['all', `no table ${POLICY_TABLE}`, 'all'], true]);
  });

  it('comes again with everything after what the kernel refused', async () => {
    const { enforcer, log, pass, change, isWhole } = start();
    enforcer.start();
    await pass(0);
    change(policyChange(FAMILY, { remove: [peer(9)] }));
    await pass(0);
    assert.equal(log.length, 2);
    assert.match(log[1] ?? '', /^PolicyRefusedError: .*delete peers .*ENOENT/);
    await pass(99);
    assert.equal(log.length, 2);
    await pass(1);
    assert.deepEqual([log[2], isWhole()], ['all', true]);
  });
});
