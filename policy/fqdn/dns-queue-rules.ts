/**
 * iptables rules that send DNS packets through an NFQUEUE.
 *
 *   FORWARD ─┬─► PORTWIDE-DNS: queries from and answers to non-local addresses, of connections
 *   INPUT  ──┤   whose destination before DNAT is port 53 of a resolver
 *   OUTPUT ──┘   (answers only)
 *
 * A query of a pod traverses FORWARD, or INPUT if the resolver is on the node or the VIP belongs to
 * IPVS. An answer traverses FORWARD or OUTPUT. A query that IPVS forwards traverses OUTPUT too, but
 * was already queued in INPUT. Untracked connections, as NodeLocal DNSCache configures them, are
 * matched by address and port. Queries of the node's own processes are not queued.
 *
 * The rules do not match pod addresses: a pod may look up names before the agent knows its address.
 * Answers to clients outside the node are queued too, which does no harm.
 *
 * The jumps are appended to their chains, because a packet that the agent accepts skips the
 * remaining rules of the table.
 */
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import type { Iptables } from '../../iptables/commands.ts';
import { ctstateMatch, exactAddress, ruleText } from '../../iptables/rule.ts';

/** The iptables commands that these rules need. */
export type MangleTable = Pick<Iptables, 'family' | 'saveTable' | 'restore'>;

const DNS_CHAIN = 'PORTWIDE-DNS';
const PORT = 53;
const COMMENT = '-m comment --comment "Portwide learns addresses of domain names"';

const JUMPS: readonly string[] = [
  ruleText('FORWARD', { matches: [COMMENT], target: DNS_CHAIN }),
  ruleText('INPUT', { matches: [COMMENT], target: DNS_CHAIN }),
  ruleText('OUTPUT', { matches: [COMMENT, '-m conntrack --ctdir REPLY'], target: DNS_CHAIN }),
  ruleText('OUTPUT', { matches: [COMMENT, ctstateMatch('UNTRACKED')], target: DNS_CHAIN }),
];

const FROM_NON_LOCAL = '-m addrtype ! --src-type LOCAL';
const TO_NON_LOCAL = '-m addrtype ! --dst-type LOCAL';

/**
 * Rules of the chain PORTWIDE-DNS as iptables-save prints them.
 * @param resolvers Canonical addresses of this IP family.
 * @param queue NFQUEUE number.
 */
export function dnsRules(family: IpFamily, resolvers: readonly string[], queue: number): string[] {
  const target = `NFQUEUE --queue-num ${queue} --queue-bypass`;
  const rules = resolvers.toSorted().flatMap((resolver) =>
    (['UDP', 'TCP'] as const).flatMap((protocol) => {
      const tracked = (direction: string) =>
        `-m conntrack --ctorigdst ${resolver} --ctorigdstport ${PORT} --ctdir ${direction}`;
      const untracked = ctstateMatch('UNTRACKED');
      const port = (side: 's' | 'd') => `-m ${protocol.toLowerCase()} --${side}port ${PORT}`;
      const address = exactAddress(resolver, family);
      return [
        { protocol, matches: [tracked('ORIGINAL'), FROM_NON_LOCAL], target },
        { protocol, matches: [tracked('REPLY'), TO_NON_LOCAL], target },
        { protocol, destination: address, matches: [port('d'), untracked, FROM_NON_LOCAL], target },
        { protocol, source: address, matches: [port('s'), untracked, TO_NON_LOCAL], target },
      ];
    }),
  );
  // The first rule returns packets of other connections, nearly all packets.
  const otherConnections = `-m conntrack ! --ctstate UNTRACKED ! --ctorigdstport ${PORT}`;
  return [{ matches: [otherConnections], target: 'RETURN' }, ...rules].map((rule) =>
    ruleText(DNS_CHAIN, rule),
  );
}

/**
 * Syncs the rules, so that they queue only packets of the given resolvers. Writes nothing if the
 * rules are in sync.
 * @param resolvers Canonical addresses. Addresses of the other IP family are ignored; without an
 * address of this family, the rules are removed.
 * @returns whether rules were written or removed.
 * @throws IptablesError; then nothing was changed.
 */
export async function syncDnsRules(
  table: MangleTable,
  resolvers: Iterable<string>,
  queue: number,
): Promise<boolean> {
  const { family } = table;
  const ofFamily = [...resolvers].filter((resolver) => familyOf(resolver) === family);
  if (ofFamily.length === 0) return await removeDnsRules(table);
  const rules = dnsRules(family, ofFamily, queue);
  const saved = (await table.saveTable('mangle')).split('\n');
  const missing = JUMPS.filter((jump) => !saved.includes(jump));
  const existing = saved.filter((line) => line.startsWith(`-A ${DNS_CHAIN} `));
  if (missing.length === 0 && existing.join('\n') === rules.join('\n')) return false;
  await restore(table, [...rules, ...missing]);
  return true;
}

/**
 * Removes the rules, whatever their queue number.
 * @returns whether the rules existed.
 * @throws IptablesError; then nothing was changed.
 */
export async function removeDnsRules(table: MangleTable): Promise<boolean> {
  const saved = (await table.saveTable('mangle')).split('\n');
  if (!saved.some((line) => line.startsWith(`:${DNS_CHAIN} `))) return false;
  const jumps = saved.filter((line) => line.endsWith(` -j ${DNS_CHAIN}`));
  const removals = jumps.map((jump) => jump.replace('-A ', '-D '));
  await restore(table, [...removals, `-X ${DNS_CHAIN}`]);
  return true;
}

/** Runs iptables-restore. The chain declaration in the input flushes the chain. */
async function restore(table: MangleTable, lines: readonly string[]): Promise<void> {
  const all = ['*mangle', `:${DNS_CHAIN} - [0:0]`, ...lines, 'COMMIT', ''];
  await table.restore([all.join('\n')]);
}
