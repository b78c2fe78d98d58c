/**
 * The rules of this mode: a constant number, whatever Services there are. What they decide on is in
 * ipsets. Names are kube-proxy's where it has the same.
 *
 * Marks: IPVS compares the whole mark of a packet, so all-ports packets get theirs whole, in
 * mangle, at its head: what others accept there (Calico) is marked too. Whether a connection is to be masqueraded is therefore noted in the mark of the connection
 * (conntrack), where it disturbs no mark of a packet and cannot masquerade a packet a second time
 * once it is encapsulated.
 */
import {
  canaries,
  standingChain as chain,
  forwarding,
  type SharedRule,
  type StandingRules,
} from '../iptables/base-rules.ts';
import {
  ALL_PORTS,
  ALL_PORTS_FIREWALL,
  ALL_PORTS_INSIDE,
  ALL_PORTS_MARK,
  FORWARD,
  IPVS_FILTER,
  IPVS_NODE_PORT,
  IPVS_OUT_FILTER,
  LOAD_BALANCER,
  MARK_MASQ,
  PORT_RANGES_FIREWALL,
  POSTROUTING,
  PROXY_FIREWALL,
  SERVICES,
  SOURCE_RANGES_FIREWALL,
  type Table,
} from '../iptables/chains.ts';
import { DEPTH } from '../iptables/compile.ts';
import { ctstate, type RuleSpec, ruleText } from '../iptables/rule.ts';
import type { TreeChain } from '../iptables/vip-tree.ts';
import { bit, inSet, listed, type RuleOptions } from './rule-matches.ts';
import { accessFilter, allPortsFilter, outputFilter } from './rules-filter.ts';
import { allowedSources, firewall, markByVip, markInside, markOutside } from './rules-mangle.ts';
import {
  loadBalancerMasquerades,
  masquerades,
  nodePortMasquerades,
  postrouting,
  untranslated,
} from './rules-nat.ts';
import type { SetName } from './sets.ts';

export type { RuleOptions } from './rule-matches.ts';

/**
 * The rules of this mode.
 * @param allPortsByRules all-ports Services have rules as in the iptables mode, which come in
 * between: behind what IPVS serves on a VIP that they share.
 */
export function ipvsStanding(options: RuleOptions, allPortsByRules: boolean): StandingRules {
  const texts = (chain: string, rules: readonly RuleSpec[]) =>
    rules.map((rule) => ruleText(chain, rule));
  return {
    chains: () => ipvsChains(options),
    root: (table, root) => {
      if (table === 'nat' && root === SERVICES) {
        return {
          before: texts(root, masquerades(options)),
          after: texts(root, untranslated(options)),
        };
      }
      return { before: texts(root, listed(options, 'RETURN')), mayGo: !allPortsByRules };
    },
    shared: () => [...ipvsJumps(), ...(allPortsByRules ? verdictJumps() : [])],
  };
}

/** Chains of who may use VIPs, and the sets that say so. */
const SOURCES: readonly (readonly [string, string, readonly SetName[]])[] = [
  [
    SOURCE_RANGES_FIREWALL,
    'dst,dst,src',
    ['KUBE-LOAD-BALANCER-SOURCE-CIDR', 'KUBE-LOAD-BALANCER-SOURCE-IP'],
  ],
  [PORT_RANGES_FIREWALL, 'dst,dst,src', ['KUBE-PORT-RANGES-SOURCE']],
  [ALL_PORTS_FIREWALL, 'dst,src', ['KUBE-ALL-PORTS-SOURCE']],
];

function ipvsChains(options: RuleOptions): TreeChain[] {
  return [
    ...canaries(),
    chain('mangle', ALL_PORTS, markOutside(options)),
    chain('mangle', ALL_PORTS_INSIDE, markInside(options)),
    chain('mangle', ALL_PORTS_MARK, markByVip(options), DEPTH.branch),
    chain('mangle', PROXY_FIREWALL, firewall(options)),
    ...SOURCES.map(([name, flags, sets]) =>
      chain('mangle', name, allowedSources(sets, flags, options), DEPTH.branch),
    ),
    chain('nat', LOAD_BALANCER, loadBalancerMasquerades(options), DEPTH.branch),
    chain('nat', IPVS_NODE_PORT, nodePortMasquerades(options), DEPTH.branch),
    chain('nat', MARK_MASQ, [{ target: `CONNMARK --set-xmark ${bit(options)}` }], DEPTH.mark),
    chain('nat', POSTROUTING, postrouting(options)),
    // While modes iptables and ipvs take over from each other, nat is still, or already, the iptables
    // mode's, which marks packets.
    chain(
      'filter',
      FORWARD,
      forwarding(`-m connmark --mark ${bit(options)}`, `-m mark --mark ${bit(options)}`),
    ),
    chain('filter', IPVS_NODE_PORT, [
      {
        protocol: 'TCP',
        comment: 'Kubernetes health check node port',
        matches: [inSet('KUBE-HEALTH-CHECK-NODE-PORT', 'dst', options)],
        target: 'ACCEPT',
      },
    ]),
    chain('filter', IPVS_FILTER, accessFilter(options)),
    chain('filter', IPVS_OUT_FILTER, outputFilter(options)),
    chain('filter', ALL_PORTS, allPortsFilter(options), DEPTH.branch),
  ];
}

function jump(table: Table, chain: string, target: string, text: string, onlyNew = false) {
  const matches = onlyNew ? [ctstate('NEW')] : [];
  return { table, chain, builtin: true, rule: ruleText(chain, { comment: text, matches, target }) };
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
