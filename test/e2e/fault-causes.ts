/**
 * For each fault the command that names its cause, and where the page does. One test body tries both with packets
 * (fault-lab.ts), and docs/operate/inspect.md lists them.
 */

/** A link or button by its text. */
export type Click = readonly [role: 'link' | 'button', name: string];

/** A way through the page from its start, in two clicks at most. */
export interface PageWay {
  /** As docs/operate/inspect.md names the place. */
  readonly place: string;
  readonly clicks: readonly [] | readonly [Click] | readonly [Click, Click];
  /** What is filled in before the last click, by the names of the fields. */
  readonly fields: Readonly<Record<string, string>>;
  /** CSS selector. One of the elements says the cause. */
  readonly element: string;
}

/** How command and page name the cause of a fault. */
export interface Cause {
  /** As docs/operate/inspect.md names it. */
  readonly fault: string;
  /** A command of `portwide`. `check` gets the flags of the agent. */
  readonly command: readonly string[];
  readonly exitCode: number;
  /** Found in the output of the command. */
  readonly printed: RegExp;
  readonly page: PageWay;
  /** Found in the text of the element. */
  readonly shown: RegExp;
}

const onNode = (element: string, place: string): PageWay => ({
  ...{ place, element, clicks: [], fields: {} },
});
const NODE_PROBLEMS = onNode('.problems li', 'Node: Problems');
const NODE_CHECKS: PageWay = {
  ...onNode('table[aria-label=Checks] tbody tr', 'Node: Check this node'),
  clicks: [['button', 'Check this node']],
};
const ofService = (name: string, element: string, place: string): PageWay => ({
  place: `Service: ${place}`,
  clicks: [
    ['link', 'Services'],
    ['link', name],
  ],
  fields: {},
  element,
});
const problemsOf = (name: string) => ofService(name, '.problems li', 'Problems');
const tableOf = (name: string, title: string) =>
  ofService(name, `table[aria-label="${title}"] tbody tr`, title);
const traced = (fields: Readonly<Record<string, string>>): PageWay => ({
  place: 'Trace',
  clicks: [
    ['link', 'Trace'],
    ['button', 'Trace'],
  ],
  fields,
  element: 'section table[aria-label^=Steps] tbody tr',
});
const CHANGES: PageWay = {
  ...onNode('table[aria-label=Changes] tbody tr', 'Changes'),
  clicks: [['link', 'Changes']],
};
const CLIENT = '192.168.77.100';
const VIP = '10.96.0.10';
const POD_TO_WEB = { from: 'default/pod-2', to: 'default/web' };
const DOMAIN = { from: 'default/pod-1', to: '198.18.0.1', port: '443' };
const DESCRIBE = ['describe', 'service'];

