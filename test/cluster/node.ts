/** containerd, the kubelet and the proxy of a node. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { type ClusterNode, cgroupOf, DNS_ADDRESS, type Layout, POD_CIDR } from './layout.ts';
import { isKubeProxy, type Mode, proxyModeOf } from './options.ts';
import { file, run, type Step, start, until } from './steps.ts';

const SOCKET = '/run/containerd/containerd.sock';

export interface NodeSettings {
  readonly layout: Layout;
  readonly pauseImage: string;
  /** Directory of the CNI plugins `ptp`, `host-local` and `loopback`. */
  readonly cni: string;
  readonly archives: readonly string[];
}

/** Image archives of a directory. */
export function archivesIn(directory: string): string[] {
  return readdirSync(directory)
    .filter((name) => name.endsWith('.tar'))
    .sort()
    .map((name) => join(directory, name));
}

export function nodeSteps(node: ClusterNode, settings: NodeSettings): Step[] {
  const { layout, archives } = settings;
  const directory = join(layout.directory, node.name);
  const ctr = ['ctr', `--address=${SOCKET}`, '--namespace=k8s.io'] as const;
  return [
    ...layout.cgroups.map((cgroup) => run('machine', 'mkdir', '-p', join(cgroup, node.name))),
    file(join(directory, 'containerd.toml'), containerdConfig(directory, settings)),
    file(join(directory, 'cni/10-portwide.conflist'), networkConfig(node, directory)),
    file(join(directory, 'resolv.conf'), `nameserver ${DNS_ADDRESS}\n`),
    file(join(directory, 'kubelet.yaml'), kubeletConfig(node, layout)),
    start(
      node.name,
      `containerd-${node.name}`,
      'containerd',
      `--config=${join(directory, 'containerd.toml')}`,
    ),
    until(node.name, ...ctr, 'version'),
    ...archives.map((archive) => run(node.name, ...ctr, 'images', 'import', archive)),
    start(
      node.name,
      `kubelet-${node.name}`,
      'kubelet',
      `--config=${join(directory, 'kubelet.yaml')}`,
      `--kubeconfig=${join(layout.directory, `${node.name}.kubeconfig`)}`,
      `--hostname-override=${node.name}`,
      `--node-ip=${node.address}`,
    ),
  ];
}

/** Starts the proxy of a mode on each node, like its DaemonSet, and waits until it serves. */
export function proxySteps(mode: Mode, layout: Layout, portwide: string): Step[] {
  const user = isKubeProxy(mode) ? 'kube-proxy' : 'portwide';
  const config = join(layout.directory, `proxy-${mode}.json`);
  const flags = (node: ClusterNode) => [`--config=${config}`, `--hostname-override=${node.name}`];
  return [
    file(config, {
      apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
      kind: 'KubeProxyConfiguration',
      clientConnection: { kubeconfig: join(layout.directory, `${user}.kubeconfig`) },
      mode: proxyModeOf(mode),
      detectLocalMode: 'ClusterCIDR',
      clusterCIDR: POD_CIDR,
      // Settings of the whole machine.
      conntrack: { maxPerCore: 0, min: 0 },
    }),
    ...layout.nodes.map((node) =>
      isKubeProxy(mode)
        ? start(node.name, proxyName(mode, node), 'kube-proxy', ...flags(node))
        : start(
            node.name,
            proxyName(mode, node),
            portwide,
            'run',
            ...flags(node),
            '--network-policy',
          ),
    ),
    ...layout.nodes.map((node) =>
      until(node.name, 'curl', '-sSf', '-o', '/dev/null', 'http://127.0.0.1:10256/healthz'),
    ),
  ];
}

/** Stops the proxies of a mode and removes their rules. */
export function removeProxySteps(mode: Mode, { nodes }: Layout, portwide: string): Step[] {
  return nodes.flatMap((node): Step[] => [
    { kind: 'stop', name: proxyName(mode, node) },
    isKubeProxy(mode)
      ? run(node.name, 'kube-proxy', '--cleanup')
      : run(node.name, portwide, 'cleanup'),
  ]);
}

function proxyName(mode: Mode, node: ClusterNode): string {
  return `${isKubeProxy(mode) ? mode : `portwide-${mode}`}-${node.name}`;
}

function containerdConfig(directory: string, { pauseImage, cni }: NodeSettings): string {
  return `version = 2
root = "${directory}/containerd"
state = "/run/containerd/state"
[grpc]
  address = "${SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "${directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "${pauseImage}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "${cni}"
    conf_dir = "${directory}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
`;
}

/** Routed pods: on a bridge, rules would see packets between its pods only with br_netfilter. */
function networkConfig({ podCidr }: ClusterNode, directory: string): object {
  const ranges = [[{ subnet: podCidr }]];
  const routes = [{ dst: '0.0.0.0/0' }];
  const ipam = { type: 'host-local', ranges, routes, dataDir: join(directory, 'addresses') };
  const hostPorts = { type: 'portmap', capabilities: { portMappings: true } };
  return { cniVersion: '0.4.0', name: 'pods', plugins: [{ type: 'ptp', ipam }, hostPorts] };
}

function kubeletConfig({ name }: ClusterNode, { id, directory }: Layout): string {
  return `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: "${directory}/pki/ca.crt"}
authorization: {mode: Webhook}
tlsCertFile: "${directory}/pki/${name}.crt"
tlsPrivateKeyFile: "${directory}/pki/${name}.key"
containerRuntimeEndpoint: unix://${SOCKET}
cgroupDriver: cgroupfs
cgroupRoot: ${cgroupOf(id, name)}
enforceNodeAllocatable: []
clusterDNS: [${DNS_ADDRESS}]
clusterDomain: cluster.local
resolvConf: "${directory}/${name}/resolv.conf"
volumePluginDir: "${directory}/${name}/volume-plugins"
failSwapOn: false
# Nodes share the machine's memory and disk, and images cannot be pulled again.
evictionHard: {memory.available: 0%, nodefs.available: 0%, imagefs.available: 0%}
imageGCHighThresholdPercent: 100
`;
}
