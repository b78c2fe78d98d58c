/**
 * Property: generated policies and pods. Every connection between the pods, with real packets, must
 * match the independent evaluator of test/policy/oracle.ts.
 */
import assert from 'node:assert/strict';
import type { Protocol } from '../../api/objects.ts';
import { createLab, type Host, type Lab } from '../lab/lab.ts';
import { type Flow, verdict } from '../policy/oracle.ts';
import { Random } from '../random.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { Barrier } from './policy-random/barrier.ts';
import {
  generate,
  nodesOf,
  type PodPlacement,
  type PolicyCounts,
} from './policy-random/generated.ts';
import { manifestOf } from './policy-random/manifests.ts';

const ROUNDS = 12;
const NONE = [0, 0] as const;

const RECIPES: Readonly<Record<string, PolicyCounts>> = {
  'NetworkPolicies alone': {
    NetworkPolicy: [2, 7],
    AdminNetworkPolicy: NONE,
    BaselineAdminNetworkPolicy: NONE,
    ClusterNetworkPolicy: NONE,
  },
  'AdminNetworkPolicies and the BaselineAdminNetworkPolicy around NetworkPolicies': {
    NetworkPolicy: [0, 3],
    AdminNetworkPolicy: [1, 5],
    BaselineAdminNetworkPolicy: [0, 1],
    ClusterNetworkPolicy: NONE,
  },
  'ClusterNetworkPolicies of both tiers around NetworkPolicies': {
    NetworkPolicy: [0, 3],
    AdminNetworkPolicy: NONE,
    BaselineAdminNetworkPolicy: NONE,
    ClusterNetworkPolicy: [2, 7],
  },
  'policies of all kinds together': {
    NetworkPolicy: [1, 4],
    AdminNetworkPolicy: [1, 3],
    BaselineAdminNetworkPolicy: [0, 1],
    ClusterNetworkPolicy: [1, 4],
  },
};

const PORTS: Readonly<Record<Protocol, readonly number[]>> = {
  TCP: [79, 80, 81, 8080],
  UDP: [53, 80, 8080],
  SCTP: [80],
};
const PROTOCOLS = Object.keys(PORTS) as Protocol[];

interface Probe extends Flow {
  readonly host: Host;
  readonly protocol: Protocol;
}

describe('random network policies', () => {
  let lab: Lab;
  let agent: Agent;
  let homes: readonly PodPlacement[];
  let barrier: Barrier;
  let probes: readonly Probe[];

  before(async () => {
    lab = await createLab({ pods: 5, remotePods: 2 });
    const spaces = ['blue', 'blue', 'red', 'green'];
    const here = lab.pods.slice(0, 4);
    const last = lab.pods[4] as Host;
    homes = [...here, ...lab.remotePods].map((host, index) => ({
      name: host.name,
      namespace: spaces[index % spaces.length] ?? '',
      nodeName: index < here.length ? 'node' : 'node2',
      addresses: [host.ipv4, host.ipv6],
    }));
    const outside = [lab.client, lab.node, lab.node2];
    const targets = [...here, ...lab.remotePods, ...outside];
    await Promise.all([
      last.serveEveryPort(),
      ...targets.flatMap((host) =>
        PROTOCOLS.map((protocol) => host.serve({ protocol, ports: PORTS[protocol] })),
      ),
    ]);
    // Flows that neither start nor end at a pod of the node do not pass it, or only in one
    // direction.
    probes = [
      ...here.flatMap((from) => targets.flatMap((to) => (from === to ? [] : between(from, to)))),
      ...[...lab.remotePods, ...outside].flatMap((from) => here.flatMap((to) => between(from, to))),
    ];
    agent = new Agent(lab);
    agent.write('node', []);
    barrier = new Barrier(lab, agent, last);
    barrier.write(nodes().map(manifestOf));
    await agent.start([...AGENT_FLAGS, '--network-policy', '--proxy-mode=nftables']);
    agent.log.length = 0;
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });

  function between(host: Host, to: Host): Probe[] {
    return [[host.ipv4, to.ipv4] as const, [host.ipv6, to.ipv6] as const].flatMap(
      ([from, address]) =>
        PROTOCOLS.flatMap((protocol) =>
          PORTS[protocol].map((port) => ({ host, from, to: address, port, protocol })),
        ),
    );
  }

  const nodes = () => nodesOf([lab.node.ipv4, lab.node.ipv6], [lab.node2.ipv4, lab.node2.ipv6]);

  async function apply(objects: Parameters<typeof manifestOf>[0][]): Promise<void> {
    await barrier.apply([...nodes(), ...objects].map(manifestOf));
    // Datagrams of this round must not match conntrack entries of an earlier round.
    await lab.node.exec('conntrack', ['-F']);
  }

  /** Whether each probe was answered. */
  async function reached(some: readonly (Probe & { readonly allowed: boolean })[]) {
    const byHost = Map.groupBy(some, ({ host }) => host);
    const answers = new Map<Probe, boolean>();
    await Promise.all(
      [...byHost].map(async ([host, own]) => {
        const results = await host.reach({
          targets: own.map(({ to, port, protocol }) => ({ address: to, port, protocol })),
          awaited: own.filter(({ allowed }) => allowed).length,
          timeoutMs: 3000,
          quietMs: 150,
        });
        own.forEach((probe, index) => {
          answers.set(probe, results[index] === true);
        });
      }),
    );
    return some.filter((probe) => answers.get(probe) !== probe.allowed);
  }

  const textOf = ({ host, to, port, protocol, allowed }: Probe & { readonly allowed: boolean }) =>
    `${host.name} to ${to} ${protocol} ${port} should be ${allowed ? 'allowed' : 'denied'}`;

  Object.entries(RECIPES).forEach(([title, recipe], family) => {
    it(title, async function () {
      this.timeout(120_000);
      let allowed = 0;
      for (let round = 0; round < ROUNDS; round++) {
        const objects = generate(new Random(family * 1000 + round), homes, recipe);
        await apply(objects);
        const world = { objects: [...nodes(), ...objects], enforcing: ['node'] };
        const expected = probes.map((probe) => ({
          ...probe,
          allowed: verdict(world, probe) === 'allow',
        }));
        const differing = await reached(expected);
        // On a busy machine a packet may be late.
        const wrong = differing.length === 0 ? [] : await reached(differing);
        assert.deepEqual(
          wrong.map(textOf),
          [],
          `round ${round}: ${JSON.stringify(objects.map(manifestOf), null, 1)}`,
        );
        allowed += expected.filter((probe) => probe.allowed).length;
      }
      const share = allowed / (ROUNDS * probes.length);
      assert.ok(share > 0.25 && share < 0.9, `${share} of the connections were allowed`);
      // No policy was rejected or failed closed.
      const warnings = agent.log.filter(({ level }) => level >= 40);
      assert.deepEqual(warnings, []);
    });
  });
});