/** Faults of Services and policies. */
export const SERVICE_CAUSES = {
  unreadable: {
    fault: 'faulty object or manifest',
    command: ['status'],
    exitCode: 1,
    printed: /^ {2}Unreadable +Service default\/faulty +\S+faulty\.json.*sessionAffinity/m,
    page: NODE_PROBLEMS,
    shown: /Unreadable.*default\/faulty.*sessionAffinity.*it is not in force/s,
  },
  partial: {
    fault: 'IP family or port without endpoints',
    command: ['get', 'svc', '--state', 'partial'],
    exitCode: 0,
    printed: /^default +web +ClusterIP +partial /m,
    page: { place: 'Services', clicks: [['link', 'Services']], fields: {}, element: 'main .state' },
    shown: /partly no endpoints/,
  },
  deletedTable: {
    fault: 'deleted rule in mode nftables',
    command: ['status'],
    exitCode: 0,
    printed: /^ {2}IPv4 .* \d+, \d+m?s ago: table ip portwide was deleted$/m,
    page: CHANGES,
    shown: /external change.*IPv4.*Services.*table ip portwide was deleted/s,
  },
  deletedPolicy: {
    fault: 'deleted rule of a policy',
    command: ['status'],
    exitCode: 0,
    printed: /^Policies: .* drift \d+, \d+m?s ago: table ip portwide-policy was deleted$/m,
    page: CHANGES,
    shown: /external change.*IPv4.*policies.*table ip portwide-policy was deleted/s,
  },
  noneReady: {
    fault: 'no endpoint ready',
    command: [...DESCRIBE, 'default/web'],
    exitCode: 0,
    printed: /^ {2}NoEndpoints +IPv4 +no endpoint is ready \(0 of 1\); packets are rejected$/m,
    page: problemsOf('default/web'),
    shown: /NoEndpoints.*no endpoint is ready \(0 of 1\); packets are rejected/,
  },
  oneNotReady: {
    fault: 'endpoint not ready',
    command: ['get', 'endpoints', 'default/web'],
    exitCode: 0,
    printed: /10\.244\.\d+\.\d+:8080 +notReady +no +not ready/,
    page: tableOf('default/web', 'Endpoints'),
    shown: /10\.244\.\d+\.\d+:8080.*no\s*not ready/,
  },
  zoneHints: {
    fault: 'zone hints',
    command: ['get', 'endpoints', 'default/web'],
    exitCode: 0,
    printed: /10\.244\.2\.\d+.* no +hinted for another zone/,
    page: tableOf('default/web', 'Endpoints'),
    shown: /^10\.244\.2\.\d+:8080.*no\s*hinted for another zone/,
  },
  localPolicy: {
    fault: 'traffic policy `Local` without local endpoints',
    command: [...DESCRIBE, 'default/web'],
    exitCode: 0,
    printed:
      /NoEndpoints +IPv4 +spec\.externalTrafficPolicy: Local, and no endpoint is on this node; packets from outside are dropped/,
    page: problemsOf('default/web'),
    shown: /spec\.externalTrafficPolicy: Local, and no endpoint is on this node/,
  },
  nodeAddress: {
    fault: 'refused VIP',
    command: ['status'],
    exitCode: 1,
    printed:
      /RefusedNodeAddress +Service default\/media +\S+: 192\.168\.77\.10 is an address of this node/,
    page: NODE_PROBLEMS,
    shown: /RefusedNodeAddress.*default\/media.*192\.168\.77\.10 is an address of this node/,
  },
  overlap: {
    fault: 'VIP of another Service',
    command: [...DESCRIBE, 'default/second'],
    exitCode: 0,
    printed:
      /^ {2}RefusedOverlap .*10\.96\.0\.10: is the cluster IP of Service default\/first, and no other Service gets a port of it$/m,
    page: problemsOf('default/second'),
    shown:
      /RefusedOverlap.*is the cluster IP of Service default\/first, and no other Service gets a port of it/,
  },
  sourceRanges: {
    fault: 'source ranges',
    command: ['trace', CLIENT, '203.0.113.10', '--port=80'],
    exitCode: 1,
    printed:
      /Source ranges: 192\.168\.77\.100 is not in spec\.loadBalancerSourceRanges: the packet is dropped \[Service default\/web\]\n +allowed: 198\.51\.100\.0\/24/,
    page: traced({ from: CLIENT, to: '203.0.113.10', port: '80' }),
    shown:
      /192\.168\.77\.100 is not in spec\.loadBalancerSourceRanges: the packet is dropped.*Service default\/web.*allowed: 198\.51\.100\.0\/24/,
  },
  staleConnection: {
    fault: 'conntrack entry of a deleted pod',
    command: [...DESCRIBE, 'default/dns'],
    exitCode: 0,
    printed:
      /StaleConnections .* 1 connection leads to an endpoint that does not serve the Service any longer; the first is UDP from 192\.168\.77\.100:5353 to 10\.244\.1\.99:53/,
    page: problemsOf('default/dns'),
    shown:
      /StaleConnections.*1 connection leads to .* UDP from 192\.168\.77\.100:5353 to 10\.244\.1\.99:53/,
  },
  foreignDrop: {
    fault: 'drop by another program',
    command: ['trace', CLIENT, VIP, '--port=80'],
    exitCode: 1,
    printed:
      /Rules of other programs: table inet firewall, base chain guard \(priority 5, policy accept\), rule \d+ \(handle \d+\) drops the packet\n(?: +as these rules were \d+ seconds ago\n)? +\d+\. Result: the packet is dropped by another program/,
    page: traced({ from: CLIENT, to: VIP, port: '80' }),
    shown: /Rules of other programs.*table inet firewall, base chain guard .* drops the packet/,
  },
  foreignMasquerade: {
    fault: 'masquerade by another CNI',
    command: ['trace', '10.244.1.12', 'default/web'],
    exitCode: 0,
    printed:
      /Rules of other programs: table inet firewall, base chain post \(priority 95, policy accept\), rule \d+ \(handle \d+\) masquerades the packet/,
    page: traced({ from: '10.244.1.12', to: 'default/web' }),
    shown:
      /Rules of other programs.*table inet firewall, base chain post .* masquerades the packet/,
  },
  checkedMasquerade: {
    fault: 'masquerade by another CNI',
    command: ['check'],
    exitCode: 1,
    printed:
      /^fail {2}CNI masquerade .*table inet firewall, base chain post .* masquerades connections from pods to endpoints/m,
    page: NODE_CHECKS,
    shown:
      /fail\s*CNI masquerade.*table inet firewall, base chain post .* masquerades connections from pods to endpoints/,
  },
  ingressPolicy: deniedBy('Ingress policy', 'policies of the endpoint'),
  egressPolicy: deniedBy('Egress policy', 'policies of the source'),
  policyRule: {
    fault: 'policy',
    command: ['trace', POD_TO_WEB.from, POD_TO_WEB.to],
    exitCode: 1,
    printed:
      /deny the connection \[AdminNetworkPolicy strict\]\n +AdminNetworkPolicy strict spec\.egress\[0\] \(no-web\) denies it/,
    page: traced(POD_TO_WEB),
    shown: /deny the connection.*AdminNetworkPolicy strict spec\.egress\[0\] \(no-web\) denies it/,
  },
  notInspected: {
    fault: 'DNS answers not inspected',
    command: ['status'],
    exitCode: 1,
    printed:
      /^ {2}DnsNotInspected .*policies have domain names, and DNS answers are not inspected, so no new address is allowed; set --fqdn-resolvers/m,
    page: NODE_PROBLEMS,
    shown: /DnsNotInspected.*DNS answers are not inspected, .*set --fqdn-resolvers/,
  },
  notLearned: {
    fault: 'DNS name not learned',
    command: ['trace', DOMAIN.from, DOMAIN.to, `--port=${DOMAIN.port}`],
    exitCode: 1,
    printed:
      /deny the connection \[NetworkPolicy default\/isolated\]\n.*none of its rules allows it\n +AdminNetworkPolicy names spec\.egress\[0\] \(\*\.example\.com\) does not match: this agent saw no DNS answer for it with the address of 198\.18\.0\.1:443$/m,
    page: traced(DOMAIN),
    shown:
      /NetworkPolicy default\/isolated.*AdminNetworkPolicy names spec\.egress\[0\] \(\*\.example\.com\) does not match: this agent saw no DNS answer for it with the address of 198\.18\.0\.1:443/,
  },
} as const satisfies Readonly<Record<string, Cause>>;

