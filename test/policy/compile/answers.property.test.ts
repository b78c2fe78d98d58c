/** Evaluates the rules for untracked packets, and compares their verdicts with connection tracking. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { nftRuleText } from '../../../nft/rule.ts';
import { staticChains } from '../../../policy/compile/policy-table.ts';
import type { Direction } from '../../../policy/model/terms.ts';

interface Packet {
  readonly from: string;
  readonly to: string;
  readonly sourcePort: number;
  readonly port: number;
}

/** The hosts: the pods of this node, another host, and a VIP. */
const PODS = ['pod-1', 'pod-2', 'pod-3'];
const VIP = 'vip';
const HOSTS = [...PODS, 'outside', VIP];
const FIELDS: Readonly<Record<string, keyof Packet>> = {
  'ip saddr': 'from',
  'ip daddr': 'to',
  'th sport': 'sourcePort',
  'th dport': 'port',
};

/** What the policies of each pod deny: peers with a port. A pod without an entry is not selected. */
type Denied = Readonly<Record<Direction, ReadonlyMap<string, ReadonlySet<string>>>>;

const answerTo = ({ from, to, sourcePort, port }: Packet): Packet => ({
  from: to,
  to: from,
  sourcePort: port,
  port: sourcePort,
});
const textOf = ({ from, to, sourcePort, port }: Packet) => `${from}:${sourcePort} -> ${to}:${port}`;

/** Whether policies allow a packet as the first of a connection. */
function isAllowed({ from, to, port }: Packet, { egress, ingress }: Denied): boolean {
  if (from === to && PODS.includes(from)) return true;
  return !egress.get(from)?.has(`${to} ${port}`) && !ingress.get(to)?.has(`${from} ${port}`);
}

/** The static chains with their dynamic sets. */
class Kernel {
  readonly #denied: Denied;
  readonly #sets = new Map<string, Set<string>>();
  readonly #chains = new Map(
    staticChains({ family: 'IPv4' }).map(({ name, rules }) => [
      name,
      [...rules].map(({ rule }) => nftRuleText(rule)),
    ]),
  );

  constructor(denied: Denied) {
    this.#denied = denied;
    const selected = [...denied.egress.keys(), ...denied.ingress.keys()];
    this.#sets.set('selected-pods', new Set(selected));
    this.#sets.set('owned-vips', new Set([VIP]));
    this.#sets.set('hairpin-pods', new Set(PODS.map((pod) => `${pod} ${pod}`)));
  }

  passes(packet: Packet, chain = 'forward'): boolean {
    for (const rule of this.#chains.get(chain) ?? assert.fail(chain)) {
      const verdict = this.#verdict(rule, packet);
      if (verdict !== undefined) return verdict;
    }
    return true;
  }

  /** @returns undefined if evaluation continues with the next rule. */
  #verdict(rule: string, packet: Packet): boolean | undefined {
    let rest = rule;
    const next = (pattern: RegExp): readonly string[] | undefined => {
      const found = pattern.exec(rest);
      if (found === null) return undefined;
      rest = rest.slice(found[0].length).trimStart();
      return found.slice(1);
    };
    while (rest !== '') {
      if (next(/^ct state established,related/)) return undefined;
      if (next(/^ct state untracked meta l4proto udp/)) continue;
      if (next(/^accept$/)) return true;
      const [to] = next(/^goto (\S+)$/) ?? [];
      if (to !== undefined) return this.passes(packet, to);
      const [updated, key] = next(/^update @(\S+) \{ (.+?) timeout \d+s \}/) ?? [];
      if (updated !== undefined && key !== undefined) {
        const set = this.#sets.get(updated) ?? new Set();
        this.#sets.set(updated, set.add(keyOf(key, packet)));
        continue;
      }
      const [end, direction] = next(/^(ip [sd]addr) vmap @(egress|ingress)-pods$/) ?? [];
      if (end !== undefined) {
        const [subject, peer] =
          end === 'ip saddr' ? [packet.from, packet.to] : [packet.to, packet.from];
        const denied = this.#denied[direction as Direction].get(subject);
        return denied?.has(`${peer} ${packet.port}`) ? false : undefined;
      }
      const [lookup, set] = next(/^((?:ip|th) .+?) @(\S+)/) ?? [];
      if (lookup === undefined || set === undefined) assert.fail(`unknown rule: ${rest}`);
      if (!this.#sets.get(set)?.has(keyOf(lookup, packet))) return undefined;
    }
    return assert.fail(`a rule without verdict: ${rule}`);
  }
}

function keyOf(key: string, packet: Packet): string {
  return key
    .split(' . ')
    .map((field) => packet[FIELDS[field] ?? assert.fail(field)])
    .join(' ');
}

const port = fc.integer({ min: 1, max: 3 });
const packets = fc.array(
  fc.record({
    from: fc.constantFrom(...HOSTS),
    to: fc.constantFrom(...HOSTS),
    sourcePort: port,
    port,
  }),
  { maxLength: 60 },
);
const deniedPeers = fc
  .array(fc.tuple(fc.constantFrom(...HOSTS), port), { minLength: 8, maxLength: 15 })
  .map((all) => new Set(all.map(([peer, of]) => `${peer} ${of}`)));
const deniedByPod = fc
  .array(fc.tuple(fc.constantFrom(...PODS), deniedPeers), { maxLength: 3 })
  .map((all) => new Map(all));
const denied = fc.record({ egress: deniedByPod, ingress: deniedByPod });

describe('answers: rules for untracked packets', () => {
  it('give the verdicts of connection tracking to packets that no VIP sends', () => {
    fc.assert(
      fc.property(packets, denied, (all, policies) => {
        const kernel = new Kernel(policies);
        const connections = new Set<string>();
        for (const packet of all.filter(({ from }) => from !== VIP)) {
          const allowed = isAllowed(packet, policies);
          if (allowed) connections.add(textOf(packet));
          const expected = allowed || connections.has(textOf(answerTo(packet)));
          assert.equal(kernel.passes(packet), expected, textOf(packet));
        }
      }),
      { seed: 1, numRuns: 500 },
    );
  });

  it('let a VIP send what policies allow, and answers to ports that a pod has sent to', () => {
    fc.assert(
      fc.property(packets, denied, (all, policies) => {
        const kernel = new Kernel(policies);
        const sent: Packet[] = [];
        for (const packet of all) {
          const { from, to, sourcePort, port: target } = packet;
          const allowed = isAllowed(packet, policies);
          if (allowed && from !== to) sent.push(packet);
          const isAnswer = sent.some(
            (each) => each.from === to && each.sourcePort === target && each.port === sourcePort,
          );
          const passed = kernel.passes(packet);
          if (from === VIP) assert.equal(passed, allowed || isAnswer, textOf(packet));
        }
      }),
      { seed: 1, numRuns: 500 },
    );
  });
});
