import assert from 'node:assert/strict';
import { IP_FAMILIES, type IpFamily } from '../../../api/objects.ts';
import { nftFamily } from '../../../nft/rule.ts';
import type { FqdnContent, PolicyElement } from '../../../policy/compile/change.ts';
import { waitFor } from '../../lab/wait.ts';
import { type Namespace, type NetnsHelper, sharedNetns } from '../../netlink/namespace.ts';
import {
  address,
  chainRule,
  DENY_REST,
  peers,
  policyChange,
  policySetChain,
  ports,
} from '../fixtures.ts';
import type { TableState } from '../policy-functions.ts';

const TCP = 6;
const SCTP = 132;

/** A state with every kind of rule and element. */
function everything(family: IpFamily): TableState {
  const [pod, other] = [address(family, 1), address(family, 2)];
  const admin = [
    chainRule({
      verdict: 'pass',
      peers: peers(1, 'peers', 'networks', 'fqdn-peers'),
      ports: ports(2, 'ports', 'named-ports'),
      comment: 'AdminNetworkPolicy a spec.egress[0]',
    }),
    chainRule({ verdict: 'deny-admin', peers: peers(1, 'networks') }),
  ];
  return {
    chains: [
      policySetChain('egress', 1, [chainRule({ peers: peers(1) }), DENY_REST], admin),
      policySetChain('ingress', 1, [chainRule({ verdict: 'deny-baseline', ports: ports(2) })]),
    ],
    elements: [
      { set: 'hairpin-pods', address: pod },
      { set: 'selected-pods', address: pod },
      { set: 'dns-bypass', address: pod },
      { set: 'owned-vips', address: other },
      { set: 'egress-pods', address: pod, policySetId: 1 },
      { set: 'ingress-pods', address: pod, policySetId: 1 },
      { set: 'peers', list: 1, address: other },
      { set: 'networks', list: 1, first: address(family, 16), last: address(family, 40) },
      { set: 'networks', list: 1, first: address(family, 300), last: address(family, 300) },
      { set: 'ports', list: 2, protocol: TCP, first: 80, last: 90 },
      { set: 'ports', list: 2, protocol: SCTP, first: 1, last: 65_535 },
      { set: 'named-ports', list: 2, address: other, protocol: TCP, port: 8080 },
    ],
  };
}