/** A NetworkPolicy that isolates a pod of the connection from pod-2 to default/web. */
function deniedBy(title: string, policies: string): Cause {
  const because =
    'the pod is isolated by NetworkPolicy default/shut, and none of its rules allows it';
  return {
    fault: 'policy',
    command: ['trace', POD_TO_WEB.from, POD_TO_WEB.to],
    exitCode: 1,
    printed: new RegExp(
      `${title}: ${policies} deny the connection \\[NetworkPolicy default/shut\\]\\n +${because}`,
    ),
    page: traced(POD_TO_WEB),
    shown: new RegExp(`${title}.*${policies} deny the connection.*${because}`),
  };
}

/** Faults of the node and its programs. */
export const NODE_CAUSES = {
  routeLocalnet: {
    fault: '`route_localnet`',
    command: ['check'],
    exitCode: 0,
    printed:
      /^warn {2}route_localnet +1: other hosts can reach 127\.0\.0\.0\/8 unless rules drop it, and mode nftables does not need it -> .*set net\.ipv4\.conf\.all\.route_localnet=0/m,
    page: NODE_CHECKS,
    shown:
      /warn\s*route_localnet.*other hosts can reach 127\.0\.0\.0\/8 .*set net\.ipv4\.conf\.all\.route_localnet=0/,
  },
  clusterCidr: {
    fault: 'wrong CIDR',
    command: ['check'],
    exitCode: 1,
    printed:
      /^fail {2}local pods +--cluster-cidr=10\.20\.0\.0\/16 does not contain pod CIDR 10\.244\.1\.0\/24 of this node -> set --cluster-cidr/m,
    page: NODE_CHECKS,
    shown:
      /fail\s*local pods.*--cluster-cidr=10\.20\.0\.0\/16 does not contain pod CIDR 10\.244\.1\.0\/24.*set --cluster-cidr/,
  },
  serviceCidrs: {
    fault: 'wrong CIDR',
    command: ['check'],
    exitCode: 1,
    printed:
      /^fail {2}Service CIDRs +--service-cidrs=10\.0\.0\.0\/8 contains pod CIDR 10\.244\.1\.0\/24.* -> correct --service-cidrs: packets to addresses in it that are no cluster IP are dropped/m,
    page: NODE_CHECKS,
    shown:
      /fail\s*Service CIDRs.*--service-cidrs=10\.0\.0\.0\/8 contains pod CIDR.*correct --service-cidrs/,
  },
  conntrackFull: {
    fault: 'conntrack table full',
    command: ['status'],
    exitCode: 1,
    printed:
      /^ {2}Kernel .*net\.netfilter\.nf_conntrack_count \d+ of \d+: the conntrack table is almost full, and then new connections are dropped; raise --conntrack-max-per-core$/m,
    page: NODE_PROBLEMS,
    shown:
      /nf_conntrack_count \d+ of \d+: the conntrack table is almost full, .*raise --conntrack-max-per-core/,
  },
  deletedRule: {
    fault: 'deleted rule in other modes',
    command: ['diff'],
    exitCode: 1,
    printed:
      /^@@ IPv4 rule in nat, Service default\/web: missing @@\n\+-A KUBE-SEP-\S+ .*-j DNAT --to-destination 10\.244\.1\.\d+:8080$/m,
    page: tableOf('default/web', 'Objects in the kernel'),
    shown: /^missing.*nothing.*-A KUBE-SEP-\S+ .*-j DNAT --to-destination 10\.244\.1\.\d+:8080/,
  },
  apiServerAway: {
    fault: 'API server away',
    command: ['status'],
    exitCode: 1,
    printed:
      /^ {2}WatchDown .*since \d{4}-\d{2}-\d{2}T\S+; rules stay as they are\. Check the API server 127\.0\.0\.1:\d+$/m,
    page: NODE_PROBLEMS,
    shown: /WatchDown.*rules stay as they are\. Check the API server 127\.0\.0\.1:\d+/,
  },
  apiServerAwayAtStart: {
    fault: 'API server away',
    command: ['status'],
    exitCode: 1,
    printed: /^Waiting for: +Services from the API server 127\.0\.0\.1:\d+, /m,
    page: onNode('.notice', 'Node: Problems'),
    shown: /Waiting for Services from the API server 127\.0\.0\.1:\d+, /,
  },
} as const satisfies Readonly<Record<string, Cause>>;

