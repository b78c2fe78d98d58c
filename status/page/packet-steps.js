/** The steps of a packet's path through one Route, and the kernel objects of each step. Pure. */
import { counted, duration, number } from './format.js';

/** @import { KernelObject } from '../api/kernel.ts' */
/** @import { TrafficRates } from '../api/traffic.ts' */
/** @import { RouteStatus, ServiceDetail } from '../api/services.ts' */

/**
 * @typedef {'client' | 'match' | 'sources' | 'choice' | 'translate' | 'otherwise'} StepName
 * @typedef {object} Step
 * @property {StepName} name
 * @property {string} title
 * @property {readonly string[]} lines
 * @property {boolean} [isBad] Packets end here.
 */

/** Source ranges named in the drawing. */
const MAX_RANGES = 2;

/** @typedef {TrafficRates & { readonly endpoint: string | null }} EndpointTraffic */

/**
 * @param {RouteStatus} route @param {ServiceDetail} detail
 * @param {readonly EndpointTraffic[]} top empty if the agent does not count.
 * @returns {readonly Step[]}
 */
export function stepsOf(route, { connections }, top) {
  const { vip, ports, family, sourceRanges, endpoints, affinitySeconds, portsPerPod } = route;
  const { consistentHash } = route;
  const total =
    connections === null
      ? []
      : [counted(connections.total, 'conntrack entry', 'conntrack entries')];
  return [
    { name: 'client', title: 'Client', lines: [family, 'pod, node, or outside'] },
    { name: 'match', title: route.kind, lines: [vip ?? 'node addresses', portsText(ports)] },
    { name: 'sources', title: 'Allowed sources', lines: rangeLines(sourceRanges) },
    {
      name: 'choice',
      title: portsPerPod === null ? 'Endpoint choice' : 'Owner of the port',
      lines: [
        choiceText(endpoints.length, portsPerPod, consistentHash !== null),
        ...(affinitySeconds > 0 ? [`same for ${duration(affinitySeconds)}`] : []),
      ],
      isBad: endpoints.length === 0,
    },
    endpoints.length === 0
      ? {
          name: 'otherwise',
          title: route.otherwise ?? 'not handled',
          lines: [OTHERWISE[route.otherwise ?? 'none']],
          isBad: true,
        }
      : {
          name: 'translate',
          title: route.masquerade === 'none' ? 'New address, not tracked' : 'DNAT',
          lines: [
            ...(ports.startsWith('all') || ports.includes('-') ? ['port stays the same'] : []),
            MASQUERADE[route.masquerade],
            ...(top.length === 0 ? total : [`${number(newConnections(top))} new a second`]),
          ],
        },
  ];
}

/** New connections a second of the Service. @param {readonly EndpointTraffic[]} top */
function newConnections(top) {
  return top.reduce((sum, { connectionsPerSecond }) => sum + (connectionsPerSecond ?? 0), 0);
}

/** @param {number} endpoints @param {number | null} portsPerPod @param {boolean} isHashed */
function choiceText(endpoints, portsPerPod, isHashed) {
  if (endpoints === 0) return 'no endpoint';
  if (portsPerPod !== null) return `${portsPerPod} ports a pod, ${counted(endpoints, 'owner')}`;
  return endpoints === 1
    ? 'the only endpoint'
    : `1 of ${endpoints}, ${isHashed ? 'by hash' : 'at random'}`;
}

const MASQUERADE = {
  all: 'masquerade: all clients',
  'non-pods': 'masquerade: non-pods',
  node: 'masquerade: this node',
  none: 'no masquerade',
  'remote owners': 'masquerade: to other nodes',
};

const OTHERWISE = {
  reject: 'clients get an error',
  drop: 'clients get no answer',
  none: 'the node handles them',
};

/** @param {string} ports */
function portsText(ports) {
  if (ports === 'all') return 'all ports';
  return ports.length > 24 ? `${ports.slice(0, 23)}…` : ports;
}