for (const family of IP_FAMILIES) {
  describe(`policy backend, ${family}`, () => {
    const ip = nftFamily(family);
    const at = (number: number) => address(family, number);
    let namespace: Namespace;
    let helper: NetnsHelper;

    const netns = sharedNetns(({ helper: { call } }) =>
      call('hold', 'flush ruleset', 'nft', '-f', '-'),
    );
    beforeEach(async () => {
      ({ namespace, helper: helper } = await netns());
      await helper.call('policyStart', 'agent', { family });
    });

    const state = () => helper.call('policyState', family);
    const nft = (...args: string[]) => namespace.run('nft', ...args);
    const set = async (name: string, table = 'portwide-policy') => {
      const text = await nft('list', 'set', ip, table, name);
      const list = /elements = \{([^}]*)\}/.exec(text)?.[1] ?? '';
      return list
        .split(',')
        .map((line) => line.trim())
        .filter((line) => line !== '')
        .sort();
    };
    const all = async (state: TableState, fqdn?: FqdnContent) => {
      const refusal = await helper.call('policyReplaceAll', 'agent', state, fqdn);
      assert.equal(refusal, undefined);
    };
    const peer = (list: number, number: number): PolicyElement => ({
      set: 'peers',
      list,
      address: at(number),
    });
    const pod = (number: number, policySetId: number): PolicyElement => ({
      set: 'egress-pods',
      address: at(number),
      policySetId,
    });

    it('writes the complete table, and the same table again', async () => {
      await all(everything(family));
      const before = await state();
      assert.deepEqual(await helper.call('policySizes', 'agent'), {
        peers: 1,
        networks: 2,
        ports: 2,
        'named-ports': 1,
        'hairpin-pods': 1,
        'selected-pods': 1,
        'dns-bypass': 1,
        'owned-vips': 1,
        'ingress-pods': 1,
        'egress-pods': 1,
        'fqdn-peers': 0,
        'fqdn-cache': 0,
      });
      for (const [name, size] of Object.entries(await helper.call('policySizes', 'agent'))) {
        assert.equal(before[`set ${name}`]?.length, size, name);
      }
      await all(everything(family));
      assert.deepEqual(await state(), before);
      const [filled, committed, ...others] = await helper.call('policyLog', 'agent');
      assert.match(filled ?? '', /^replace, fill dns-tracked, .*, add dns-bypass 1$/);
      assert.equal(
        committed,
        'fill forward, fill input, fill output, fill dns-prerouting, fill dns-output, fill commit-marker',
      );
      assert.deepEqual(others, [
        `staging: ${filled}`,
        `staging: ${committed}, delete-table portwide-policy`,
        filled,
        committed,
      ]);
    });

    it('writes tables that nft can list', async () => {
      await all(everything(family), {
        elements: [{ set: 'fqdn-peers', list: 1, address: at(9), timeoutMs: 60_000 }],
        entries: [{ name: 'www.example.com', address: at(9), timeoutMs: 60_000 }],
      });
      const text = await nft('list', 'ruleset');
      assert.match(text, /comment "AdminNetworkPolicy a spec.egress\[0\]"/);
      assert.match(text, /comment "www.example.com"/);
      const json = JSON.parse(await nft('-j', 'list', 'ruleset')) as { nftables: object[] };
      assert.equal(
        json.nftables.filter((each) => 'rule' in each).length,
        text.match(/^\t\t(?!type|size|flags|timeout|elements|packets|\t|map|set)/gm)?.length,
      );
      assert.deepEqual(await set('peers'), [`1 . ${at(2)}`]);
      assert.deepEqual(await set('networks'), [`1 . ${at(16)}-${at(40)}`, `1 . ${at(300)}`]);
      assert.deepEqual(await set('ports'), ['2 . sctp . 1-65535', '2 . tcp . 80-90']);
      assert.deepEqual(await set('named-ports'), [`2 . ${at(2)} . tcp . 8080`]);
      assert.deepEqual(await set('hairpin-pods'), [`${at(1)} . ${at(1)}`]);
      const found = await nft(
        'get',
        'element',
        ip,
        'portwide-policy',
        'networks',
        `{ 1 . ${at(20)} }`,
      );
      assert.ok(found.includes(`1 . ${at(16)}-${at(40)}`), found);
    });

    it('applies a change in three transactions and omits empty ones', async () => {
      await all({
        chains: [policySetChain('egress', 1, [chainRule({ peers: peers(1) })])],
        elements: [peer(1, 2), peer(1, 3), pod(1, 1), { set: 'hairpin-pods', address: at(1) }],
      });
      await helper.call('policyLog', 'agent');
      const apply = async (fields: Parameters<typeof policyChange>[1]) => {
        const change = policyChange(family, fields);
        assert.equal(await helper.call('policyApply', 'agent', change), undefined);
        return await helper.call('policyLog', 'agent');
      };
      assert.deepEqual(await apply({}), []);
      assert.deepEqual(await apply({ add: [peer(1, 4)], remove: [peer(1, 3)] }), [
        'delete peers 1, add peers 1',
      ]);
      // A new policy set, whose chain exists before a pod uses it, and a changed policy set.
      const twofold = policySetChain(
        'egress',
        1,
        [DENY_REST],
        [chainRule({ verdict: 'pass', peers: peers(5) })],
      );
      assert.deepEqual(
        await apply({
          prepare: [peer(5, 7)],
          remove: [pod(1, 1)],
          add: [pod(1, 2), pod(2, 1)],
          chains: [policySetChain('egress', 2, [DENY_REST]), twofold],
          cleanup: [peer(1, 2), peer(1, 4)],
        }),
        [
          'add peers 1, fill egress-2, fill egress-1-lower-tiers',
          'delete egress-pods 1, add egress-pods 2, fill egress-1',
          'delete peers 2',
        ],
      );
      assert.deepEqual(
        await apply({
          remove: [pod(1, 2)],
          chains: [policySetChain('egress', 1, [DENY_REST])],
          cleanup: [peer(5, 7)],
          cleanupChains: [{ direction: 'egress', policySetId: 2 }],
        }),
        [
          'delete egress-pods 1, fill egress-1',
          'delete peers 1, remove egress-1-lower-tiers egress-2',
        ],
      );
      const left = {
        chains: [policySetChain('egress', 1, [DENY_REST])],
        elements: [pod(2, 1), { set: 'hairpin-pods', address: at(1) } as const],
      };
      const stepwise = await state();
      await all(left);
      assert.deepEqual(await state(), stepwise);
    });

    it('replaces the table of an earlier agent with other list ids and keeps its FQDN cache', async () => {
      await all(everything(family), {
        elements: [{ set: 'fqdn-peers', list: 1, address: at(9), timeoutMs: 60_000 }],
        entries: [{ name: 'www.example.com', address: at(9), timeoutMs: 60_000 }],
      });
      await namespace.run(
        'nft',
        `add chain ${ip} portwide-policy unknown-chain; add set ${ip} portwide-policy unknown-set { type mark; }`,
      );
      await helper.call('policyStart', 'agent', { family });
      const now: TableState = {
        chains: [policySetChain('ingress', 1, [DENY_REST])],
        elements: [peer(1, 77), { set: 'ingress-pods', address: at(5), policySetId: 1 }],
      };
      await all(now, {
        elements: [{ set: 'fqdn-peers', list: 3, address: at(9), timeoutMs: 60_000 }],
        entries: [],
      });
      assert.deepEqual(await set('peers'), [`1 . ${at(77)}`]);
      assert.match((await set('fqdn-peers')).join(), /^3 \. \S+ timeout 1m expires \S+$/);
      const [answer, ...others] = await helper.call('policyFqdnEntries', 'agent');
      assert.deepEqual([answer?.name, answer?.address, others], ['www.example.com', at(9), []]);
      const after = await state();
      const chains = Object.keys(after).filter((name) =>
        /unknown|^chain (in|e)gress-\d/.test(name),
      );
      assert.deepEqual(chains, ['chain ingress-1']);
      await helper.call('hold', `delete table ${ip} portwide-policy`, 'nft', '-f', '-');
      await all(now);
      const fresh = await state();
      assert.deepEqual({ ...after, 'set fqdn-peers': [], 'set fqdn-cache': [] }, fresh);
    });

    it('adds no FQDN addresses to the table of an earlier agent, whose list ids differ', async () => {
      await all(everything(family));
      const before = await state();
      await helper.call('policyStart', 'agent', { family });
      const learn = () =>
        helper.call(
          'policyAddFqdn',
          'agent',
          [{ set: 'fqdn-peers', list: 1, address: at(9), timeoutMs: 60_000 }],
          [{ name: 'www.example.com', address: at(9), timeoutMs: 60_000 }],
        );
      await learn();
      const refused = { chains: [], elements: [pod(1, 404)] };
      assert.notEqual(await helper.call('policyReplaceAll', 'agent', refused), undefined);
      await learn();
      assert.deepEqual(await state(), before);
      await all(everything(family));
      await learn();
      assert.equal((await set('fqdn-peers')).length, 1);
    });

    it('replaces a table of another version', async () => {
      const old = `table ${ip} portwide-policy {
        set peers { type ${ip === 'ip' ? 'ipv4' : 'ipv6'}_addr; }
        chain forward { type filter hook forward priority -5; }
      }`;
      await helper.call('hold', old, 'nft', '-f', '-');
      await all(everything(family));
      const replaced = await state();
      await nft('delete', 'table', ip, 'portwide-policy');
      await all(everything(family));
      assert.deepEqual(await state(), replaced);
    });

    it('keeps the staging table when interrupted, and reads the FQDN cache from it', async () => {
      const entries = [{ name: 'www.example.com', address: at(9), timeoutMs: 60_000 }];
      await all(everything(family), { elements: [], entries });
      const complete = await state();
      await helper.call('policyLog', 'agent');
      // The staging table is complete; the policy table has no rules yet.
      await helper.call('policyFailAfter', 'agent', 3);
      await assert.rejects(
        helper.call('policyReplaceAll', 'agent', everything(family)),
        /broken off/,
      );
      assert.deepEqual((await state())['chain forward'], []);
      const tables = async () => (await nft('list', 'tables', ip)).split('\n').sort();
      assert.deepEqual(await tables(), [
        `table ${ip} portwide-policy`,
        `table ${ip} portwide-policy-staging`,
      ]);

      await helper.call('policyStart', 'agent', { family });
      const [answer] = await helper.call('policyFqdnEntries', 'agent');
      assert.equal(answer?.name, 'www.example.com');
      await all(everything(family));
      const log = await helper.call('policyLog', 'agent');
      assert.deepEqual(
        log.map((line) => line.startsWith('staging')),
        [false, false],
      );
      assert.deepEqual(await tables(), [`table ${ip} portwide-policy`]);
      assert.deepEqual(await state(), complete);
    });

    it('keeps counters when the table is replaced', async () => {
      await all(everything(family));
      await namespace.run(
        'nft',
        'insert',
        'rule',
        ip,
        'portwide-policy',
        'output',
        'counter',
        'name',
        'deny-admin-egress',
      );
      await namespace.run('ping', '-c1', '-n', ip === 'ip' ? '127.0.0.1' : '::1');
      const denied = await helper.call('policyDenied', 'agent');
      const packets = denied.find(
        (each) => each.denial === 'deny-admin' && each.direction === 'egress',
      );
      assert.ok((packets?.packets ?? 0) > 0);
      assert.equal(denied.filter((each) => each.packets === 0).length, 5);
      const meanwhile = () => helper.call('policyDeniedDuringReplace', 'agent', everything(family));
      assert.deepEqual(await meanwhile(), denied);
      assert.deepEqual(await helper.call('policyDenied', 'agent'), denied);
      await helper.call('policyStart', 'agent', { family });
      assert.deepEqual(await meanwhile(), [], 'an agent without an earlier result');
      assert.deepEqual(await helper.call('policyDenied', 'agent'), denied);
    });

    it('enforces without log rules when the kernel has no nflog', async () => {
      await helper.call('policyStart', 'agent', { family, logGroup: 5 });
      await helper.call('policyWithout', 'agent', 'log');
      await all(everything(family));
      const log = await helper.call('policyLog', 'agent');
      assert.deepEqual(
        log.filter((line) => line.startsWith('warning')),
        ['warning: cannot log denied packets (5): rule 0 of chain deny-admin-ingress: ENOENT'],
      );
      const chain = await nft('list', 'chain', ip, 'portwide-policy', 'deny-baseline-egress');
      assert.match(chain, /counter name "deny-baseline-egress" drop/);
    });

    it('enforces without queueing DNS packets when the kernel has no NFQUEUE, and says so when asked', async () => {
      await helper.call('policyWithout', 'agent', 'target');
      await all(everything(family));
      assert.doesNotMatch(
        await nft('list', 'chain', ip, 'portwide-policy', 'dns-queue'),
        /queue num/,
      );
      assert.match(
        (await helper.call('policyQueueDns', 'agent', [at(1)])) ?? '',
        /rule 0 of chain dns-queue/,
      );
      assert.equal(await helper.call('policyQueueDns', 'agent', []), undefined);
    });

    it('queues DNS packets of the given resolvers, until they expire', async () => {
      const queue = async (...numbers: readonly number[]) =>
        assert.equal(await helper.call('policyQueueDns', 'agent', numbers.map(at)), undefined);
      const resolvers = async () =>
        (await set('dns-resolvers')).map((element) => element.split(' ')[0]).join();
      await queue(1);
      await all(everything(family));
      for (const numbers of [[1, 2], [2], []]) {
        // They expire after two seconds.
        await waitFor(`resolvers ${numbers.join()}`, async () => {
          await queue(...numbers);
          return (await resolvers()) === numbers.map(at).join();
        });
      }
      await queue(3);
      await waitFor('resolvers expire', async () => (await resolvers()) === '');
    });

    it('queues DNS packets by the table in force while its content is unknown, and says so without a table', async () => {
      const queue = (number: number) => helper.call('policyQueueDns', 'agent', [at(number)]);
      await all(everything(family));
      await queue(1);
      await helper.call('policyLog', 'agent');
      // The staging table is in force; the policy table has no rules yet.
      await helper.call('policyFailAfter', 'agent', 3);
      await assert.rejects(
        helper.call('policyReplaceAll', 'agent', everything(family)),
        /broken off/,
      );
      const [, committed] = await helper.call('policyLog', 'agent');
      assert.match(committed ?? '', /commit-marker, add dns-resolvers 1, delete-table/);
      await helper.call('policyFailAfter', 'agent', 1000);
      const queues = async (number: number) =>
        // They expire after two seconds.
        await waitFor(`resolver ${number}`, async () => {
          assert.equal(await queue(number), undefined);
          const elements = await set('dns-resolvers', 'portwide-policy-staging');
          return elements.some((element) => element.startsWith(`${at(number)} `));
        });
      await queues(2);
      // The next agent has not written yet.
      await helper.call('policyStart', 'agent', { family });
      await queues(3);

      await nft('flush', 'ruleset');
      await helper.call('policyStart', 'agent', { family });
      assert.equal(await queue(4), undefined);
      await helper.call('policyFailAfter', 'agent', 0);
      await assert.rejects(
        helper.call('policyReplaceAll', 'agent', everything(family)),
        /broken off/,
      );
      await helper.call('policyFailAfter', 'agent', 1000);
      assert.match((await queue(5)) ?? '', /ENOENT/);
    });

    it('reports the refused element, or the refused rule with its policy', async () => {
      const chains = [policySetChain('egress', 1, [DENY_REST])];
      await all({ chains, elements: [pod(1, 1), peer(1, 2)] });
      const before = await state();
      const refused = await helper.call(
        'policyApply',
        'agent',
        policyChange(family, { add: [peer(1, 4)], remove: [peer(1, 2), peer(9, 9)] }),
      );
      assert.deepEqual([refused?.set, refused?.element], ['peers', peer(9, 9)]);
      assert.match(refused?.message ?? '', /"list":9.*delete element .* in set peers: ENOENT/);
      assert.deepEqual(await state(), before);

      await nft('delete', 'set', ip, 'portwide-policy', 'fqdn-peers');
      const rule = chainRule({
        peers: peers(1, 'fqdn-peers'),
        comment: 'NetworkPolicy d/w spec.egress[0]',
      });
      const again = await helper.call(
        'policyApply',
        'agent',
        policyChange(family, { chains: [policySetChain('egress', 1, [DENY_REST, rule])] }),
      );
      assert.deepEqual([again?.policySetId, again?.rule], [1, 'NetworkPolicy d/w spec.egress[0]']);
      assert.match(
        again?.message ?? '',
        /spec.egress\[0\]: rule 1 of chain egress-1, expression lookup: ENOENT/,
      );
    });

    it('has no tables after cleanup, in both IP families', async () => {
      assert.equal(await helper.call('policyDeleteTables'), 0);
      await all(everything(family));
      await nft('add', 'table', ip, 'portwide-policies');
      await nft('add', 'table', 'inet', 'portwide-policy');
      await nft('add', 'table', ip, 'portwide-policy-staging');
      assert.equal(await helper.call('policyDeleteTables'), 2);
      const left = (await nft('list', 'tables')).split('\n').sort();
      assert.deepEqual(left, [`table inet portwide-policy`, `table ${ip} portwide-policies`]);
      assert.deepEqual(await helper.call('policyFqdnEntries', 'agent'), []);
      assert.ok((await helper.call('policyDenied', 'agent')).every(({ packets }) => packets === 0));
    });

    describe('FQDN addresses', () => {
      const fqdnPeer = (number: number, timeoutMs: number, list = 1) =>
        ({ set: 'fqdn-peers', list, address: at(number), timeoutMs }) as const;
      /** Remaining seconds by element, rounded up to tens: nft takes some time. */
      const left = async (name: string) => {
        const found: Record<string, number> = {};
        for (const line of await set(name)) {
          const [, key = '', time = ''] = /^(.*?) timeout \S+ expires (\S+)/.exec(line) ?? [];
          const [, m = 0, s = 0, ms = 0] =
            /^(?:(\d+)m(?!s))?(?:(\d+)s)?(?:(\d+)ms)?$/.exec(time) ?? [];
          const seconds = Number(m) * 60 + Number(s) + Number(ms) / 1000;
          found[key] = 10 * Math.ceil(seconds / 10);
        }
        return found;
      };

      beforeEach(() => all({ chains: [], elements: [] }));

      it('get the longest timeout for each list and address', async () => {
        await helper.call('policyAddFqdn', 'agent', [fqdnPeer(1, 100_000), fqdnPeer(2, 50_000)]);
        await helper.call('policyAddFqdn', 'agent', [
          fqdnPeer(1, 50_000),
          fqdnPeer(2, 100_000),
          fqdnPeer(1, 70_000, 2),
          fqdnPeer(1, 30_000, 2),
        ]);
        assert.deepEqual(await left('fqdn-peers'), {
          [`1 . ${at(1)}`]: 100,
          [`1 . ${at(2)}`]: 100,
          [`2 . ${at(1)}`]: 70,
        });
        assert.deepEqual((await helper.call('policyLog', 'agent')).slice(2), [
          'add fqdn-peers 2',
          'add fqdn-peers 2, delete fqdn-peers 1, add fqdn-peers 1',
        ]);
      });

      it('are not refreshed when the timeout would grow by less than a second', async () => {
        await helper.call('policyAddFqdn', 'agent', [fqdnPeer(1, 100_000)]);
        await helper.call('policyLog', 'agent');
        await helper.call('policyAddFqdn', 'agent', [fqdnPeer(1, 100_500)]);
        assert.deepEqual(await helper.call('policyLog', 'agent'), []);
      });

      it('are added again after they have expired', async () => {
        await helper.call('policyAddFqdn', 'agent', [fqdnPeer(1, 60)]);
        await waitFor('the element expires', async () => (await set('fqdn-peers')).length === 0);
        await helper.call('policyAddFqdn', 'agent', [fqdnPeer(1, 60_000)]);
        assert.deepEqual(await left('fqdn-peers'), { [`1 . ${at(1)}`]: 60 });
      });

      it('get their full timeout when they expire during the refresh', async () => {
        for (let round = 0; round < 40; round++) {
          await helper.call('policyAddFqdn', 'agent', [fqdnPeer(round, 20 + (round % 5))]);
          await helper.call('policyAddFqdn', 'agent', [fqdnPeer(round, 60_000)]);
        }
        assert.equal((await set('fqdn-peers')).length, 40);
      });

      it('are removed, whether they exist or not', async () => {
        const cacheEntry = (name: string, number: number) =>
          ({ name, address: at(number), timeoutMs: 60_000 }) as const;
        await helper.call(
          'policyAddFqdn',
          'agent',
          [fqdnPeer(1, 60_000), fqdnPeer(1, 60_000, 2), fqdnPeer(2, 60_000)],
          [cacheEntry('a.example', 1), cacheEntry('b.example', 1)],
        );
        await helper.call(
          'policyRemoveFqdn',
          'agent',
          [fqdnPeer(1, 0), fqdnPeer(1, 0), fqdnPeer(9, 0)],
          [cacheEntry('a.example', 1), cacheEntry('c.example', 1)],
        );
        assert.deepEqual(await left('fqdn-peers'), { [`1 . ${at(2)}`]: 60, [`2 . ${at(1)}`]: 60 });
        const answers = await helper.call('policyFqdnEntries', 'agent');
        assert.deepEqual(
          answers.map(({ name }) => name),
          ['b.example'],
        );
        assert.equal((await helper.call('policySizes', 'agent'))['fqdn-peers'], 2);
      });

      it('can be added again after a removal', async () => {
        await helper.call('policyAddFqdn', 'agent', [fqdnPeer(1, 60_000)]);
        await helper.call('policyReaddFqdn', 'agent', [fqdnPeer(1, 50_000)]);
        assert.deepEqual(await left('fqdn-peers'), { [`1 . ${at(1)}`]: 50 });
      });

      it('can be added while the table is replaced', async () => {
        const state = { chains: [], elements: [] };
        const [before, after] = [fqdnPeer(1, 60_000), fqdnPeer(2, 60_000)];
        await helper.call('policyAddFqdnAroundReplace', 'agent', state, before, after);
        assert.deepEqual(await left('fqdn-peers'), { [`1 . ${at(1)}`]: 60, [`1 . ${at(2)}`]: 60 });
      });

      it('are batched into few transactions', async () => {
        await helper.call('policyLog', 'agent');
        const many = Array.from({ length: 200 }, (_, index) => fqdnPeer(index, 60_000));
        await helper.call('policyAddFqdnEach', 'agent', many);
        assert.equal((await set('fqdn-peers')).length, 200);
        assert.ok((await helper.call('policyLog', 'agent')).length <= 2);
      });

      it('are stored in the FQDN cache under each name', async () => {
        const answers = [
          { name: 'www.example.com', address: at(1), timeoutMs: 60_000 },
          { name: 'other.example.com', address: at(1), timeoutMs: 100_000 },
          { name: `${'a'.repeat(63)}.`.repeat(4).slice(0, 251), address: at(2), timeoutMs: 60_000 },
        ];
        const odd = ['a"b', 'a b', 'é', `${'a'.repeat(63)}.`.repeat(4).slice(0, 253), ''].map(
          (name) => ({
            name,
            address: at(3),
            timeoutMs: 60_000,
          }),
        );
        await helper.call('policyAddFqdn', 'agent', [], [...answers, ...odd]);
        const found = await helper.call('policyFqdnEntries', 'agent');
        const sorted = found.toSorted((a, b) => (a.name < b.name ? -1 : 1));
        assert.deepEqual(
          sorted.map(({ name, address }) => ({ name, address })),
          answers
            .map(({ name, address }) => ({ name, address }))
            .sort((a, b) => (a.name < b.name ? -1 : 1)),
        );
        const other = found.find(({ name }) => name === 'other.example.com');
        assert.ok((other?.timeoutMs ?? 0) > 90_000 && (other?.timeoutMs ?? 0) <= 100_000);
        await nft('list', 'ruleset');
      });

      it('are merged with the stored FQDN cache when the table is replaced', async () => {
        await helper.call(
          'policyAddFqdn',
          'agent',
          [fqdnPeer(1, 60_000)],
          [
            { name: 'a.example', address: at(1), timeoutMs: 100_000 },
            { name: 'b.example', address: at(1), timeoutMs: 50_000 },
          ],
        );
        await all(
          { chains: [], elements: [] },
          {
            elements: [fqdnPeer(2, 60_000, 4)],
            entries: [
              { name: 'a.example', address: at(1), timeoutMs: 50_000 },
              { name: 'b.example', address: at(1), timeoutMs: 100_000 },
              { name: 'c.example', address: at(1), timeoutMs: 100_000 },
            ],
          },
        );
        assert.deepEqual(await left('fqdn-peers'), { [`4 . ${at(2)}`]: 60 });
        const answers = await helper.call('policyFqdnEntries', 'agent');
        assert.deepEqual(
          // The later end, also if the steps before took some seconds.
          answers.map(({ name, timeoutMs }) => [name, timeoutMs > 50_000]).sort(),
          [
            ['a.example', true],
            ['b.example', true],
            ['c.example', true],
          ],
        );
        // The full write has set these timeouts.
        await helper.call('policyLog', 'agent');
        await helper.call(
          'policyAddFqdn',
          'agent',
          [fqdnPeer(2, 59_000, 4), fqdnPeer(1, 59_000)],
          [{ name: 'c.example', address: at(1), timeoutMs: 90_000 }],
        );
        assert.deepEqual(await helper.call('policyLog', 'agent'), ['add fqdn-peers 1']);
      });
    });
  });
}
