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
        chainRule({ peers: peers(1, 'peers', 'networks', 'learned') }),
        DENY_REST,
      ]),
    ],
    elements: [
      { set: 'egress-pods', address: address(family, 1), profile: 1 },
      { set: 'peers', list: 1, address: address(family, peer) },
      { set: 'networks', list: 1, first: address(family, 16), last: address(family, 40) },
    ],
  };
}

describe('enforcer: enforcing network policy', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;

  const netns = sharedNetns(async ({ helper: { call } }) => {
    await call('enforcerBreak', false);
    await call('enforcerStop');
    await call('hold', 'flush ruleset', 'nft', '-f', '-');
  });
  beforeEach(async () => {
    ({ namespace, helper: helper } = await netns());
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
  const equal = async (family: IpFamily, wanted: TableState) => {
    const now = await helper.call('policyState', family);
    await helper.call('policyStart', family, { family });
    assert.equal(await helper.call('policyAll', family, wanted), undefined);
    assert.deepEqual(await helper.call('policyState', family), now);
  };

  it('writes everything, then what changes, family by family', async () => {
    await start();
    const change = policyChange('IPv4', {
      remove: [{ set: 'peers', list: 1, address: address('IPv4', 2) }],
      add: [{ set: 'peers', list: 1, address: address('IPv4', 3) }],
    });
    const now = stateOf('IPv4', 3);
    await helper.call('enforcerWant', { IPv4: now }, [change]);
    await until('IPv4 change');
    assert.deepEqual((await log()).toSorted(), ['IPv4 all', 'IPv4 change', 'IPv6 all']);
    await helper.call('enforcerStop');
    await equal('IPv4', now);
    await equal('IPv6', states.IPv6);
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
      'a chain that packets are led through was replaced',
      `delete chain ip portwide-policy forward
      add chain ip portwide-policy forward { type filter hook forward priority -7; }`,
    ],
    [
      'a set was replaced by one of another kind',
      `flush table ip portwide-policy
      delete set ip portwide-policy own
      add set ip portwide-policy own { type mark; }`,
    ],
  ] as const) {
    it(`mends it when ${what}`, async () => {
      await start();
      await nft(script);
      await until('IPv4 all', 2);
      assert.ok((await count(/^IPv4 disturbed/)) >= 1);
      if (script !== 'flush ruleset') assert.equal(await count(/^IPv6/), 1);
      else await until('IPv6 all', 2);
      await helper.call('enforcerStop');
      const state = await helper.call('policyState', 'IPv4');
      assert.ok((state['chain forward']?.length ?? 0) > 0);
      await equal('IPv4', states.IPv4);
      await equal('IPv6', states.IPv6);
    });
  }

  it('mends what others did before it listened', async () => {
    await start(true);
    await nft('flush ruleset');
    await helper.call('enforcerLoaded');
    await Promise.all([until('IPv4 all', 2), until('IPv6 all', 2)]);
    await helper.call('enforcerStop');
    await equal('IPv4', states.IPv4);
  });

  it('is not disturbed by its own changes, nor by other tables', async () => {
    await start();
    await nft('add table ip other');
    await nft('add table inet portwide-policy');
    await helper.call(
      'enforcerLearn',
      [{ set: 'learned', list: 1, address: address('IPv4', 9), timeoutMs: 60_000 }],
      [{ name: 'a.example', address: address('IPv4', 9), timeoutMs: 60_000 }],
    );
    await helper.call('enforcerWant', {}, [
      policyChange('IPv4', { add: [{ set: 'own', address: address('IPv4', 1) }] }),
    ]);
    await until('IPv4 change');
    // Told after all of that, if that was told.
    await nft('add chain ip6 portwide-policy last');
    await until('IPv6 all', 2);
    assert.equal(await count(/^IPv4 disturbed/), 0);
    assert.equal(await count('IPv4 all'), 1);
  });

  it('brings back what was learned', async () => {
    await start();
    const learned = {
      elements: [{ set: 'learned', list: 1, address: address('IPv4', 9), timeoutMs: 60_000 }],
      answers: [{ name: 'a.example', address: address('IPv4', 9), timeoutMs: 60_000 }],
    } as const;
    await helper.call('enforcerWant', {}, [], learned);
    await nft('flush ruleset');
    await until('IPv4 all', 2);
    const state = await helper.call('policyState', 'IPv4');
    assert.deepEqual([state['set learned']?.length, state['set answers']?.length], [1, 1]);
  });

  it('mends it again and again, about once a second at most', async () => {
    await start();
    const begun = performance.now();
    // The table is not there for moments while it is mended.
    const disturb = 'nft add chain ip portwide-policy strange || true';
    for (let round = 0; round < 150; round++) {
      await namespace.run('sh', '-c', disturb);
    }
    await waitFor('the last is mended', async () => {
      const state = await helper.call('policyState', 'IPv4');
      return 'chain forward' in state && !('chain strange' in state);
    });
    const mended = (await count('IPv4 all')) - 1;
    const seconds = (performance.now() - begun) / 1000;
    assert.ok(mended >= 1 && mended <= 1 + seconds, `${mended} times in ${seconds} s`);
  });

  it('writes everything after a change that the kernel refused', async () => {
    await start();
    const impossible = policyChange('IPv4', {
      remove: [{ set: 'peers', list: 9, address: address('IPv4', 2) }],
    });
    const now = stateOf('IPv4', 3);
    await helper.call('enforcerWant', { IPv4: now }, [impossible]);
    await until('IPv4 all', 2);
    assert.equal(await count(/^IPv4 failed PolicyRefusedError/), 1);
    await helper.call('enforcerStop');
    await equal('IPv4', now);
  });

  it('tells when it cannot find out what is wanted, and tries again', async () => {
    await start();
    await helper.call('enforcerBreak', true);
    await waitFor('both are told', async () => (await count(/failed Error: broken/)) >= 2);
    await helper.call('enforcerBreak', false);
    // What was taken by then is not known.
    for (const family of ['IPv4', 'IPv6'] as const) await until(`${family} all`, 2);
  });

  it('writes everything when it could not learn', async () => {
    await start();
    const element = { set: 'learned', list: 1, address: address('IPv4', 9) } as const;
    // More milliseconds than the kernel can count.
    const impossible = helper.call('enforcerLearn', [{ ...element, timeoutMs: 2 ** 63 }], []);
    await assert.rejects(impossible, /PolicyRefusedError/);
    await until('IPv4 all', 2);
    assert.equal(await count('IPv6 all'), 1);
  });

  it('goes on with one family while the other fails', async () => {
    const bad: TableState = {
      chains: [],
      elements: [{ set: 'egress-pods', address: address('IPv6', 1), profile: 404 }],
    };
    await helper.call('enforcerStart', { ...states, IPv6: bad });
    await until('IPv4 all');
    await waitFor('IPv6 fails', async () => (await count(/^IPv6 failed/)) >= 2);
    for (const number of [3, 4]) {
      const change = policyChange('IPv4', {
        add: [{ set: 'peers', list: 1, address: address('IPv4', number) }],
      });
      await helper.call('enforcerWant', {}, [change]);
      await until('IPv4 change', number - 2);
    }
    await nft('delete table ip portwide-policy');
    await until('IPv4 all', 2);
    await helper.call('enforcerWant', { IPv6: states.IPv6 }, [policyChange('IPv6')]);
    await until('IPv6 all');
    await helper.call('enforcerStop');
    await equal('IPv6', states.IPv6);
  });

  it('has no family wait for what it has nothing to do with', async () => {
    const fake = new FakeTables('IPv6');
    const stuck = { ...fake.tables, chains: () => new Promise<never>(() => undefined) };
    const tables = { main: stuck, guard: stuck };
    const backend = new PolicyBackend(tables, fake.nft, {
      family: 'IPv6',
      onWarning: () => {},
    });
    void backend.fqdnEntries();
    const learned = await Promise.race([
      backend.learn([], []).then(() => 'learned'),
      nextTurn('waiting'),
    ]);
    assert.equal(learned, 'learned');
  });

  it('leaves everything in force when it stops', async () => {
    await start();
    const before = await helper.call('policyState', 'IPv4');
    await helper.call('enforcerStop');
    assert.deepEqual(await helper.call('policyState', 'IPv4'), before);
  });
});
