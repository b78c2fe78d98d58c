import assert from 'node:assert/strict';
import type { Protocol } from '../../../api/objects.ts';
import { iptablesChains } from '../../../preflight/iptables-rules.ts';
import { nftChains } from '../../../preflight/nft-rules.ts';
import type { BaseChain, Match, Verdict } from '../../../preflight/packet-walk.ts';
import type { Fact } from '../../../preflight/result.ts';
import type { ComputedTrace } from '../../../status/api/trace.ts';
import { withForeignRules } from '../../../status/trace/foreign-steps.ts';

const NODE = '192.0.2.7';
const CONTEXT = { nodeAddresses: [NODE], forwardsWithIpvs: false, foreignRulesAge: 0 };
const RESULT = {
  step: 'result',
  title: 'Result',
  decision: 'the packet reaches one of 2 endpoints',
  object: 'Service default/web',
  detail: ['x'],
} as const;

const endpoint = (address: string, masqueraded = false) => ({
  ...{ address, port: 8080, local: true, masqueraded, policy: null, foreignRules: null },
});

const path = (fields: Partial<ComputedTrace> = {}): ComputedTrace => ({
  family: 'IPv4',
  source: '10.244.1.5',
  destination: '10.96.0.10',
  steps: [RESULT],
  verdict: 'translated',
  unserved: false,
  endpoints: [endpoint('10.244.1.11'), endpoint('10.244.1.12')],
  speaksAs: [],
  uncertain: [],
  ...fields,
});

const chain = (
  hook: BaseChain['hook'],
  matches: readonly Match[],
  kind: (Verdict & { readonly chain?: never })['kind'],
): BaseChain => ({
  table: 'inet firewall',
  chain: hook,
  hook,
  priority: 5,
  policy: 'accept',
  chains: new Map([[hook, [{ matches, verdict: { kind } }]]]),
});
const to = (cidr: string): Match => ({ kind: 'destination', cidrs: [cidr], negated: false });
const place = (hook: string) =>
  `table inet firewall, base chain ${hook} (priority 5, policy accept)`;
const none = (count: number, hooks: string) =>
  `none of ${count} base chains at ${hooks} drops or masquerades the packet`;

const evaluate = async (
  chains: readonly BaseChain[],
  of = path(),
  protocol: Protocol = 'TCP',
  port = 80,
  context = CONTEXT,
) => {
  const fact: Fact<readonly BaseChain[]> = { value: chains };
  const { path: evaluated, effects } = await withForeignRules(of, protocol, port, fact, context);
  const step = evaluated.steps.find((each) => each.step === 'foreignRules');
  return { ...evaluated, step, effects };
};

