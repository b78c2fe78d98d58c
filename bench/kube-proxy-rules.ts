/**
 * The rules that kube-proxy 1.34 would write for a cluster of this benchmark, as iptables-restore
 * input. Chain KUBE-SERVICES has a rule per Service; each Service and each endpoint has a chain. The
 * time that kube-proxy needs to compute the rules is not measured.
 *
 * Above 1,000 endpoints kube-proxy leaves out the comments of endpoint rules, and so does this
 * file. Comments of cluster IP rules remain.
 */
import { socketAddress } from '../api/addresses.ts';
import { MARK_MASQ, SERVICES, serviceChains } from '../iptables/chains.ts';
import { exactAddress, type RuleSpec, ruleText, statisticMatch } from '../iptables/rule.ts';
import {
  endpointAddresses,
  POD_CIDR,
  SERVICE_PORT,
  serviceKey,
  TARGET_PORT,
  vip,
} from './cluster.ts';

/** Rules by chain name. */
type Chains = Map<string, string[]>;

const MARK = '0x4000/0x4000';

/** The jumps from the built-in chains, which kube-proxy creates with single commands. */
export const JUMPS = [
  '*filter',
  ':KUBE-SERVICES - [0:0]',
  ':KUBE-EXTERNAL-SERVICES - [0:0]',
  ':KUBE-FORWARD - [0:0]',
  ':KUBE-NODEPORTS - [0:0]',
  ':KUBE-PROXY-FIREWALL - [0:0]',
  '-A INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL',
  '-A INPUT -j KUBE-NODEPORTS',
  '-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES',
  '-A FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL',
  '-A FORWARD -j KUBE-FORWARD',
  '-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES',
  '-A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES',
  '-A OUTPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL',
  '-A OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES',
  'COMMIT',
  '*nat',
  ':KUBE-SERVICES - [0:0]',
  ':KUBE-POSTROUTING - [0:0]',
  '-A PREROUTING -j KUBE-SERVICES',
  '-A OUTPUT -j KUBE-SERVICES',
  '-A POSTROUTING -j KUBE-POSTROUTING',
  'COMMIT',
  '',
].join('\n');

/** All rules, as in kube-proxy's full sync. */
export function fullInput(services: Iterable<number>): string {
  const changed = Array.from(services, (index) => ({ index, addresses: endpointAddresses(index) }));
  return changeInput(services, changed);
}

/**
 * kube-proxy's input for a change: the chains of the changed Services, and the chains shared by all
 * Services.
 */
export function changeInput(
  services: Iterable<number>,
  changed: readonly { readonly index: number; readonly addresses: readonly string[] }[],
): string {
  const chains = changed.flatMap(({ index, addresses }) => [...serviceRules(index, addresses)]);
  const nat = new Map([...natBase(services), ...chains]);
  return table('filter', filterBase()) + table('nat', nat);
}

/**
 * All rules in several transactions, for commands that cannot load them in one. kube-proxy does not
 * do this.
 */
export function inputInParts(services: Iterable<number>, chainsPerTransaction: number): string {
  const all = [...services];
  const base = natBase(all);
  const own = all.flatMap((index) => [...serviceRules(index)]);
  const isEndpoint = ([name]: readonly [string, unknown]) => name.startsWith('KUBE-SEP-');
  // Chains that are jump targets come first.
  const chains = [
    ...[...base].filter(([name]) => name === MARK_MASQ),
    ...own.filter(isEndpoint),
    ...own.filter((chain) => !isEndpoint(chain)),
  ];
  const parts = [table('filter', filterBase())];
  for (let at = 0; at < chains.length; at += chainsPerTransaction) {
    parts.push(table('nat', new Map(chains.slice(at, at + chainsPerTransaction))));
  }
  return [...parts, table('nat', base)].join('');
}

function table(name: string, chains: Chains): string {
  const lines = [`*${name}`];
  for (const chain of chains.keys()) lines.push(`:${chain} - [0:0]`);
  for (const rules of chains.values()) for (const rule of rules) lines.push(rule);
  lines.push('COMMIT', '');
  return lines.join('\n');
}

function filterBase(): Chains {
  const forward = [
    '-m conntrack --ctstate INVALID -j DROP',
    `-m comment --comment "kubernetes forwarding rules" -m mark --mark ${MARK} -j ACCEPT`,
    '-m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
  ];
  return new Map([
    ['KUBE-SERVICES', []],
    ['KUBE-EXTERNAL-SERVICES', []],
    ['KUBE-FORWARD', forward.map((rule) => `-A KUBE-FORWARD ${rule}`)],
    ['KUBE-NODEPORTS', []],
    ['KUBE-PROXY-FIREWALL', []],
  ]);
}

function natBase(services: Iterable<number>): Chains {
  const postrouting = [
    `-m mark ! --mark ${MARK} -j RETURN`,
    '-j MARK --set-xmark 0x4000/0x0',
    '-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully',
  ];
  const dispatch = Array.from(services, (index) =>
    ruleText(SERVICES, {
      ...clusterIP(index),
      target: serviceChains(serviceKey(index), 'TCP').cluster,
    }),
  );
  dispatch.push(`-A ${SERVICES} -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS`);
  return new Map([
    [SERVICES, dispatch],
    ['KUBE-NODEPORTS', []],
    ['KUBE-POSTROUTING', postrouting.map((rule) => `-A KUBE-POSTROUTING ${rule}`)],
    [MARK_MASQ, [`-A ${MARK_MASQ} -j MARK --set-xmark ${MARK}`]],
  ]);
}

function serviceRules(
  index: number,
  addresses = endpointAddresses(index) as readonly string[],
): Chains {
  const names = serviceChains(serviceKey(index), 'TCP');
  const chains: Chains = new Map();
  const masquerade = {
    ...clusterIP(index),
    source: { value: POD_CIDR, not: true },
    target: MARK_MASQ,
  };
  const rules = [ruleText(names.cluster, masquerade)];
  chains.set(names.cluster, rules);
  addresses.forEach((address, number) => {
    const rest = addresses.length - number;
    const name = names.endpoint(address, TARGET_PORT);
    rules.push(
      ruleText(names.cluster, { matches: rest > 1 ? [statisticMatch(rest)] : [], target: name }),
    );
    chains.set(name, [
      ruleText(name, { source: exactAddress(address, 'IPv4'), target: MARK_MASQ }),
      ruleText(name, {
        protocol: 'TCP',
        target: `DNAT --to-destination ${socketAddress(address, TARGET_PORT)}`,
      }),
    ]);
  });
  return chains;
}

function clusterIP(index: number): Omit<RuleSpec, 'target'> {
  return {
    destination: exactAddress(vip(index), 'IPv4'),
    protocol: 'TCP',
    ports: [{ from: SERVICE_PORT, to: SERVICE_PORT }],
    comment: `${serviceKey(index)} cluster IP`,
  };
}
