/**
 * The rules of this mode: a constant number, whatever Services there are. What they decide on is in
 * ipsets. Names are kube-proxy's where it has the same.
 *
 * Marks: IPVS compares the whole mark of a packet, so all-ports packets get theirs whole, in
 * mangle, at its head: what others accept there (Calico) is marked too. Whether a connection is to be masqueraded is therefore noted in the mark of the connection
 * (conntrack), where it disturbs no mark of a packet and cannot masquerade a packet a second time
 * once it is encapsulated.
 */
import { canaries, jumpFrom, type SharedRule, type StaticRules } from '../iptables/base-rules.ts';
import {
  ALL_PORTS,
  ALL_PORTS_INSIDE,
  FORWARD,
  IPVS_FILTER,
  IPVS_NODE_PORT,
  IPVS_OUT_FILTER,
  POSTROUTING,
  PROXY_FIREWALL,
  SERVICES,
  type Table,
} from '../iptables/chains.ts';
import { ctstate } from '../iptables/rule.ts';
import { LISTED_PORT_SETS, type RuleOptions, setMatches } from './rule-matches.ts';
import { filterChains } from './rules-filter.ts';
import { mangleChains } from './rules-mangle.ts';
import { acceptVipTraffic, masqueradeRules, natChains } from './rules-nat.ts';

export type { RuleOptions } from './rule-matches.ts';

/**
 * The rules of this mode.
 * @param allPortsByRules all-ports Services have rules as in the iptables mode, which come in
 * between: behind what IPVS serves on a VIP that they share.
 */
export function ipvsStaticRules(options: RuleOptions, allPortsByRules: boolean): StaticRules {
  return {
    chains: () => [
      ...canaries(),
      ...mangleChains(options),
      ...natChains(options),
      ...filterChains(options),
    ],
    root: (table, root) => {
      if (table === 'nat' && root === SERVICES) {
        return { before: masqueradeRules(options), after: acceptVipTraffic(options) };
      }
      const before = setMatches(options).inSets(LISTED_PORT_SETS, 'RETURN');
      return { before, removeWhenEmpty: !allPortsByRules };
    },
    shared: () => [...ipvsJumps(), ...(allPortsByRules ? verdictJumps() : [])],
  };
}

function jump(table: Table, chain: string, target: string, text: string, onlyNew = false) {
  const matches = onlyNew ? [ctstate('NEW')] : [];
  return jumpFrom(table, chain, { comment: text, matches, target });
}

/** Jumps from built-in chains, first to last as they shall stand. */
function ipvsJumps(): SharedRule[] {
  const marks = 'kubernetes all-ports service marks';
  const firewall = 'kubernetes load balancer firewall';
  const portals = 'kubernetes service portals';
  return [
    jump('mangle', 'PREROUTING', ALL_PORTS, marks),
    jump('mangle', 'PREROUTING', PROXY_FIREWALL, firewall, true),
    jump('mangle', 'OUTPUT', ALL_PORTS_INSIDE, marks),
    jump('mangle', 'OUTPUT', PROXY_FIREWALL, firewall, true),
    jump('nat', 'PREROUTING', SERVICES, portals),
    jump('nat', 'OUTPUT', SERVICES, portals),
    jump('nat', 'POSTROUTING', POSTROUTING, 'kubernetes postrouting rules'),
    jump('filter', 'INPUT', IPVS_FILTER, 'kubernetes ipvs access filter', true),
    jump('filter', 'INPUT', IPVS_NODE_PORT, 'kubernetes health check rules'),
    jump('filter', 'FORWARD', FORWARD, 'kubernetes forwarding rules'),
    jump('filter', 'OUTPUT', IPVS_OUT_FILTER, 'kubernetes ipvs access filter', true),
  ];
}

/** To the chains of filter that the iptables mode has for all-ports Services. */
function verdictJumps(): SharedRule[] {
  const portals = 'kubernetes service portals';
  const firewall = 'kubernetes load balancer firewall';
  return ['INPUT', 'FORWARD', 'OUTPUT'].flatMap((chain) => [
    jump('filter', chain, PROXY_FIREWALL, firewall, true),
    jump('filter', chain, SERVICES, portals, true),
  ]);
}