describe('trace: rules of other programs', () => {
  it('takes UDP packets of owned ports as untracked: neither new nor masqueraded', async () => {
    const slice = { ...RESULT, step: 'slice' } as const;
    const owned = path({ steps: [slice, RESULT], endpoints: [endpoint('10.244.1.11')] });
    const state = (name: string): Match => ({ kind: 'state', states: [name], negated: false });
    const hasEffect = async (chains: readonly BaseChain[]) => {
      const { step } = await evaluate(chains, owned, 'UDP', 20_104);
      return step?.decision.startsWith('none of') === false;
    };
    assert.equal(await hasEffect([chain('forward', [state('new')], 'drop')]), false);
    assert.equal(await hasEffect([chain('postrouting', [], 'masquerade')]), false);
    assert.equal(await hasEffect([chain('forward', [state('untracked')], 'drop')]), true);
    const onlyEstablished = {
      ...chain('forward', [state('established')], 'accept'),
      policy: 'drop',
    };
    assert.equal(await hasEffect([onlyEstablished as BaseChain]), true);
  });

  it('see the owner of a UDP port from priority raw on, and its packets untracked from there', async () => {
    const slice = { ...RESULT, step: 'slice' } as const;
    const endpoints = [endpoint('10.244.1.11')];
    const verdictOf = async (
      match: Match,
      hook: 'prerouting' | 'output',
      priority: number,
      protocol: Protocol = 'UDP',
    ) => {
      const source = hook === 'output' ? NODE : '10.244.1.5';
      const owned = path({ source, steps: [slice, RESULT], endpoints });
      const base = { ...chain(hook, [match], 'drop'), priority };
      return (await evaluate([base], owned, protocol, 20_104)).verdict;
    };
    const [VIP, OWNER] = [to('10.96.0.10/32'), to('10.244.1.11/32')];
    for (const hook of ['prerouting', 'output'] as const) {
      assert.equal(await verdictOf(VIP, hook, -301), 'dropped');
      assert.equal(await verdictOf(VIP, hook, -150), 'translated');
      assert.equal(await verdictOf(OWNER, hook, -301), 'translated');
      assert.equal(await verdictOf(OWNER, hook, -150), 'dropped');
      // Connections are translated by NAT.
      assert.equal(await verdictOf(VIP, hook, -150, 'TCP'), 'dropped');
      assert.equal(await verdictOf(OWNER, hook, -150, 'TCP'), 'translated');
    }
    const untracked: Match = { kind: 'state', states: ['untracked'], negated: false };
    assert.equal(await verdictOf(untracked, 'prerouting', -301), 'translated');
    assert.equal(await verdictOf(untracked, 'prerouting', -250), 'dropped');
  });

  it('see the VIP as the source of an owner after hook postrouting has changed it', async () => {
    const from = (address: string): Match => ({
      ...{ kind: 'source', cidrs: [`${address}/32`], negated: false },
    });
    const [OWNER, VIP] = ['10.244.1.5', '10.96.0.20'];
    const verdictOf = async (match: Match, priority: number, destination = '198.51.100.9') => {
      const hook = destination === NODE ? 'input' : 'postrouting';
      const sent = path({ verdict: 'untouched', endpoints: [], destination });
      const base = { ...chain(hook, [match], 'drop'), priority };
      const context = { ...CONTEXT, speaksAs: VIP };
      return (await evaluate([base], sent, 'UDP', 9000, context)).verdict;
    };
    assert.equal(await verdictOf(from(OWNER), 100), 'dropped');
    assert.equal(await verdictOf(from(OWNER), 102), 'untouched');
    assert.equal(await verdictOf(from(VIP), 100), 'untouched');
    assert.equal(await verdictOf(from(VIP), 102), 'dropped');
    assert.equal(await verdictOf(from(OWNER), 119, NODE), 'dropped');
    assert.equal(await verdictOf(from(VIP), 121, NODE), 'dropped');
    const untracked: Match = { kind: 'state', states: ['untracked'], negated: false };
    assert.equal(await verdictOf(untracked, 0), 'dropped');
  });

  it('that drop the packet to each endpoint decide', async () => {
    const { step, verdict, steps, endpoints } = await evaluate([chain('forward', [], 'drop')]);
    assert.equal(step?.decision, `${place('forward')} drops the packet`);
    assert.equal(verdict, 'dropped');
    assert.equal(steps.at(-1)?.decision, 'the packet is dropped by another program');
    assert.equal(endpoints.length, 2);
  });

  it('are named, with reject for a drop that tells the source', async () => {
    const rules = [
      '-A FORWARD -p udp -j DROP',
      '-A FORWARD -m comment --comment "no web" -j REJECT',
    ];
    const saved = ['*filter', ':FORWARD ACCEPT [0:0]', ...rules].join('\n');
    const iptables = iptablesChains('filter', saved, 'ip filter (iptables-nft)');
    const rejected = await evaluate(iptables);
    assert.equal(
      rejected.step?.decision,
      'table ip filter (iptables-nft), base chain FORWARD (priority 0, policy accept), rule -m comment --comment "no web" -j REJECT rejects the packet',
    );
    assert.equal(rejected.verdict, 'rejected');
    assert.equal(rejected.steps.at(-1)?.decision, 'the packet is rejected by another program');
    const base = { type: 'filter', hook: 2, priority: 10, policy: 1 };
    const drop = { matches: [], verdict: { kind: 'drop' } } as const;
    const guard = { chain: 'guard', handle: 7, comment: 'no web', rules: [drop] };
    const listed = { chains: [{ name: 'guard', base }], rules: [guard] };
    const dropped = await evaluate(nftChains({ family: 1, name: 'corp' }, listed));
    assert.equal(
      dropped.step?.decision,
      'table inet corp, base chain guard (priority 10, policy accept), rule 1 (handle 7: no web) drops the packet',
    );
    assert.equal(dropped.verdict, 'dropped');
  });

  it('that drop the packet to some endpoints are named with them', async () => {
    const { step, verdict, steps, endpoints } = await evaluate([
      chain('forward', [to('10.244.1.12/32')], 'drop'),
    ]);
    assert.equal(step?.decision, `${place('forward')} (to 10.244.1.12:8080) drops the packet`);
    assert.equal(verdict, 'translated');
    assert.equal(
      steps.at(-1)?.decision,
      'the packet reaches one of 2 endpoints; rules of other programs drop packets to 1 of 2 endpoints, so some connections fail',
    );
    assert.deepEqual(
      endpoints.map(({ foreignRules }) => foreignRules),
      ['pass', 'drop'],
    );
  });

  it('that drop the packet to each endpoint by different rules decide', async () => {
    const { verdict, endpoints } = await evaluate([
      chain('forward', [to('10.244.1.12/32')], 'drop'),
      chain('prerouting', [to('10.244.1.11/32')], 'drop'),
    ]);
    assert.equal(verdict, 'dropped');
    assert.deepEqual(
      endpoints.map(({ foreignRules }) => foreignRules),
      ['drop', 'drop'],
    );
  });

  it('are evaluated in slices, also within one chain', async () => {
    const rules = Array.from({ length: 50_000 }, () => ({
      matches: [to('198.51.100.0/24'), to('203.0.113.0/24')],
      verdict: { kind: 'drop' } as const,
    }));
    const base = { ...chain('forward', [], 'drop'), chains: new Map([['forward', rules]]) };
    let [turns, isDone] = [0, false];
    const countTurns = () => {
      turns += 1;
      if (!isDone) setImmediate(countTurns);
    };
    setImmediate(countTurns);
    const { verdict } = await evaluate([base], path({ endpoints: [endpoint('10.244.1.11')] }));
    isDone = true;
    assert.equal(verdict, 'translated');
    assert.ok(turns >= 5, `${turns} turns`);
  });

  it('and policies leave no endpoint', async () => {
    const [first, second] = [endpoint('10.244.1.11'), endpoint('10.244.1.12')];
    const given = path({
      endpoints: [
        { ...first, policy: 'deny' },
        { ...second, policy: 'allow' },
      ],
    });
    const result = async (address: string) => {
      const { verdict, steps } = await evaluate([chain('forward', [to(address)], 'drop')], given);
      return [verdict, steps.at(-1)?.decision];
    };
    assert.deepEqual(await result('10.244.1.12/32'), [
      'dropped',
      'the packet is dropped: by network policies to some endpoints, by other programs to the others',
    ]);
    assert.deepEqual(await result('10.244.1.11/32'), [
      'translated',
      'the packet reaches one of 2 endpoints; policies allow 1 of 2 endpoints; rules of other programs drop packets to 1 of 2 endpoints, so some connections fail',
    ]);
  });

  it('are evaluated for some of many endpoints', async () => {
    const endpoints = Array.from({ length: 12 }, (_, index) => endpoint(`10.244.1.${index + 1}`));
    const evaluated = await evaluate([], path({ endpoints }));
    assert.deepEqual(evaluated.uncertain, [
      'rules of other programs are evaluated for 10 of 12 endpoints, and may do something else to the others',
    ]);
    assert.deepEqual(
      evaluated.endpoints.slice(8).map(({ foreignRules }) => foreignRules),
      ['pass', 'pass', null, null],
    );
  });

  it('do not decide for endpoints that were not evaluated', async () => {
    const addresses = Array.from({ length: 12 }, (_, at) => `10.244.1.${at + 11}`);
    const of = path({ endpoints: addresses.map((address) => endpoint(address)) });
    const { verdict, steps } = await evaluate([chain('forward', [], 'drop')], of);
    assert.equal(verdict, 'translated');
    assert.match(steps.at(-1)?.decision ?? '', /drop packets to 10 of 12 endpoints/);
  });

  it('at hook prerouting see the VIP or the endpoint', async () => {
    const VIP = '10.96.0.10/32';
    const verdictOf = async (
      cidr: string,
      priority: number,
      source = '10.244.1.5',
      forwardsWithIpvs = false,
    ) => {
      const base = { ...chain('prerouting', [to(cidr)], 'drop'), priority };
      const context = { ...CONTEXT, forwardsWithIpvs };
      return (await evaluate([base], path({ source }), 'TCP', 80, context)).verdict;
    };
    assert.equal(await verdictOf(VIP, -300), 'dropped');
    assert.equal(await verdictOf(VIP, -101), 'dropped');
    assert.equal(await verdictOf(VIP, -99), 'translated');
    assert.equal(await verdictOf('10.244.0.0/16', -300), 'translated');
    assert.equal(await verdictOf('10.244.0.0/16', -99), 'dropped');
    // Packets of the node enter it only if they stay there.
    assert.equal(await verdictOf('0.0.0.0/0', -300, NODE), 'translated');
    // IPVS translates later.
    assert.equal(await verdictOf(VIP, 0, '10.244.1.5', true), 'dropped');
    assert.equal(await verdictOf('10.244.0.0/16', 0, '10.244.1.5', true), 'translated');
    const toNode = path({ source: NODE, endpoints: [endpoint(NODE)] });
    const base = { ...chain('prerouting', [to(`${NODE}/32`)], 'drop'), priority: -300 };
    assert.equal((await evaluate([base], toNode)).verdict, 'dropped');
  });

  it('see no state before connection tracking', async () => {
    const state = (name: string): Match => ({ kind: 'state', states: [name], negated: false });
    const verdictOf = async (name: string, priority: number) =>
      (await evaluate([{ ...chain('prerouting', [state(name)], 'drop'), priority }])).verdict;
    assert.equal(await verdictOf('new', -300), 'translated');
    assert.equal(await verdictOf('new', -150), 'dropped');
    assert.equal(await verdictOf('invalid', -300), 'dropped');
    assert.equal(await verdictOf('invalid', -150), 'translated');
  });

  it('at hook postrouting see the node as source after masquerade', async () => {
    const from: Match = { kind: 'source', cidrs: [`${NODE}/32`], negated: false };
    const verdictOf = async (priority: number, masqueraded: boolean) => {
      const endpoints = [endpoint('10.244.1.11', masqueraded)];
      const base = { ...chain('postrouting', [from], 'drop'), priority };
      return (await evaluate([base], path({ endpoints }))).verdict;
    };
    assert.equal(await verdictOf(-150, true), 'translated');
    assert.equal(await verdictOf(150, true), 'dropped');
    assert.equal(await verdictOf(150, false), 'translated');
  });

  it('of interfaces and bridges are named, and not evaluated', async () => {
    const { step, uncertain, verdict } = await evaluate([chain('other', [], 'drop')]);
    assert.equal(step?.decision, none(0, 'prerouting, forward, postrouting'));
    assert.equal(verdict, 'translated');
    assert.deepEqual(uncertain, [
      'rules of interfaces and bridges are not evaluated: base chain other of table inet firewall',
    ]);
  });

  it('that masquerade the packet change no verdict', async () => {
    const { step, verdict } = await evaluate([chain('postrouting', [], 'masquerade')]);
    assert.equal(step?.decision, `${place('postrouting')} masquerades the packet`);
    assert.equal(verdict, 'translated');
  });

  it('do not masquerade again', async () => {
    const endpoints = [endpoint('10.244.1.11', true)];
    const { step } = await evaluate([chain('postrouting', [], 'masquerade')], path({ endpoints }));
    assert.equal(step?.decision, none(1, 'prerouting, forward, postrouting'));
  });

  it('that depend on sets make the result uncertain', async () => {
    const { step, steps, verdict, uncertain } = await evaluate([
      chain('forward', [{ kind: 'unknown' }], 'drop'),
    ]);
    assert.equal(
      step?.decision,
      '1 of 1 base chains at prerouting, forward, postrouting may drop the packet',
    );
    assert.equal(
      steps.at(-1)?.decision,
      'the packet reaches one of 2 endpoints, unless a rule of another program drops it',
    );
    assert.equal(verdict, 'translated');
    assert.deepEqual(uncertain, [
      `${place('forward')} may drop the packet: it depends on sets or interfaces`,
    ]);
  });

  it('that were read a while ago have their age', async () => {
    const detailOf = async (foreignRulesAge: number) => {
      const context = { ...CONTEXT, foreignRulesAge };
      return (await evaluate([], path(), 'TCP', 80, context)).step?.detail;
    };
    assert.deepEqual(await detailOf(2), []);
    assert.deepEqual(await detailOf(40), ['as these rules were 40 seconds ago']);
  });

  it('match protocol and port after translation', async () => {
    const rules = [
      chain(
        'forward',
        [
          { kind: 'protocol', names: ['udp'], negated: false },
          { kind: 'port', ranges: [[8080, 8080]], negated: false },
        ],
        'drop',
      ),
    ];
    assert.equal((await evaluate(rules)).verdict, 'translated');
    assert.equal((await evaluate(rules, path(), 'UDP')).verdict, 'dropped');
    const untouched = path({ verdict: 'untouched', endpoints: [] });
    assert.equal((await evaluate(rules, untouched, 'UDP', 80)).verdict, 'untouched');
    assert.equal((await evaluate(rules, untouched, 'UDP', 8080)).verdict, 'dropped');
  });

  it('at hook input decide about packets to this node, and none at forward about packets from it', async () => {
    const rules = [chain('input', [], 'drop')];
    assert.equal((await evaluate(rules)).verdict, 'translated');
    const toNode = path({ endpoints: [endpoint(NODE)] });
    assert.equal((await evaluate(rules, toNode)).verdict, 'dropped');
    const fromNode = path({ source: NODE });
    assert.equal((await evaluate([chain('forward', [], 'drop')], fromNode)).verdict, 'translated');
  });

  it('at hook output decide about packets from this node, before or after translation', async () => {
    const output = (cidr: string, priority: number) => ({
      ...chain('output', [to(cidr)], 'drop'),
      priority,
    });
    const verdictOf = async (base: BaseChain, source = NODE, forwardsWithIpvs = false) =>
      (await evaluate([base], path({ source }), 'TCP', 80, { ...CONTEXT, forwardsWithIpvs }))
        .verdict;
    assert.equal(await verdictOf(output('10.244.0.0/16', 0)), 'dropped');
    assert.equal(await verdictOf(output('10.96.0.10/32', 0)), 'translated');
    assert.equal(await verdictOf(output('10.96.0.10/32', -300)), 'dropped');
    assert.equal(await verdictOf(output('10.244.0.0/16', -300)), 'translated');
    assert.equal(await verdictOf(output('10.244.0.0/16', 0), '10.244.1.5'), 'translated');
    // IPVS sends each packet to its endpoint through hook output.
    assert.equal(await verdictOf(output('10.244.0.0/16', -300), '10.244.1.5', true), 'dropped');
    assert.equal(await verdictOf(output('10.244.0.0/16', -300), NODE, true), 'dropped');
    assert.equal(await verdictOf(output('10.96.0.10/32', -300), NODE, true), 'dropped');
    assert.equal(await verdictOf(output('10.96.0.10/32', 0), NODE, true), 'translated');
    assert.equal(await verdictOf(output('0.0.0.0/0', -300), NODE, true), 'dropped');
    const untouched = path({
      source: NODE,
      destination: '10.96.0.10',
      verdict: 'untouched',
      endpoints: [],
    });
    assert.equal((await evaluate([output('10.96.0.10/32', 0)], untouched)).verdict, 'dropped');
    const toNode = path({ source: NODE, endpoints: [endpoint(NODE)] });
    assert.equal((await evaluate([output('0.0.0.0/0', 0)], toNode)).verdict, 'dropped');
  });

  it('see interface lo if the packet stays on the node', async () => {
    const onlyLo = (hook: BaseChain['hook']): BaseChain => ({
      ...chain(hook, [{ kind: 'interface', name: 'lo', negated: false }], 'accept'),
      policy: 'drop',
    });
    const verdictOf = async (
      hook: BaseChain['hook'],
      { destination = '10.96.0.10', source = NODE, forwardsWithIpvs = false },
    ) => {
      const given = path({ source, destination, endpoints: [endpoint(NODE)] });
      const context = { ...CONTEXT, forwardsWithIpvs };
      return (await evaluate([onlyLo(hook)], given, 'TCP', 80, context)).verdict;
    };
    assert.equal(await verdictOf('input', {}), 'translated');
    assert.equal(await verdictOf('input', { source: '10.244.1.5' }), 'dropped');
    // Rules at hook output see the interface of the route to the VIP.
    assert.equal(await verdictOf('output', {}), 'dropped');
    for (const destination of [NODE, '127.0.0.1']) {
      assert.equal(await verdictOf('output', { destination }), 'translated');
    }
    assert.equal(await verdictOf('output', { forwardsWithIpvs: true }), 'translated');
    const otherInterface: Match = { kind: 'interface', name: 'eth0', negated: false };
    const stays = path({ source: NODE, endpoints: [endpoint(NODE)] });
    const { step, uncertain } = await evaluate([chain('input', [otherInterface], 'drop')], stays);
    assert.equal(step?.decision, none(1, 'prerouting, input, output, postrouting'));
    assert.deepEqual(uncertain, []);
  });

  it('are counted at the hooks that the packet passes', async () => {
    const hooks = ['input', 'forward', 'output', 'postrouting'] as const;
    const rules = hooks.map((hook) => chain(hook, [], 'accept'));
    const decisionOf = async (of: ComputedTrace) => (await evaluate(rules, of)).step?.decision;
    assert.equal(await decisionOf(path()), none(2, 'prerouting, forward, postrouting'));
    assert.equal(await decisionOf(path({ source: NODE })), none(2, 'output, postrouting'));
    assert.equal(
      await decisionOf(path({ endpoints: [endpoint(NODE)] })),
      none(1, 'prerouting, input'),
    );
  });

  it('with IPVS see packets at hook input before translation, and at no hook forward', async () => {
    const context = { ...CONTEXT, forwardsWithIpvs: true };
    const verdictOf = async (chains: readonly BaseChain[], of = path()) =>
      (await evaluate(chains, of, 'TCP', 80, context)).verdict;
    assert.equal(await verdictOf([chain('forward', [], 'drop')]), 'translated');
    assert.equal(await verdictOf([chain('input', [to('10.96.0.10/32')], 'drop')]), 'dropped');
    assert.equal(await verdictOf([chain('input', [to('10.244.0.0/16')], 'drop')]), 'translated');
    const fromNode = path({ source: NODE });
    assert.equal(await verdictOf([chain('input', [], 'drop')], fromNode), 'translated');
    const untouched = path({ verdict: 'untouched', endpoints: [] });
    assert.equal(await verdictOf([chain('forward', [], 'drop')], untouched), 'dropped');
  });

  for (const [title, fields] of [
    ['a packet that the proxy drops', { verdict: 'dropped' }],
    ['a packet that a policy denies', { verdict: 'denied' }],
  ] as const) {
    it(`are not evaluated for ${title}`, async () => {
      const given = path(fields);
      const rules: Fact<readonly BaseChain[]> = { value: [chain('forward', [], 'drop')] };
      assert.equal((await withForeignRules(given, 'TCP', 80, rules, CONTEXT)).path, given);
    });
  }

  it('are evaluated for a client outside, whose address is unknown', async () => {
    const external = path({ source: null });
    const certain = await evaluate([chain('forward', [to('10.244.1.0/24')], 'drop')], external);
    assert.equal(certain.verdict, 'dropped');
    assert.deepEqual(
      certain.effects.map(({ isCertain }) => isCertain),
      [true],
    );
    const from = (cidr: string): Match => ({ kind: 'source', cidrs: [cidr], negated: false });
    const possible = await evaluate([chain('forward', [from('192.0.2.0/24')], 'drop')], external);
    assert.equal(possible.verdict, 'translated');
    assert.deepEqual(possible.uncertain, [
      `${place('forward')} may drop the packet: it depends on the source address, sets or interfaces`,
    ]);
    assert.deepEqual(
      possible.effects.map(({ isCertain }) => isCertain),
      [false],
    );
    const all = await evaluate([chain('forward', [from('0.0.0.0/0')], 'drop')], external);
    assert.equal(all.verdict, 'dropped');
    // From hook postrouting on, the address is the node's.
    const masqueraded = path({ source: null, endpoints: [endpoint('10.244.1.11', true)] });
    const late = { ...chain('postrouting', [from(`${NODE}/32`)], 'drop'), priority: 200 };
    assert.equal((await evaluate([late], masqueraded)).verdict, 'dropped');
  });

  it('that were not read, or are too many, make the result uncertain', async () => {
    const notSeen = { notSeen: 'Operation not permitted' };
    const { uncertain } = (await withForeignRules(path(), 'TCP', 80, notSeen, CONTEXT)).path;
    assert.deepEqual(uncertain, ['rules of other programs were not read: Operation not permitted']);
    const loop: BaseChain = {
      ...chain('forward', [], 'accept'),
      chains: new Map([
        ['forward', [{ matches: [], verdict: { kind: 'jump', chain: 'forward' } }]],
      ]),
    };
    const evaluated = await evaluate([loop]);
    assert.deepEqual(evaluated.uncertain, [
      'rules of other programs: chains are nested too deeply',
    ]);
    assert.equal(evaluated.step, undefined);
  });
});