/** Mode iptables, where other programs write into the same chains as the agent. */
export const IPTABLES_CAUSES = {
  foreignDrop: {
    ...SERVICE_CAUSES.foreignDrop,
    printed:
      /Rules of other programs: table ip filter \(iptables-nft\), base chain FORWARD [^\n]* --dport 8080 -j DROP drops the packet\n(?: +as these rules were \d+ seconds ago\n)? +\d+\. Result: the packet is dropped by another program/,
    shown:
      /Rules of other programs.*table ip filter \(iptables-nft\), base chain FORWARD .* --dport 8080 -j DROP drops the packet/,
  },
  foreignMasquerade: {
    ...SERVICE_CAUSES.foreignMasquerade,
    printed:
      /Rules of other programs: table ip nat \(iptables-nft\), base chain POSTROUTING [^\n]* -j MASQUERADE masquerades the packet/,
    shown:
      /Rules of other programs.*table ip nat \(iptables-nft\), base chain POSTROUTING .* -j MASQUERADE masquerades the packet/,
  },
} as const satisfies Readonly<Record<string, Cause>>;

/** Mode ipvs, with objects of its own, and with the tables of iptables-legacy. */
export const IPVS_CAUSES = {
  noneReady: SERVICE_CAUSES.noneReady,
  localPolicy: SERVICE_CAUSES.localPolicy,
  nodeAddress: SERVICE_CAUSES.nodeAddress,
  sourceRanges: SERVICE_CAUSES.sourceRanges,
  staleConnection: SERVICE_CAUSES.staleConnection,
  conntrackFull: NODE_CAUSES.conntrackFull,
  foreignDrop: {
    ...SERVICE_CAUSES.foreignDrop,
    printed:
      /Rules of other programs: table ip filter \(iptables-legacy\), base chain OUTPUT \(priority 0, policy accept\), rule [^\n]* -j DROP drops the packet\n(?: +as these rules were \d+ seconds ago\n)? +\d+\. Result: the packet is dropped by another program/,
    shown:
      /Rules of other programs.*table ip filter \(iptables-legacy\), base chain OUTPUT .* -j DROP drops the packet/,
  },
  deletedRule: {
    ...NODE_CAUSES.deletedRule,
    printed:
      /^@@ IPv4 IPVS destination in TCP 10\.96\.0\.10:80, Service default\/web: missing @@\n\+-a -t 10\.96\.0\.10:80 -r 10\.244\.1\.\d+:8080 -m -w 1$/m,
    shown: /^missing.*nothing.*-a -t 10\.96\.0\.10:80 -r 10\.244\.1\.\d+:8080 -m -w 1/,
  },
} as const satisfies Readonly<Record<string, Cause>>;

/** The title of the test of a fault. */
export function titleOf({ fault, command, page }: Cause): string {
  return `${fault}: ${command[0]}, and page ${page.place}`;
}
