/** A policy model whose changes an interpreter applies; compared with the oracle. */
import assert from 'node:assert/strict';
import { familyOf } from '../../api/addresses.ts';
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import { AppliedState } from '../../policy/compile/applied-state.ts';
import {
  type CompiledRule,
  idIn,
  type PolicyChange,
  type PolicyElement,
} from '../../policy/compile/change.ts';
import { explain } from '../../policy/model/explain.ts';
import { PolicyModel } from '../../policy/model/model.ts';
import type { ListId } from '../../policy/model/terms.ts';
import { elementKey, Interpreter, type PacketContext } from './interpreter.ts';
import { HERE, type TestObject } from './objects.ts';
import { type Flow, type Verdict, verdict } from './oracle.ts';

export type ResolvedNames = ReadonlyMap<string, readonly string[]>;

export class ModelHarness {
  readonly objects = new Map<string, TestObject>();
  readonly model = new PolicyModel({ nodeName: HERE });
  readonly applied = new AppliedState(this.model);
  readonly kernels: Readonly<Record<IpFamily, Interpreter>> = {
    IPv4: new Interpreter('IPv4'),
    IPv6: new Interpreter('IPv6'),
  };
  readonly names: ResolvedNames;

  constructor(objects: Iterable<TestObject> = [], names: ResolvedNames = new Map()) {
    this.names = names;
    for (const object of objects) this.upsert(object);
  }

  upsert(object: TestObject): void {
    this.objects.set(`${object.kind} ${object.key}`, object);
    this.model.upsert(object);
  }

  remove(kind: TestObject['kind'], key: string): void {
    this.objects.delete(`${kind} ${key}`);
    this.model.remove(kind, key);
  }

  /** Applies all changes. */
  sync(): PolicyChange[] {
    const changes = this.applied.takeChanges();
    for (const change of changes) this.kernels[change.family].apply(change);
    return changes;
  }

  /** The verdict of the applied rules. */
  evaluate(flow: Flow): Verdict {
    return this.kernels[familyOf(flow.to)].evaluate(flow, this.packetContext());
  }

  /** The verdict of the oracle. @param enforcing Nodes that enforce policy; default: all. */
  expected(flow: Flow, enforcing?: readonly string[]): Verdict {
    const clusterState = { objects: [...this.objects.values()], names: this.names };
    return verdict(enforcing === undefined ? clusterState : { ...clusterState, enforcing }, flow);
  }

  packetContext(): PacketContext {
    const node = this.objects.get(`Node ${HERE}`);
    const nodeAddresses = node?.kind === 'Node' ? node.addresses : [];
    const elements = fqdnPeersOf(this.model, this.names);
    return { nodeAddresses, isFqdnPeer: (list, address) => elements.has(`${list} ${address}`) };
  }

  explained(flow: Flow): Verdict {
    if (flow.protocol === 'ICMP') throw new Error('explain knows no ICMP');
    const [one, ...others] = explain(this.model, {
      from: { address: flow.from },
      to: { address: flow.to },
      port: flow.port,
      protocol: flow.protocol,
      // Compute again for each call: lists for pods of other nodes exist only during explain().
      isFqdnAddress: (list, address) =>
        fqdnPeersOf(this.model, this.names).has(`${list} ${address}`),
    });
    assert.ok(one !== undefined && others.length === 0);
    return one.verdict;
  }
}

/** Elements of the set `fqdn-peers` as `list address`. */
function fqdnPeersOf(model: PolicyModel, names: ResolvedNames): Set<string> {
  const elements = new Set<string>();
  for (const [pattern, lists] of model.listsByDomainName()) {
    for (const [name, addresses] of names) {
      if (pattern !== name && !(pattern.startsWith('*.') && name.endsWith(pattern.slice(1))))
        continue;
      for (const list of lists) for (const address of addresses) elements.add(`${list} ${address}`);
    }
  }
  return elements;
}

/**
 * The verdict on a connection with these objects. Fails if the compiled rules, the oracle and
 * explain() differ.
 */
export function checkedVerdict(
  objects: Iterable<TestObject>,
  flow: Flow,
  names: ResolvedNames = new Map(),
): Verdict {
  const agent = new ModelHarness(objects, names);
  agent.sync();
  const expected = agent.expected(flow, [HERE]);
  assert.equal(agent.evaluate(flow), expected, 'compiled rules and oracle');
  if (flow.protocol !== 'ICMP') {
    assert.equal(agent.explained(flow), agent.expected(flow), 'explain() and oracle');
  }
  return expected;
}

/** The applied state as text. Contents replace the ids of lists and policy sets. */
export function contentOf({ model, applied }: ModelHarness, family: IpFamily): readonly string[] {
  const { chains, elements } = applied.snapshot(family);
  const all = [...elements];
  const members = new Map<string, string[]>();
  const addMember = (list: string, text: string) =>
    members.set(list, [...(members.get(list) ?? []), text]);
  for (const element of all) {
    if (!('list' in element)) continue;
    const { list, ...rest } = element;
    addMember(`${element.set} ${list}`, elementKey(rest as PolicyElement));
  }
  for (const [pattern, lists] of model.listsByDomainName()) {
    for (const list of lists) addMember(`fqdn-peers ${list}`, pattern);
  }
  const membersOf = (set: string, list: ListId) => (members.get(`${set} ${list}`) ?? []).sort();
  const ruleText = ({ peers, ports, verdict, comment }: CompiledRule) => [
    peers?.sets.map((set) => [set, membersOf(set, idIn(set, peers))]),
    ports?.sets.map((set) => [set, membersOf(set, ports.id)]),
    verdict,
    comment,
  ];
  const chainText = new Map(
    chains.map(({ direction, policySetId, admin, lowerTiers }) => [
      policySetId,
      JSON.stringify([direction, admin.map(ruleText), lowerTiers.map(ruleText)]),
    ]),
  );
  const lines = [...chainText.values()];
  for (const element of all) {
    if ('list' in element) continue;
    const chain = 'policySetId' in element ? chainText.get(element.policySetId) : '';
    lines.push(`${element.set} ${element.address} ${chain}`);
  }
  lines.push(...[...members.values()].map((list) => JSON.stringify(list.sort())));
  return lines.sort();
}

/** Asserts that the interpreters have the same state as the snapshot. */
export function assertApplied({ applied, kernels }: ModelHarness): void {
  for (const family of IP_FAMILIES) {
    const { chains, elements } = applied.snapshot(family);
    const byKey = (some: Iterable<PolicyElement>) =>
      [...some].map((each) => JSON.stringify([elementKey(each), each])).sort();
    assert.deepEqual(byKey(kernels[family].elements.values()), byKey(elements));
    const byId = (some: Iterable<(typeof chains)[number]>) =>
      [...some]
        .toSorted((a, b) => a.policySetId - b.policySetId)
        .map((each) => ({
          ...each,
          admin: each.admin.map(plain),
          lowerTiers: each.lowerTiers.map(plain),
        }));
    assert.deepEqual(byId(kernels[family].chains.values()), byId(chains));
  }
}

/** A rule without the additional fields of `PolicySetRule`. */
function plain({ peers, ports, verdict, comment }: CompiledRule): CompiledRule {
  return {
    peers: peers && { id: peers.id, sets: peers.sets, networksId: peers.networksId },
    ports: ports && { id: ports.id, sets: ports.sets },
    verdict,
    comment,
  };
}
