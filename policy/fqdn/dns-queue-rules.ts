/**
 * Rules of iptables that lead packets to and from resolvers through the queue.
 *
 *   FORWARD ─┬─► PORTWIDE-DNS: a query from elsewhere, or an answer to elsewhere, of a connection to
 *   INPUT  ──┤   port 53 of a resolver, whatever its destination was translated to
 *   OUTPUT ──┘   (answers only)
 *
 * A query of a pod comes by in FORWARD or, when a resolver is on the node or the VIP is IPVS's, in
 * INPUT; an answer in FORWARD or OUTPUT. In OUTPUT queries are IPVS's own, which INPUT has seen.
 * Connections that are not tracked (NodeLocal DNSCache takes care that its own are not) are known by
 * their addresses. What the node's own processes ask is not looked at.
 *
 * There is no list of the pods: the first that a pod does is to look a name up, and it connects when the
 * agent has heard of it. Clients beyond the node, whom a resolver has answered here, tell nothing wrong.
 *
 * The jumps come last in their chains. What is accepted after a queue skips the rest of its table.
 */
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import type { Iptables } from '../../iptables/commands.ts';
import { ctstate, host, ruleText } from '../../iptables/rule.ts';

/** What iptables-nft and iptables-legacy are asked for here. */
export type MangleTable = Pick<Iptables, 'family' | 'saveTable' | 'restore'>;

const DNS_CHAIN = 'PORTWIDE-DNS';
const PORT = 53;
const COMMENT = '-m comment --comment "Portwide learns addresses of domain names"';

const JUMPS: readonly string[] = [
  ruleText('FORWARD', { matches: [COMMENT], target: DNS_CHAIN }),
  ruleText('INPUT', { matches: [COMMENT], target: DNS_CHAIN }),
  ruleText('OUTPUT', { matches: [COMMENT, '-m conntrack --ctdir REPLY'], target: DNS_CHAIN }),
  ruleText('OUTPUT', { matches: [COMMENT, ctstate('UNTRACKED')], target: DNS_CHAIN }),
];

const FROM_ELSEWHERE = '-m addrtype ! --src-type LOCAL';
const TO_ELSEWHERE = '-m addrtype ! --dst-type LOCAL';

/**
 * Rules of the chain, as iptables-save prints them.
 * @param resolvers Of this family, canonical.
 */
export function dnsRules(family: IpFamily, resolvers: readonly string[], queue: number): string[] {
  const target = `NFQUEUE --queue-num ${queue} --queue-bypass`;
  const rules = resolvers.toSorted().flatMap((resolver) =>
    (['UDP', 'TCP'] as const).flatMap((protocol) => {
      const tracked = (direction: string) =>
        `-m conntrack --ctorigdst ${resolver} --ctorigdstport ${PORT} --ctdir ${direction}`;
      const untracked = ctstate('UNTRACKED');
      const port = (side: 's' | 'd') => `-m ${protocol.toLowerCase()} --${side}port ${PORT}`;
      const own = host(resolver, family);
      return [
        { protocol, matches: [tracked('ORIGINAL'), FROM_ELSEWHERE], target },
        { protocol, matches: [tracked('REPLY'), TO_ELSEWHERE], target },
        { protocol, destination: own, matches: [port('d'), untracked, FROM_ELSEWHERE], target },
        { protocol, source: own, matches: [port('s'), untracked, TO_ELSEWHERE], target },
      ];
    }),
  );
  // Nearly all packets end here.
  const others = `-m conntrack ! --ctstate UNTRACKED ! --ctorigdstport ${PORT}`;
  return [{ matches: [others], target: 'RETURN' }, ...rules].map((rule) =>
    ruleText(DNS_CHAIN, rule),
  );
}

/**
 * Has the packets of these resolvers queued, and no others. Nothing is written when it is so already.
 * @param resolvers Canonical; those of the other family do not count. None: as `removeDnsRules`.
 * @returns whether something was written.
 * @throws IptablesError; nothing was changed then.
 */
export async function syncDnsRules(
  table: MangleTable,
  resolvers: Iterable<string>,
  queue: number,
): Promise<boolean> {
  const { family } = table;
  const own = [...resolvers].filter((resolver) => familyOf(resolver) === family);
  if (own.length === 0) return await removeDnsRules(table);
  const rules = dnsRules(family, own, queue);
  const saved = (await table.saveTable('mangle')).split('\n');
  const missing = JUMPS.filter((jump) => !saved.includes(jump));
  const there = saved.filter((line) => line.startsWith(`-A ${DNS_CHAIN} `));
  if (missing.length === 0 && there.join('\n') === rules.join('\n')) return false;
  await restore(table, [...rules, ...missing]);
  return true;
}

/**
 * Removes the rules, whoever's queue they lead to.
 * @returns whether there were any.
 * @throws IptablesError; nothing was changed then.
 */
export async function removeDnsRules(table: MangleTable): Promise<boolean> {
  const saved = (await table.saveTable('mangle')).split('\n');
  if (!saved.some((line) => line.startsWith(`:${DNS_CHAIN} `))) return false;
  const jumps = saved.filter((line) => line.endsWith(` -j ${DNS_CHAIN}`));
  const removals = jumps.map((jump) => jump.replace('-A ', '-D '));
  await restore(table, [...removals, `-X ${DNS_CHAIN}`]);
  return true;
}

/** The header empties the chain. */
async function restore(table: MangleTable, lines: readonly string[]): Promise<void> {
  const all = ['*mangle', `:${DNS_CHAIN} - [0:0]`, ...lines, 'COMMIT', ''];
  await table.restore([all.join('\n')]);
}
