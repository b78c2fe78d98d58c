/** Programs that a run needs, and where they come from. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { isKubeProxy, type Mode } from './options.ts';

/** Where a program comes from. */
type Source = keyof typeof SOURCES;

const SOURCES = {
  server:
    'kubernetes-server-linux-ARCH.tar.gz of a release (https://dl.k8s.io/v1.34.0/), to KUBE_BIN',
  test: 'kubernetes-test-linux-ARCH.tar.gz of the same release, to KUBE_BIN',
  etcd: 'Debian package etcd-server',
  containerd: 'Debian package containerd',
  runc: 'Debian package runc',
  plugins: 'Debian package containernetworking-plugins',
  base: 'Debian packages curl, iproute2, openssl, procps and util-linux',
} as const;

/** Where distributions install CNI plugins. */
const CNI_DIRECTORIES = ['/usr/lib/cni', '/opt/cni/bin'];
const CNI_PLUGINS = ['ptp', 'portmap', 'host-local', 'loopback'];

/** Programs by their source. */
function neededPrograms(modes: readonly Mode[]): [program: string, source: Source][] {
  const from = (source: Source, ...programs: string[]) =>
    programs.map((program): [string, Source] => [program, source]);
  return [
    ...from('server', 'kube-apiserver', 'kube-controller-manager', 'kube-scheduler', 'kubelet'),
    ...from('server', 'kubectl', ...(modes.some(isKubeProxy) ? ['kube-proxy'] : [])),
    ...from('test', 'e2e.test'),
    ...from('etcd', 'etcd'),
    ...from('containerd', 'containerd', 'containerd-shim-runc-v2', 'ctr'),
    ...from('runc', 'runc'),
    ...from('base', 'curl', 'ip', 'openssl', 'sysctl', 'nsenter', 'unshare'),
  ];
}

/** The directory of the CNI plugins; undefined if no directory has them all. */
export function findCni(bin: string): string | undefined {
  return [bin, ...CNI_DIRECTORIES].find((directory) =>
    CNI_PLUGINS.every((plugin) => existsSync(join(directory, plugin))),
  );
}

/** @throws Error with everything that a run lacks and where to get it, one line per source. */
export function checkPrograms(modes: readonly Mode[], bin: string, path: string): void {
  const has = (program: string) =>
    path.split(':').some((directory) => existsSync(join(directory, program)));
  const missing = neededPrograms(modes).filter(([program]) => !has(program));
  if (findCni(bin) === undefined) {
    missing.push(...CNI_PLUGINS.map((name): [string, Source] => [name, 'plugins']));
  }
  if (missing.length === 0) return;
  const bySource = Object.entries(Object.groupBy(missing, ([, source]) => source));
  const lines = bySource.map(
    ([source, programs]) =>
      `  ${programs.map(([program]) => program).join(', ')}: ${SOURCES[source as Source]}`,
  );
  throw new Error(
    `Programs are missing in KUBE_BIN (${bin || 'not set'}) and PATH:\n${lines.join('\n')}`,
  );
}
