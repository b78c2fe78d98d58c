import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { IpFamily } from '../../../api/objects.ts';
import { FakeTables } from '../../../nft/fake-tables.ts';
import { PolicyBackend } from '../../../policy/enforce/backend.ts';
import { waitFor } from '../../lab/wait.ts';
import { type Namespace, type NetnsHelper, sharedNetns } from '../../netlink/namespace.ts';
import { address, chainRule, DENY_REST, peers, policyChange, policySetChain } from '../fixtures.ts';
import type { TableState } from '../policy-functions.ts';

function stateOf(family: IpFamily, peer = 2): TableState {
  return {
    chains: [
      policySetChain('egress', 1, [
        chainRule({ peers: peers(1, 'peers', 'networks', 'fqdn-peers') }),
        DENY_REST,
      ]),
    ],
    elements: [
      { set: 'egress-pods', address: address(family, 1), policySetId: 1 },
      { set: 'peers', list: 1, address: address(family, peer) },
      { set: 'networks', list: 1, first: address(family, 16), last: address(family, 40) },
    ],
  };
}

describe('enforcer: keeps the policy tables in sync', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;

  const netns = sharedNetns(async ({ helper: { call } }) => {
    await call('enforcerFailSource', false);
    await call('enforcerStop');
    await call('hold', 'flush ruleset', 'nft', '-f', '-');
  });
  beforeEach(async () => {
    ({ namespace, helper } = await netns());
  });

  const states = { IPv4: stateOf('IPv4'), IPv6: stateOf('IPv6') };
  const nft = (script: string) => helper.call('hold', script, 'nft', '-f', '-');
  const log = () => helper.call('enforcerLog');
  const count = async (line: string | RegExp) =>
    (await log()).filter((each) => (typeof line === 'string' ? each === line : line.test(each)))
      .length;
  const until = (line: string, times = 1) =>
    waitFor(`${times} times ${line}`, async () => (await count(line)) >= times);
  const start = async (waits = false) => {
    await helper.call('enforcerStart', states, waits);
    await Promise.all([until('IPv4 all'), until('IPv6 all')]);
  };
  const assertTable = async (family: IpFamily, desired: TableState) => {
    const now = await helper.call('policyState', family);
    await helper.call('policyStart', family, { family });
    assert.equal(await helper.call('policyReplaceAll', family, desired), undefined);
    assert.deepEqual(await helper.call('policyState', family), now);
  };

  it('writes the whole table of each IP family, then changes', async () => {
    await start();
    const change = policyChange('IPv4', {
      remove: [{ set: 'peers', list: 1, address: address('IPv4', 2) }],
      add: [{ set: 'peers', list: 1, address: address('IPv4', 3) }],
    });
    const now = stateOf('IPv4', 3);
    await helper.call('enforcerUpdate', { IPv4: now }, [change]);
    await until('IPv4 change');
    assert.deepEqual((await log()).toSorted(), ['IPv4 all', 'IPv4 change', 'IPv6 all']);
    await helper.call('enforcerStop');
    await assertTable('IPv4', now);
    await assertTable('IPv6', states.IPv6);
  });

  for (const [what, script] of [
    ['the ruleset was flushed', 'flush ruleset'],
    ['the table was deleted', 'delete table ip portwide-policy'],
    [
      'an element was deleted',
      `delete element ip portwide-policy peers { 1 . ${address('IPv4', 2)} }`,
    ],
    ['a set was flushed', 'flush set ip portwide-policy networks'],
    ['an element was added', `add element ip portwide-policy networks { 1 . 10.0.0.0/8 }`],
    ['a rule was added', 'insert rule ip portwide-policy forward accept'],
    ['rules were deleted', 'flush chain ip portwide-policy deny-network-policy-egress'],
    [
      'a base chain was replaced',
      `delete chain ip portwide-policy forward
      add chain ip portwide-policy forward { type filter hook forward priority -7; }`,
    ],
    [
      'a set was replaced by one of another type',
      `flush table ip portwide-policy
      delete set ip portwide-policy hairpin-pods
      add set ip portwide-policy hairpin-pods { type mark; }`,
    ],
  ] as const) {
    it(`rewrites the table when ${what}`, async () => {
      await start();
      await nft(script);
      await until('IPv4 all', 2);
      assert.ok((await count(/^IPv4 drift/)) >= 1);
      if (script !== 'flush ruleset') assert.equal(await count(/^IPv6/), 1);
      else await until('IPv6 all', 2);
      await helper.call('enforcerStop');
      const state = await helper.call('policyState', 'IPv4');
      assert.ok((state['chain forward']?.length ?? 0) > 0);
      await assertTable('IPv4', states.IPv4);
      await assertTable('IPv6', states.IPv6);
    });
  }

  it('rewrites the table after an external change before the watch started', async () => {
    await start(true);
    await nft('flush ruleset');
    await helper.call('enforcerOthersLoaded');
    await Promise.all([until('IPv4 all', 2), until('IPv6 all', 2)]);
    await helper.call('enforcerStop');
    await assertTable('IPv4', states.IPv4);
  });

  it('ignores its own changes and changes of other tables', async () => {
    await start();
    await nft('add table ip other');
    await nft('add table inet portwide-policy');
    await helper.call(
      'enforcerAddFqdn',
      [{ set: 'fqdn-peers', list: 1, address: address('IPv4', 9), timeoutMs: 60_000 }],
      [{ name: 'a.example', address: address('IPv4', 9), timeoutMs: 60_000 }],
    );
    await helper.call('enforcerUpdate', {}, [
      policyChange('IPv4', { add: [{ set: 'hairpin-pods', address: address('IPv4', 1) }] }),
    ]);
    await until('IPv4 change');
    // Notifications are in order: this notification comes after all others.
    await nft('add chain ip6 portwide-policy last');
    await until('IPv6 all', 2);
    assert.equal(await count(/^IPv4 drift/), 0);
    assert.equal(await count('IPv4 all'), 1);
  });

  it('restores FQDN addresses and the FQDN cache after an external change', async () => {
    await start();
    const content = {
      elements: [{ set: 'fqdn-peers', list: 1, address: address('IPv4', 9), timeoutMs: 60_000 }],
      entries: [{ name: 'a.example', address: address('IPv4', 9), timeoutMs: 60_000 }],
    } as const;
    await helper.call('enforcerUpdate', {}, [], content);
    await nft('flush ruleset');
    await until('IPv4 all', 2);
    const state = await helper.call('policyState', 'IPv4');
    assert.deepEqual([state['set fqdn-peers']?.length, state['set fqdn-cache']?.length], [1, 1]);
  });

  it('rewrites the table repeatedly, about once a second at most', async () => {
    await start();
    const begun = performance.now();
    // The table is missing for a moment while it is replaced.
    const externalChange = 'nft add chain ip portwide-policy unknown || true';
    for (let round = 0; round < 150; round++) {
      await namespace.run('sh', '-c', externalChange);
    }
    await waitFor('the last change is repaired', async () => {
      const state = await helper.call('policyState', 'IPv4');
      return 'chain forward' in state && !('chain unknown' in state);
    });
    const rewrites = (await count('IPv4 all')) - 1;
    const seconds = (performance.now() - begun) / 1000;
    assert.ok(rewrites >= 1 && rewrites <= 1 + seconds, `${rewrites} times in ${seconds} s`);
  });

  it('rewrites the table after a change that the kernel refused', async () => {
    await start();
    const impossible = policyChange('IPv4', {
      remove: [{ set: 'peers', list: 9, address: address('IPv4', 2) }],
    });
    const now = stateOf('IPv4', 3);
    await helper.call('enforcerUpdate', { IPv4: now }, [impossible]);
    await until('IPv4 all', 2);
    assert.equal(await count(/^IPv4 failed PolicyRefusedError/), 1);
    await helper.call('enforcerStop');
    await assertTable('IPv4', now);
  });

  it('reports a failure of the source and retries', async () => {
    await start();
    await helper.call('enforcerFailSource', true);
    await waitFor(
      'both families report it',
      async () => (await count(/failed Error: broken/)) >= 2,
    );
    await helper.call('enforcerFailSource', false);
    // The changes taken before the failure are unknown.
    for (const family of ['IPv4', 'IPv6'] as const) await until(`${family} all`, 2);
  });

  it('rewrites the table when FQDN addresses could not be added', async () => {
    await start();
    const element = { set: 'fqdn-peers', list: 1, address: address('IPv4', 9) } as const;
    // A timeout that overflows in the kernel.
    const impossible = helper.call('enforcerAddFqdn', [{ ...element, timeoutMs: 2 ** 63 }], []);
    await assert.rejects(impossible, /PolicyRefusedError/);
    await until('IPv4 all', 2);
    assert.equal(await count('IPv6 all'), 1);
  });

  it('keeps one IP family in sync while the other IP family fails', async () => {
    const bad: TableState = {
      chains: [],
      elements: [{ set: 'egress-pods', address: address('IPv6', 1), policySetId: 404 }],
    };
    await helper.call('enforcerStart', { ...states, IPv6: bad });
    await until('IPv4 all');
    await waitFor('IPv6 fails', async () => (await count(/^IPv6 failed/)) >= 2);
    for (const number of [3, 4]) {
      const change = policyChange('IPv4', {
        add: [{ set: 'peers', list: 1, address: address('IPv4', number) }],
      });
      await helper.call('enforcerUpdate', {}, [change]);
      await until('IPv4 change', number - 2);
    }
    await nft('delete table ip portwide-policy');
    await until('IPv4 all', 2);
    await helper.call('enforcerUpdate', { IPv6: states.IPv6 }, [policyChange('IPv6')]);
    await until('IPv6 all');
    await helper.call('enforcerStop');
    await assertTable('IPv6', states.IPv6);
  });

  it('does not make an IP family wait for an addition of the other IP family', async () => {
    const fake = new FakeTables('IPv6');
    const stuck = { ...fake.tables, chains: () => new Promise<never>(() => undefined) };
    const tables = { main: stuck, staging: stuck, legacyStaging: stuck };
    const backend = new PolicyBackend(tables, {
      family: 'IPv6',
      onWarning: () => {},
    });
    void backend.fqdnEntries();
    const result = await Promise.race([
      backend.addFqdnAddresses([], []).then(() => 'added'),
      nextTurn('waiting'),
    ]);
    assert.equal(result, 'added');
  });

  it('leaves the tables in force when it stops', async () => {
    await start();
    const before = await helper.call('policyState', 'IPv4');
    await helper.call('enforcerStop');
    assert.deepEqual(await helper.call('policyState', 'IPv4'), before);
  });
});
