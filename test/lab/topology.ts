/**
 * Address plan of a lab. Labs are isolated from each other, so all use the same addresses.
 *
 * ```
 *                       203.0.113.0/24, 10.96.0.0/16, ... via node
 *   pod-1 ... pod-N     client                        remote-1 ... remote-M
 *      |        |          |                             |            |
 *     pw1 ...  pwN        eth0                          pw1    ...   pwM
 *      '- node -'          |                             '-- node2 --'
 *          |               |                                   |
 *   =======+===============+=== LAN (bridge in elsewhere) =====+========
 * ```
 *
 * | what                     | IPv4                     | IPv6                            |
 * |--------------------------|--------------------------|---------------------------------|
 * | LAN                      | 192.168.77.0/24          | fd00:77::/64                    |
 * | node (under test)        | 192.168.77.10            | fd00:77::10                     |
 * | node2                    | 192.168.77.11            | fd00:77::11                     |
 * | client                   | 192.168.77.100           | fd00:77::100                    |
 * | client, second address   | 192.168.77.101           | fd00:77::101                    |
 * | elsewhere, on the LAN    | 192.168.77.1             | fd00:77::1                      |
 * | elsewhere                | 198.51.100.10            | 2001:db8:51::10                 |
 * | pods of node (pod-n)     | 10.244.1.0/24 (.10 + n)  | fd00:10:244:1::/64 (::10 + n)   |
 * | pods of node2 (remote-n) | 10.244.2.0/24 (.10 + n)  | fd00:10:244:2::/64 (::10 + n)   |
 * | Service cluster IPs      | 10.96.0.0/16             | fd00:10:96::/112                |
 * | load balancer VIPs       | 203.0.113.0/24           | 2001:db8:113::/64               |
 *
 * (IPv6 addresses end with the same digits as the IPv4 ones: pod-1 is 10.244.1.11 and
 * fd00:10:244:1::11.)
 *
 * Routes:
 * - pods are routed point to point, as with Calico or the ptp CNI plug-in: a /32 and /128 address
 *   and a default route through their node; the node has one host route for each pod;
 * - node and node2 have routes to each other's pod CIDR; their default gateway is `elsewhere`;
 * - the client's default gateway is node, so VIPs and pods are reached through it;
 * - `elsewhere` is the LAN's switch and an external host. It has no route to pod CIDRs, so pods get
 *   its answers only if their node masquerades. It forwards nothing: misrouted packets are lost.
 */

import { LabError } from './errors.ts';
import type { Family } from './outcomes.ts';

/** Prefixes that belong to no host; Services use addresses from them. */
export const PREFIXES = {
  lan: { 4: '192.168.77.0/24', 6: 'fd00:77::/64' },
  pods: { 4: '10.244.1.0/24', 6: 'fd00:10:244:1::/64' },
  remotePods: { 4: '10.244.2.0/24', 6: 'fd00:10:244:2::/64' },
  allPods: { 4: '10.244.0.0/16', 6: 'fd00:10:244::/48' },
  services: { 4: '10.96.0.0/16', 6: 'fd00:10:96::/112' },
  loadBalancers: { 4: '203.0.113.0/24', 6: '2001:db8:113::/64' },
} as const satisfies Record<string, Record<Family, string>>;

/**
 * Plan of a host: its addresses (the first of each family is the main one) and its `ip` commands.
 */
export interface HostPlan {
  readonly name: string;
  readonly namespace: string;
  readonly addresses: Readonly<Record<Family, readonly string[]>>;
  /** Lines for `ip -batch`, run inside the namespace. */
  readonly commands: readonly string[];
  readonly forwards: boolean;
}

/** Hosts in the order of creation: each stage needs the links created by the stages before. */
export interface Topology {
  readonly stages: readonly (readonly HostPlan[])[];
}

/** Parameters of a topology; see LabOptions. */
export interface TopologyOptions {
  readonly pods: number;
  readonly remotePods: number;
  readonly podInterfacePrefix: string;
}

const LONGEST_INTERFACE_NAME = 15;
const MOST_PODS = 80;
// All node sides have the same MAC address, as with Calico, so that pods need no ARP for their
// gateway.
const GATEWAY_MAC = 'ee:ee:ee:ee:ee:ee';
const POD_GATEWAY = { 4: '169.254.1.1', 6: 'fe80::1' };

/**
 * Plans a lab. Namespaces are named `<id>-<host>`.
 *
 * @throws LabError `BAD_OPTIONS`
 */
export function planTopology(id: string, options: TopologyOptions): Topology {
  checkOptions(options);
  const named = (name: string) => ({ name, namespace: `${id}-${name}` });
  const pods = planPods(options.pods, (n) => named(`pod-${n}`), '10.244.1.', 'fd00:10:244:1::');
  const remotePods = planPods(
    options.remotePods,
    (n) => named(`remote-${n}`),
    '10.244.2.',
    'fd00:10:244:2::',
  );
  const node = planNode(named('node'), pods, options.podInterfacePrefix, 10);
  const node2 = planNode(named('node2'), remotePods, options.podInterfacePrefix, 11);
  const client = planClient(named('client'));
  const elsewhere = planElsewhere(named('elsewhere'), [node, node2, client]);
  return { stages: [[elsewhere], [node, node2, client], [...pods, ...remotePods]] };
}

