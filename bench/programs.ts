/** Service proxies that can be compared, as whole programs. */
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { InvalidArgumentError } from 'commander';
import { execa } from 'execa';
import { PORTWIDE } from './agents.ts';
import { POD_CIDR } from './cluster.ts';
import { type Flag, IN_NAMESPACES } from './harness.ts';

const MODES = ['nftables', 'iptables-nft', 'iptables-legacy', 'ipvs'] as const;
type Mode = (typeof MODES)[number];

export interface Program {
  readonly name: string;
  /**
   * @param kubeconfig path of the file
   * @param directory for files of the program
   */
  command(kubeconfig: string, directory: string): ProgramCommand;
}

export interface ProgramCommand {
  readonly path: string;
  readonly args: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

export const WHERE = `${IN_NAMESPACES} KUBE_PROXY is the path of kube-proxy. KUBE_BIN is a directory with etcd and
kube-apiserver, which then replace the fake API server.`;

/** @param normal names of programs */
export function programsFlag(normal: string): Flag<readonly Program[]> {
  return {
    help: `programs, separated by commas: portwide-MODE, kube-proxy-MODE, or NAME=COMMAND LINE with {kubeconfig}; MODE is ${MODES.join(', ')}`,
    read: (text) => text.split(',').map(parseProgram),
    normal,
    presets: {},
  };
}

function parseProgram(text: string): Program {
  const [, name = text, line] = /^([^=]+)=(.+)$/.exec(text) ?? [];
  if (line !== undefined) return custom(name, line.split(' '));
  for (const mode of MODES) {
    if (name === `portwide-${mode}`) return portwide(mode);
    if (name === `kube-proxy-${mode}`) return kubeProxy(mode);
  }
  throw new InvalidArgumentError(`Expected a program, not ${text}`);
}

/** The version of kube-proxy, for `printHead`; empty if KUBE_PROXY is not set. */
export async function kubeProxyVersion(): Promise<string[]> {
  const { KUBE_PROXY: path } = process.env;
  return path === undefined ? [] : [`kube-proxy ${(await execa(path, ['--version'])).stdout}`];
}

function custom(name: string, [path = '', ...args]: readonly string[]): Program {
  return {
    name,
    command: (kubeconfig) => ({
      path,
      args: args.map((arg) => arg.replaceAll('{kubeconfig}', kubeconfig)),
    }),
  };
}

function portwide(mode: Mode): Program {
  const flags = [`--proxy-mode=${flagOf(mode)}`, `--cluster-cidr=${POD_CIDR}`];
  if (mode.startsWith('iptables')) flags.push(`--iptables-variant=${variantOf(mode)}`);
  return {
    name: `portwide-${mode}`,
    command: (kubeconfig) => ({
      path: PORTWIDE,
      args: ['run', `--kubeconfig=${kubeconfig}`, '--hostname-override=node', ...flags],
    }),
  };
}

function kubeProxy(mode: Mode): Program {
  const { KUBE_PROXY: path } = process.env;
  if (path === undefined) throw new InvalidArgumentError('KUBE_PROXY is not set');
  return {
    name: `kube-proxy-${mode}`,
    command: (kubeconfig, directory) => {
      const [config, bin] = [join(directory, 'config'), join(directory, 'bin')];
      writeFileSync(config, JSON.stringify(configuration(mode, kubeconfig)));
      // kube-proxy runs the commands found in the PATH.
      mkdirSync(bin);
      for (const name of mode.startsWith('iptables') ? ['iptables', 'ip6tables'] : []) {
        for (const end of ['', '-save', '-restore']) {
          symlinkSync(`/usr/sbin/${name}-${variantOf(mode)}${end}`, join(bin, name + end));
        }
      }
      return { path, args: [`--config=${config}`], env: { PATH: `${bin}:${process.env.PATH}` } };
    },
  };
}

function flagOf(mode: Mode): string {
  return mode.startsWith('iptables') ? 'iptables' : mode;
}

function variantOf(mode: Mode): string {
  return mode.replace('iptables-', '');
}

/**
 * The fake API server supports only JSON. Conntrack settings are not changed because they reach
 * beyond the network namespace.
 */
function configuration(mode: Mode, kubeconfig: string): object {
  const contentType = 'application/json';
  return {
    apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
    kind: 'KubeProxyConfiguration',
    mode: flagOf(mode),
    hostnameOverride: 'node',
    clusterCIDR: POD_CIDR,
    detectLocalMode: 'ClusterCIDR',
    clientConnection: { kubeconfig, contentType, acceptContentTypes: contentType },
    conntrack: { maxPerCore: 0, min: 0 },
  };
}