/** @param {readonly string[] | null} ranges */
function rangeLines(ranges) {
  if (ranges === null) return ['all'];
  const rest = ranges.length - MAX_RANGES;
  return [...ranges.slice(0, MAX_RANGES), ...(rest > 0 ? [`and ${rest} more`] : [])];
}

/**
 * Steps of nf_tables elements, ipset entries and IPVS objects by type and container; the first match decides.
 * @type {readonly (readonly [RegExp, StepName])[]}
 */
const CONTAINERS = [
  [/\b(no-endpoint-|cluster-ips|service-range-ips|KUBE-DROP)/, 'otherwise'],
  [/\ballowed-(port-sources|vip-sources|ranges)|-SOURCE\b|-FW$/, 'sources'],
  [/\bhairpin-connections|LOOP-BACK/, 'translate'],
  [/\baffinity/, 'choice'],
  [/\bowned-restricted-vips/, 'sources'],
  [/\b((restricted|tracked|remote)-)?slice-(owners|vips)-\d+$/, 'translate'],
  [/\b(endpoints|endpoint-ips|node-port-endpoints)$|IPVS destination/, 'translate'],
];

/**
 * Steps of rules and chains of nftables and iptables by their text. Chains of `KUBE-SVC-VIP-` and the like only
 * dispatch.
 * @type {readonly (readonly [RegExp, StepName])[]}
 */
const RULES = [
  [/@allowed-|^chain firewall-/, 'sources'],
  [/@affinity|update-affinity/, 'choice'],
  [/ [sd]addr set |^chain owned-(tracked|speakers|answers)/, 'translate'],
  [/^dnat |^meta mark set|^\S+ saddr .*meta mark set/, 'translate'],
  [/^chain (internal|external)-/, 'choice'],
  [/KUBE-FW-|KUBE-SOURCE-RANGES|-FIREWALL\b/, 'sources'],
  [/-j (REJECT|DROP)\b|RESET-OR-/, 'otherwise'],
  [/^(-A |:)KUBE-SEP-|-j (DNAT|MASQUERADE|KUBE-MARK-MASQ)\b/, 'translate'],
  [/^(-A |:)KUBE-SV[CL]-(?!VIP-|NP-|HC-)/, 'choice'],
];

/** The step that a kernel object belongs to. @param {KernelObject} object @returns {StepName} */
export function stepOf({ type, in: container, desired, actual }) {
  const isRule = type === 'rule' || type === 'chain';
  const text = isRule ? (desired ?? actual ?? '') : `${type} ${container}`;
  const patterns = isRule ? RULES : CONTAINERS;
  return patterns.find(([pattern]) => pattern.test(text))?.[1] ?? 'match';
}

/**
 * The kernel objects of a step of one Route. Objects of endpoints hold both the choice and the address, so both steps
 * have them.
 * @param {readonly KernelObject[]} objects of the Service.
 * @param {string} step
 * @param {string | null} vip of the Route; null for a node port.
 * @param {readonly string[]} vips of the Service.
 */
export function objectsOf(objects, step, vip, vips) {
  return objects.filter((object) => {
    const own = stepOf(object);
    const text = object.desired ?? object.actual ?? '';
    const isChosen = step === 'choice' && own === 'translate' && hasEndpoint(object, text);
    if (own !== step && !isChosen) return false;
    const named = vips.filter((each) => hasAddress(text, each));
    return named.length === 0 || (vip !== null && named.includes(vip));
  });
}

/** Whether an object names endpoints, and is not only for masquerade. @param {KernelObject} object @param {string} text */
function hasEndpoint({ type, in: container }, text) {
  const all = `${type} ${container} ${text}`;
  return /endpoint|dnat|KUBE-SEP-|destination/i.test(all) && !/MASQ|mark set|hairpin/.test(all);
}

/** Whether a text contains an address as a whole. @param {string} text @param {string} address */
function hasAddress(text, address) {
  return text.split(/[^0-9a-f.:]+/).includes(address);
}
