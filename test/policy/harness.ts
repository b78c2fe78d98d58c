/** A model with an interpreter behind it, held against the oracle. */
import assert from 'node:assert/strict';
import { familyOf } from '../../api/addresses.ts';
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import { AppliedState } from '../../policy/compile/applied-state.ts';
import type { CompiledRule, PolicyChange, PolicyElement } from '../../policy/compile/change.ts';
import { explain } from '../../policy/model/explain.ts';
import { PolicyModel } from '../../policy/model/model.ts';
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

  /** Brings everything into force. */
  sync(): PolicyChange[] {
    const changes = this.applied.takeChanges();
    for (const change of changes) this.kernels[change.family].apply(change);
    return changes;
  }

  /** What the rules in force do. */
  judge(flow: Flow): Verdict {
    return this.kernels[familyOf(flow.to)].judge(flow, this.surroundings());
  }

  /** What the API says, for one node or for all. */
  expected(flow: Flow, enforcing?: readonly string[]): Verdict {
    const world = { objects: [...this.objects.values()], names: this.names };
    return verdict(enforcing === undefined ? world : { ...world, enforcing }, flow);
  }

  surroundings(): PacketContext {
    const node = this.objects.get(`Node ${HERE}`);
    const nodeAddresses = node?.kind === 'Node' ? node.addresses : [];
    const learned = learnedIn(this.model, this.names);
    return { nodeAddresses, learned: (list, address) => learned.has(`${list} ${address}`) };
  }

  explained(flow: Flow): Verdict {
    if (flow.protocol === 'ICMP') throw new Error('explain knows no ICMP');
    const [one, ...others] = explain(this.model, {
      from: { address: flow.from },
      to: { address: flow.to },
      port: flow.port,
      protocol: flow.protocol,
      // Asked anew each time: for pods of other nodes there are lists only while they are explained.
      isFqdnAddress: (list, address) => learnedIn(this.model, this.names).has(`${list} ${address}`),
    });
    assert.ok(one !== undefined && others.length === 0);
    return one.verdict;
  }
}

/** Members of the set `learned`: `list address`. */
function learnedIn(model: PolicyModel, names: ResolvedNames): Set<string> {
  const learned = new Set<string>();
  for (const [pattern, lists] of model.listsByDomainName()) {
    for (const [name, addresses] of names) {
      if (pattern !== name && !(pattern.startsWith('*.') && name.endsWith(pattern.slice(1))))
        continue;
      for (const list of lists) for (const address of addresses) learned.add(`${list} ${address}`);
    }
  }
  return learned;
}

/**
 * What becomes of a connection on a node that has these objects, on which the model, the oracle and
 * the explanation have to agree.
 */
export function checkedVerdict(
  objects: Iterable<TestObject>,
  flow: Flow,
  names: ResolvedNames = new Map(),
): Verdict {
  const agent = new ModelHarness(objects, names);
  agent.sync();
  const expected = agent.expected(flow, [HERE]);
  assert.equal(agent.judge(flow), expected, 'the rules, and the oracle');
  if (flow.protocol !== 'ICMP') {
    assert.equal(agent.explained(flow), agent.expected(flow), 'the explanation, and the oracle');
  }
  return expected;
}

/** All that is in force, with what lists and profiles have in place of their numbers. */
export function contentOf({ model, applied }: ModelHarness, family: IpFamily): readonly string[] {
  const { chains, elements } = applied.snapshot(family);
  const all = [...elements];
  const members = new Map<number, string[]>();
  for (const element of all) {
    if (!('list' in element)) continue;
    const { list, ...rest } = element;
    const key = elementKey(rest as PolicyElement);
    members.set(list, [...(members.get(list) ?? []), key]);
  }
  for (const [pattern, lists] of model.listsByDomainName()) {
    for (const list of lists) members.set(list, [...(members.get(list) ?? []), pattern]);
  }
  const listText = (part: CompiledRule['peers'] | CompiledRule['ports']) =>
    part && [part.sets, (members.get(part.number) ?? []).sort()];
  const ruleText = ({ peers, ports, outcome, comment }: CompiledRule) => [
    listText(peers),
    listText(ports),
    outcome,
    comment,
  ];
  const chainText = new Map(
    chains.map(({ direction, profile, admin, lowerTiers: rest }) => [
      profile,
      JSON.stringify([direction, admin.map(ruleText), rest.map(ruleText)]),
    ]),
  );
  const lines = [...chainText.values()];
  for (const element of all) {
    if ('list' in element) continue;
    const chain = 'profile' in element ? chainText.get(element.profile) : '';
    lines.push(`${element.set} ${element.address} ${chain}`);
  }
  lines.push(...[...members.values()].map((list) => JSON.stringify(list.sort())));
  return lines.sort();
}

/** The interpreters have what the model says is in force. */
export function assertApplied({ applied, kernels }: ModelHarness): void {
  for (const family of IP_FAMILIES) {
    const { chains, elements } = applied.snapshot(family);
    const byKey = (some: Iterable<PolicyElement>) =>
      [...some].map((each) => JSON.stringify([elementKey(each), each])).sort();
    assert.deepEqual(byKey(kernels[family].elements.values()), byKey(elements));
    const byProfile = (some: Iterable<(typeof chains)[number]>) =>
      [...some]
        .toSorted((a, b) => a.profile - b.profile)
        .map((each) => ({
          ...each,
          admin: each.admin.map(plain),
          lowerTiers: each.lowerTiers.map(plain),
        }));
    assert.deepEqual(byProfile(kernels[family].chains.values()), byProfile(chains));
  }
}

/** A rule as the kernel has it: rules of the model say besides where they come from. */
function plain({ peers, ports, outcome, comment }: CompiledRule): CompiledRule {
  return {
    peers: peers && { number: peers.number, sets: peers.sets },
    ports: ports && { number: ports.number, sets: ports.sets },
    outcome,
    comment,
  };
}
