/**
 * iptables rules of the ipvs mode. Unless `--ipvs-all-ports=iptables` is set, the number of rules
 * is constant, because all state of Services is in ipsets. A rule that kube-proxy also has gets
 * kube-proxy's names.
 *
 * IPVS compares the whole mark of a packet. All-ports packets therefore get their whole mark at the
 * head of table mangle, so that packets that other programs accept there (Calico) are marked too.
 * Whether to masquerade a connection is recorded in the connection mark (conntrack). The connection
 * mark does not interfere with packet marks, and an encapsulated packet is not masqueraded a second
 * time.
 */
import {
  canaryChains,
  jumpFrom,
  type SharedRule,
  type StaticRules,
} from '../iptables/base-rules.ts';
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
import { ctstateMatch } from '../iptables/rule.ts';
import { LISTED_PORT_SETS, type RuleOptions, setMatches } from './rule-matches.ts';
import { filterChains } from './rules-filter.ts';
import { mangleChains } from './rules-mangle.ts';
import { acceptVipTraffic, masqueradeRules, natChains } from './rules-nat.ts';

export type { RuleOptions } from './rule-matches.ts';

/**
 * Static rules of the ipvs mode.
 * @param allPortsByRules all-ports Services use the rules of the iptables mode
 * (`--ipvs-all-ports=iptables`). Ports that IPVS serves on a shared VIP take precedence over
 * all-ports Services.
 */
export function ipvsStaticRules(options: RuleOptions, allPortsByRules: boolean): StaticRules {
  return {
    chains: () => [
      ...canaryChains(),
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
  const matches = onlyNew ? [ctstateMatch('NEW')] : [];
  return jumpFrom(table, chain, { comment: text, matches, target });
}

/** Jumps from built-in chains, in order. */
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

/** Jumps to the chains of table filter that the iptables mode uses for all-ports Services. */
function verdictJumps(): SharedRule[] {
  const portals = 'kubernetes service portals';
  const firewall = 'kubernetes load balancer firewall';
  return ['INPUT', 'FORWARD', 'OUTPUT'].flatMap((chain) => [
    jump('filter', chain, PROXY_FIREWALL, firewall, true),
    jump('filter', chain, SERVICES, portals, true),
  ]);
}
