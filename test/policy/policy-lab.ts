/** A lab whose node enforces hand-written policy tables. */
import assert from 'node:assert/strict';
import type { IpFamily } from '../../api/objects.ts';
import { nftFamily } from '../../nft/rule.ts';
import { POLICY_TABLES } from '../../policy/compile/policy-table.ts';
import { createLab, type Host, type Lab, type Outcome, type Protocol } from '../lab/lab.ts';
import { type NetnsHelper, startNetnsHelper } from '../netlink/namespace.ts';
import { tableNames } from './legacy-names.ts';
import type { TableState } from './policy-functions.ts';

/** Milliseconds to wait for a packet that must be dropped. */
const SHORT = 300;
const PROBES = { TCP: 'tcp', UDP: 'udp', SCTP: 'sctpProbe' } as const;

/** Pods serve every port; the other hosts serve this one. */
export const HOST_PORT = 7000;

export class PolicyLab {
  readonly lab: Lab;
  readonly agent: NetnsHelper;

  private constructor(lab: Lab, agent: NetnsHelper) {
    this.lab = lab;
    this.agent = agent;
  }

  static async create(logGroup?: number): Promise<PolicyLab> {
    const lab = await createLab({ pods: 3, remotePods: 2 });
    const agent = startNetnsHelper(lab.node.namespace);
    const policyLab = new PolicyLab(lab, agent);
    try {
      await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
      for (const host of [lab.node, lab.node2, lab.client]) {
        for (const protocol of ['TCP', 'UDP'] as const) {
          await host.serve({ protocol, port: HOST_PORT });
        }
      }
      for (const family of ['IPv4', 'IPv6'] as const) {
        const logged = logGroup === undefined ? {} : { logGroup };
        await agent.call('policyStart', family, { family, ...logged });
      }
      return policyLab;
    } catch (error) {
      await policyLab.destroy();
      throw error;
    }
  }

  async destroy(): Promise<void> {
    await this.agent.stop();
    await this.lab.destroy();
  }

  /** Pods on the node under test; the first number is 1. */
  pod(number: number): Host {
    return at(this.lab.pods, number);
  }

  /** Pods on the other node; the first number is 1. */
  remote(number: number): Host {
    return at(this.lab.remotePods, number);
  }

  in(family: IpFamily): FamilyLab {
    return new FamilyLab(this, family);
  }
}

/** The lab for one IP family. */
export class FamilyLab {
  readonly family: IpFamily;
  readonly policyLab: PolicyLab;

  constructor(policyLab: PolicyLab, family: IpFamily) {
    this.policyLab = policyLab;
    this.family = family;
  }

  get ip(): 'ip' | 'ip6' {
    return nftFamily(this.family);
  }

  address(host: Host): string {
    return this.family === 'IPv4' ? host.ipv4 : host.ipv6;
  }

  /** Replaces the policy table and deletes all conntrack entries. */
  async enforce(state: TableState, content?: Parameters<NetnsHelper['call']>[3]): Promise<void> {
    const { agent, lab } = this.policyLab;
    const refusal = await agent.call('policyReplaceAll', this.family, state, content as never);
    assert.equal(refusal, undefined);
    await lab.node.exec('conntrack', ['-F']);
  }

  /** Names in the policy tables that only this release, or only an earlier one has. */
  async tableNames(): Promise<ReturnType<typeof tableNames>> {
    const { stdout } = await this.policyLab.lab.node.exec('nft', ['list', 'ruleset']);
    return tableNames(stdout);
  }

  /** Deletes the policy tables. */
  async lift(): Promise<void> {
    for (const table of POLICY_TABLES) {
      const args = ['delete', 'table', this.ip, table];
      await this.policyLab.lab.node.exec('nft', args, { reject: false });
    }
    await this.policyLab.lab.node.exec('conntrack', ['-F']);
  }

  async reaches(from: Host, to: Host | string, port = 80, protocol: Protocol = 'TCP') {
    const outcome = await this.#probe(from, to, port, protocol);
    if (outcome.outcome !== 'answered') {
      assert.fail(`${from.name} to ${nameOf(to)} ${protocol} ${port}: ${JSON.stringify(outcome)}`);
    }
    return outcome.reply;
  }

  async isDenied(from: Host, to: Host | string, port = 80, protocol: Protocol = 'TCP') {
    const outcome = await this.#probe(from, to, port, protocol, SHORT);
    const what = `${from.name} to ${nameOf(to)} ${protocol} ${port}`;
    assert.deepEqual([what, outcome], [what, { outcome: 'timeout' }]);
  }

  async pings(from: Host, to: Host): Promise<void> {
    assert.ok(await from.ping(this.address(to), 3000), `${from.name} pings ${to.name}`);
  }

  async pingIsDenied(from: Host, to: Host): Promise<void> {
    assert.ok(!(await from.ping(this.address(to), SHORT)), `${from.name} pings ${to.name}`);
  }

  /** Counters of denied packets by tier and direction, without zeros. */
  async denied(): Promise<Record<string, number>> {
    const all = await this.policyLab.agent.call('policyDenied', this.family);
    return Object.fromEntries(
      all
        .filter(({ packets }) => packets > 0)
        .map((each) => [`${each.denial} ${each.direction}`, each.packets]),
    );
  }

  #probe(
    from: Host,
    to: Host | string,
    port: number,
    protocol: Protocol,
    timeoutMs = 5000,
  ): Promise<Outcome> {
    const address = typeof to === 'string' ? to : this.address(to);
    return from[PROBES[protocol]](address, port, { timeoutMs });
  }
}

function nameOf(to: Host | string): string {
  return typeof to === 'string' ? to : to.name;
}

function at(hosts: readonly Host[], number: number): Host {
  const host = hosts[number - 1];
  if (host === undefined) throw new RangeError(`the lab has no such pod: ${number}`);
  return host;
}
