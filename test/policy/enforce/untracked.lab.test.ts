/** UDP packets without connection tracking, as of ports owned by pods, under hand-written rules. */
import assert from 'node:assert/strict';
import { IP_FAMILIES } from '../../../api/objects.ts';
import type { PolicyElement, PolicySetChain } from '../../../policy/compile/change.ts';
import type { Direction } from '../../../policy/model/terms.ts';
import { type Host, PATIENCE } from '../../lab/lab.ts';
import { chainRule, DENY_REST, peers, policySetChain } from '../fixtures.ts';
import type { TableState } from '../policy-functions.ts';
import { type FamilyLab, HOST_PORT, PolicyLab } from '../policy-lab.ts';

/** Milliseconds to wait for an answer. */
const SHORT = 400;
const DIRECTIONS = ['ingress', 'egress'] as const;
/** What the policy of a pod does in one direction: nothing, deny everything, or allow its peers. */
const POLICIES = ['none', 'deny', 'allow'] as const;
type Policies = Readonly<Record<Direction, (typeof POLICIES)[number]>>;
const ALL_POLICIES: readonly Policies[] = POLICIES.flatMap((ingress) =>
  POLICIES.map((egress) => ({ ingress, egress })),
);

describe('untracked: UDP packets without connection tracking', function () {
  this.timeout(120_000 * PATIENCE);
  let policyLab: PolicyLab;
  let nextPort = 30_000;

  before(async () => {
    policyLab = await PolicyLab.create();
  });
  after(async () => policyLab?.destroy());

  /** Exempts all UDP packets on the node from connection tracking while `use` runs. */
  async function untracked<T>(use: () => Promise<T>): Promise<T> {
    const { node } = policyLab.lab;
    const chains = ['prerouting', 'output'].map(
      (hook) =>
        `chain ${hook} { type filter hook ${hook} priority raw; meta l4proto udp notrack; };`,
    );
    const input = `table inet foreign { ${chains.join(' ')} }`;
    await node.exec('nft', ['-f', '-'], { input });
    try {
      return await use();
    } finally {
      await node.exec('nft', ['delete', 'table', 'inet', 'foreign']);
    }
  }

  for (const family of IP_FAMILIES) {
    describe(family, () => {
      let here: FamilyLab;
      let [pod, other, third, remote, far, client, node]: readonly Host[] = [];
      const host = (found: Host | undefined): Host => {
        assert.ok(found !== undefined);
        return found;
      };

      before(() => {
        here = policyLab.in(family);
        pod = policyLab.pod(1);
        other = policyLab.pod(2);
        third = policyLab.pod(3);
        remote = policyLab.remote(1);
        far = policyLab.remote(2);
        ({ client, node } = policyLab.lab);
      });
      afterEach(() => here.lift());

      /** Policy sets 1 and 2 of a pod. */
      const stateOf = (
        subject: Host | undefined,
        policies: Policies,
        allowed: readonly (Host | undefined)[],
        firstId = 1,
      ): TableState => {
        const address = here.address(host(subject));
        const chains: PolicySetChain[] = [];
        const elements: PolicyElement[] = [];
        for (const [at, direction] of DIRECTIONS.entries()) {
          const policy = policies[direction];
          if (policy === 'none') continue;
          const policySetId = firstId + at;
          const allow = chainRule({ peers: peers(policySetId) });
          const rules = policy === 'allow' ? [allow, DENY_REST] : [DENY_REST];
          chains.push(policySetChain(direction, policySetId, rules));
          elements.push({ set: `${direction}-pods`, address, policySetId });
          if (policy !== 'allow') continue;
          for (const each of allowed)
            elements.push({ set: 'peers', list: policySetId, address: here.address(host(each)) });
        }
        if (chains.length > 0) elements.push({ set: 'selected-pods', address });
        return { chains, elements };
      };
      const probe = async (
        from: Host | undefined,
        to: Host | undefined,
        port = 0,
        localPort?: number,
      ) => {
        nextPort += 1;
        const target = host(to);
        // Pods serve every port, the other hosts one.
        const servedPort = target.name.includes('pod') || target.name.includes('remote');
        const { outcome } = await host(from).udp(
          here.address(target),
          port > 0 ? port : servedPort ? nextPort : HOST_PORT,
          { timeoutMs: SHORT, ...(localPort === undefined ? {} : { localPort }) },
        );
        return outcome;
      };
      const outcomes = async (pairs: readonly (readonly [Host | undefined, Host | undefined])[]) =>
        Promise.all(
          pairs.map(
            async ([from, to]) =>
              `${host(from).name} to ${host(to).name}: ${await probe(from, to)}`,
          ),
        );

      it('get the verdicts that connection tracking gives', async () => {
        const pairs = [client, node, remote, far, other].flatMap((peer) => [
          [pod, peer] as const,
          [peer, pod] as const,
        ]);
        const seen = new Set<string>();
        for (const policies of ALL_POLICIES) {
          await here.enforce(stateOf(pod, policies, [client, remote, other]));
          const tracked = await outcomes(pairs);
          const others = await untracked(() => outcomes(pairs));
          assert.deepEqual(others, tracked, JSON.stringify(policies));
          for (const each of tracked) seen.add(each);
        }
        // The node always reaches its pod; everything else is allowed by some policies and denied by others.
        assert.equal(seen.size, 2 * pairs.length - 1);
      });

      it('get the verdicts that connection tracking gives if policies select both pods', async () => {
        const pairs = [[pod, other] as const, [other, pod] as const];
        const some: readonly Policies[] = [
          { ingress: 'deny', egress: 'none' },
          { ingress: 'allow', egress: 'deny' },
          { ingress: 'deny', egress: 'allow' },
        ];
        for (const policies of some) {
          for (const otherPolicies of some) {
            const first = stateOf(pod, policies, [other]);
            const second = stateOf(other, otherPolicies, [pod], 3);
            await here.enforce({
              chains: [...first.chains, ...second.chains],
              elements: [...first.elements, ...second.elements],
            });
            const tracked = await outcomes(pairs);
            const others = await untracked(() => outcomes(pairs));
            assert.deepEqual(others, tracked, JSON.stringify([policies, otherPolicies]));
          }
        }
      });

      it('an answer comes from the address and port that the packet was sent to', async () => {
        await here.enforce(stateOf(pod, { ingress: 'deny', egress: 'allow' }, [remote, far]));
        await untracked(async () => {
          const [port, localPort] = [20_000, 20_001];
          assert.equal(await probe(remote, pod, localPort, port), 'timeout');
          assert.equal(await probe(pod, remote, port, localPort), 'answered');
          assert.equal(await probe(remote, pod, localPort, port), 'answered');
          assert.equal(await probe(remote, pod, localPort, port + 5), 'timeout');
          assert.equal(await probe(remote, pod, localPort + 5, port), 'timeout');
          assert.equal(await probe(far, pod, localPort, port), 'timeout');
        });
      });

      it('answers are still allowed after the table has been replaced, and end with its deletion', async () => {
        const state = stateOf(pod, { ingress: 'deny', egress: 'allow' }, [remote]);
        await here.enforce(state);
        await untracked(async () => {
          assert.equal(await probe(pod, remote, 21_000, 21_001), 'answered');
          await here.enforce(state);
          assert.equal(await probe(remote, pod, 21_001, 21_000), 'answered');
          await here.lift();
          await here.enforce(state);
          assert.equal(await probe(remote, pod, 21_001, 21_000), 'timeout');
        });
      });

      it('have no answers while no more answers can be recorded', async () => {
        await here.enforce(stateOf(pod, { ingress: 'deny', egress: 'allow' }, [remote]));
        const { node: enforcing } = policyLab.lab;
        const set = [here.ip, 'portwide-policy', 'udp-answers'];
        const { stdout } = await enforcing.exec('nft', ['list', 'set', ...set]);
        const size = Number(/size (\d+)/.exec(stdout)?.[1]);
        const [first, second] = [here.address(host(client)), here.address(host(far))];
        const elements = Array.from(
          { length: size },
          (_, at) => `${first} . ${second} . ${1 + (at >> 12)} . ${1 + (at & 4095)}`,
        );
        const input = `add element ${set.join(' ')} { ${elements.join(', ')} }`;
        await enforcing.exec('nft', ['-f', '-'], { input });
        await untracked(async () => {
          // Ingress denies the answer, because it was not recorded.
          assert.equal(await probe(pod, remote), 'timeout');
          assert.equal(await probe(other, far), 'answered');
          await enforcing.exec('nft', ['flush', 'set', ...set]);
          assert.equal(await probe(pod, remote), 'answered');
        });
      });

      it('are recorded for selected pods only, and only while they are allowed', async () => {
        await here.enforce(stateOf(pod, { ingress: 'allow', egress: 'deny' }, [remote]));
        const recorded = async () => {
          const state = await policyLab.agent.call('policyState', family);
          return state['set udp-answers']?.length;
        };
        await untracked(async () => {
          assert.equal(await probe(remote, other), 'answered');
          assert.equal(await probe(third, other), 'answered');
          assert.equal(await probe(far, pod), 'timeout');
          assert.equal(await probe(pod, remote), 'timeout');
          assert.equal(await recorded(), 0);
          assert.equal(await probe(remote, pod), 'answered');
          assert.equal(await recorded(), 1);
        });
      });
    });
  }
});
