/**
 * Three network namespaces in a row, as a new connection sees a cluster: a client pod, the node
 * whose rules are measured, and a namespace that holds every endpoint address. No process listens
 * there: a connection that passed the node is refused by the endpoint itself.
 *
 * client 10.255.0.2 ── 10.255.0.1 node 192.0.2.1 ── 192.0.2.2 endpoints (10.128.0.0/9)
 */
import { randomBytes } from 'node:crypto';
import { execa } from 'execa';
import { guard, removeNamespaces } from '../test/lab/namespaces.ts';
import { POD_CIDR } from './cluster.ts';

export const CLIENT_ADDRESS = '10.255.0.2';
/** Address of the node on the client's side. */
export const NODE_ADDRESS = '10.255.0.1';

export interface Network {
  readonly client: string;
  readonly node: string;
  readonly endpoints: string;
}

/** Rules of client and endpoints: both count and drop packets at once, so no socket answers or refuses them. */
export const UDP_SINK = `table ip sink {
  counter received { }
  chain input { type filter hook input priority 0; meta l4proto udp counter name received drop; }
}`;

/** Creates the namespaces, and removes them when `use` ends. */
export async function withNetwork<Result>(
  use: (network: Network) => Promise<Result>,
): Promise<Result> {
  const id = `pwb-${randomBytes(3).toString('hex')}`;
  const network = { client: `${id}-client`, node: `${id}-node`, endpoints: `${id}-endpoints` };
  const namespaces = Object.values(network);
  const unguard = guard({ namespaces, kill: () => {} });
  try {
    await build(network);
    return await use(network);
  } finally {
    await removeNamespaces(namespaces);
    unguard();
  }
}

async function build({ client, node, endpoints }: Network): Promise<void> {
  const setUp = ['link set lo up'];
  await ip(
    [],
    [client, node, endpoints].map((name) => `netns add ${name}`),
  );
  await ip(
    ['-n', node],
    [
      ...setUp,
      `link add client type veth peer name eth0 netns ${client}`,
      `link add endpoints type veth peer name eth0 netns ${endpoints}`,
      `address add ${NODE_ADDRESS}/30 dev client`,
      'address add 192.0.2.1/30 dev endpoints',
      'link set client up',
      'link set endpoints up',
      `route add ${POD_CIDR} via 192.0.2.2`,
    ],
  );
  await ip(
    ['-n', client],
    [
      ...setUp,
      `address add ${CLIENT_ADDRESS}/30 dev eth0`,
      'link set eth0 up',
      `route add default via ${NODE_ADDRESS}`,
    ],
  );
  await ip(
    ['-n', endpoints],
    [
      ...setUp,
      'address add 192.0.2.2/30 dev eth0',
      'link set eth0 up',
      // In table main, not local: the range contains the client's address, and the route back to the
      // client must win because it is more specific.
      `route add local ${POD_CIDR} dev lo table main`,
      'route add 10.255.0.0/30 via 192.0.2.1',
    ],
  );
  const settings = ['net.ipv4.ip_forward=1', 'net.ipv4.conf.all.rp_filter=0'];
  await execa('ip', ['netns', 'exec', node, 'sysctl', '-q', '-w', ...settings]);
}

async function ip(options: readonly string[], lines: readonly string[]): Promise<void> {
  await execa('ip', [...options, '-batch', '-'], { input: `${lines.join('\n')}\n` });
}