function checkOptions({ pods, remotePods, podInterfacePrefix }: TopologyOptions): void {
  for (const count of [pods, remotePods]) {
    if (!Number.isInteger(count) || count < 0 || count > MOST_PODS) {
      throw new LabError('BAD_OPTIONS', `expected 0 to ${MOST_PODS} pods, got ${count}`);
    }
  }
  const longest = `${podInterfacePrefix}${Math.max(pods, remotePods)}`;
  // White space would start other commands. `ip` rejects other invalid names itself.
  if (!/^\S+$/.test(podInterfacePrefix) || longest.length > LONGEST_INTERFACE_NAME) {
    throw new LabError('BAD_OPTIONS', `not a valid interface name prefix: ${podInterfacePrefix}`);
  }
}

function planPods(
  count: number,
  named: (n: number) => Pick<HostPlan, 'name' | 'namespace'>,
  prefix4: string,
  prefix6: string,
): HostPlan[] {
  return Array.from({ length: count }, (_, index) => {
    const ipv4 = `${prefix4}${11 + index}`;
    const ipv6 = `${prefix6}${11 + index}`;
    return {
      ...named(index + 1),
      addresses: { 4: [ipv4], 6: [ipv6] },
      forwards: false,
      commands: [
        'link set lo up',
        'link set eth0 up',
        `address add ${ipv4}/32 dev eth0`,
        `address add ${ipv6}/128 dev eth0 nodad`,
        `neighbour replace ${POD_GATEWAY[4]} lladdr ${GATEWAY_MAC} dev eth0 nud permanent`,
        `neighbour replace ${POD_GATEWAY[6]} lladdr ${GATEWAY_MAC} dev eth0 nud permanent`,
        `route add default via ${POD_GATEWAY[4]} dev eth0 onlink`,
        `route add ::/0 via ${POD_GATEWAY[6]} dev eth0`,
      ],
    };
  });
}

function planNode(
  named: Pick<HostPlan, 'name' | 'namespace'>,
  pods: readonly HostPlan[],
  prefix: string,
  number: 10 | 11,
): HostPlan {
  const [other, otherPods] =
    number === 10 ? ([11, PREFIXES.remotePods] as const) : ([10, PREFIXES.pods] as const);
  const links = pods.flatMap((pod, index) => {
    const link = `${prefix}${index + 1}`;
    return [
      `link add ${link} address ${GATEWAY_MAC} type veth peer name eth0 netns ${pod.namespace}`,
      `link set ${link} up`,
      `address add ${POD_GATEWAY[6]}/64 dev ${link} nodad`,
      `route add ${pod.addresses[4][0]}/32 dev ${link} scope link`,
      `route add ${pod.addresses[6][0]}/128 dev ${link}`,
    ];
  });
  return {
    ...named,
    addresses: { 4: [`192.168.77.${number}`], 6: [`fd00:77::${number}`] },
    forwards: true,
    commands: [
      'link set lo up',
      'link set eth0 up',
      `address add 192.168.77.${number}/24 dev eth0`,
      `address add fd00:77::${number}/64 dev eth0 nodad`,
      ...links,
      `route add ${otherPods[4]} via 192.168.77.${other}`,
      `route add ${otherPods[6]} via fd00:77::${other}`,
      'route add default via 192.168.77.1',
      'route add ::/0 via fd00:77::1',
    ],
  };
}

function planClient(named: Pick<HostPlan, 'name' | 'namespace'>): HostPlan {
  return {
    ...named,
    addresses: { 4: ['192.168.77.100', '192.168.77.101'], 6: ['fd00:77::100', 'fd00:77::101'] },
    forwards: false,
    commands: [
      'link set lo up',
      'link set eth0 up',
      'address add 192.168.77.100/24 dev eth0',
      'address add 192.168.77.101/24 dev eth0',
      // "preferred_lft 0" prevents the kernel from choosing the second address as a source.
      'address add fd00:77::100/64 dev eth0 nodad',
      'address add fd00:77::101/64 dev eth0 nodad preferred_lft 0',
      'route add default via 192.168.77.10',
      'route add ::/0 via fd00:77::10',
    ],
  };
}

function planElsewhere(
  named: Pick<HostPlan, 'name' | 'namespace'>,
  neighbours: readonly HostPlan[],
): HostPlan {
  const links = neighbours.flatMap(({ namespace }, index) => [
    `link add lan${index} type veth peer name eth0 netns ${namespace}`,
    `link set lan${index} master lan up`,
  ]);
  return {
    ...named,
    addresses: { 4: ['198.51.100.10', '192.168.77.1'], 6: ['2001:db8:51::10', 'fd00:77::1'] },
    forwards: false,
    commands: [
      'link set lo up',
      // Multicast snooping would delay neighbour discovery while it learns.
      'link add lan type bridge stp_state 0 forward_delay 0 mcast_snooping 0',
      ...links,
      'link set lan up',
      'address add 192.168.77.1/24 dev lan',
      'address add fd00:77::1/64 dev lan nodad',
      'address add 198.51.100.10/32 dev lo',
      'address add 2001:db8:51::10/128 dev lo nodad',
    ],
  };
}
