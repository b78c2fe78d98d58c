/** Namespaces and the network: a bridge with the control plane and all nodes; pods are routed. */
import { join } from 'node:path';
import { type ClusterNode, CONTROL_ADDRESS, type Layout } from './layout.ts';
import { file, run, type Step } from './steps.ts';

export function networkSteps({ nodes, directory }: Layout): Step[] {
  const ip = (on: 'control' | ClusterNode['name'], line: string) =>
    run(on, 'ip', ...line.split(' '));
  return [
    { kind: 'host', on: 'control' },
    ip('control', 'link set lo up'),
    ip('control', 'link add nodes type bridge'),
    ip('control', `address add ${CONTROL_ADDRESS}/24 dev nodes`),
    ip('control', 'link set nodes up'),
    ...nodes.flatMap((node): Step[] => [
      { kind: 'host', on: node.name },
      ip('machine', `link add ${node.name} netns $control type veth peer eth0 netns $${node.name}`),
      ip('control', `link set ${node.name} master nodes up`),
      ip('control', `route add ${node.podCidr} via ${node.address}`),
      ip(node.name, 'link set lo up'),
      ip(node.name, `address add ${node.address}/24 dev eth0`),
      ip(node.name, 'link set eth0 up'),
      ip(node.name, `route add default via ${CONTROL_ADDRESS}`),
      ...nodes
        .filter((other) => other !== node)
        .map((other) => ip(node.name, `route add ${other.podCidr} via ${other.address}`)),
      run(node.name, 'sysctl', '-qw', 'net.ipv4.ip_forward=1'),
      run(node.name, 'hostname', node.name),
      ...mountSteps(node.name, join(directory, node.name)),
    ]),
  ];
}

/**
 * Sysctls without namespace that the kubelet sets. In a node they are files with the values that it
 * wants, so the machine keeps its own.
 */
const KUBELET_SYSCTLS = [
  ['vm/overcommit_memory', 1],
  ['vm/panic_on_oom', 0],
  ['kernel/panic', 10],
  ['kernel/panic_on_oops', 1],
  ['kernel/keys/root_maxkeys', 1_000_000],
  ['kernel/keys/root_maxbytes', 25_000_000],
] as const;

/** What keeps the kubelet from changing files and settings of the machine. */
function mountSteps(node: ClusterNode['name'], directory: string): Step[] {
  const mount = (...args: readonly string[]) => run(node, 'mount', ...args);
  return [
    run('machine', 'mkdir', '-p', join(directory, 'lib/kubelet')),
    mount('-t', 'tmpfs', 'tmpfs', '/run'),
    mount('-t', 'tmpfs', 'tmpfs', '/var/log'),
    // The whole of it, since the machine may have no /var/lib/kubelet.
    mount('--bind', join(directory, 'lib'), '/var/lib'),
    ...KUBELET_SYSCTLS.flatMap(([name, value]) => {
      const path = join(directory, 'sysctls', name);
      return [file(path, `${value}\n`), mount('--bind', path, join('/proc/sys', name))];
    }),
    mount('--make-rshared', '/'),
  ];
}
