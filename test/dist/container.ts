/** The image in a container of crun, as the DaemonSet of deploy/base starts it. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { execa } from 'execa';
import { readObject } from '../deploy/manifests.ts';

/**
 * Runs crun in the mount namespace of `ip netns exec`. There, /sys/fs/cgroup is empty; crun requires a
 * file system of cgroups, and not both versions of it.
 */
export const CRUN = [
  '-c',
  'mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec crun --cgroup-manager=disabled "$@"',
  'sh',
];

interface Container {
  readonly args: readonly string[];
  readonly securityContext: {
    readonly privileged?: boolean;
    readonly readOnlyRootFilesystem: boolean;
    readonly allowPrivilegeEscalation?: boolean;
    readonly capabilities?: { readonly add: readonly string[] };
  };
  readonly volumeMounts: readonly {
    readonly name: string;
    readonly mountPath: string;
    readonly readOnly?: boolean;
  }[];
}

interface Pod {
  readonly initContainers: readonly [Container];
  readonly containers: readonly [Container];
}

/** The init container and the agent of the DaemonSet. */
export function daemonSet(): { readonly init: Container; readonly agent: Container } {
  const { spec } = readObject<{ spec: { template: { spec: Pod } } }>(
    'deploy/base/daemonset.yaml',
    'DaemonSet',
  );
  const { initContainers, containers } = spec.template.spec;
  return { init: initContainers[0], agent: containers[0] };
}

/** Configuration of an image, as in the OCI specification. */
export interface ImageConfig {
  readonly config: {
    readonly Entrypoint: readonly string[];
    readonly Env: readonly string[];
    readonly User: string;
    readonly Labels: Readonly<Record<string, string>>;
  };
}

/** Unpacks an OCI archive to `directory`/rootfs. */
export async function unpackImage(archive: string, directory: string): Promise<ImageConfig> {
  const layout = join(directory, 'layout');
  const root = join(directory, 'rootfs');
  for (const each of [layout, root]) mkdirSync(each, { recursive: true });
  await execa('tar', ['-xf', archive, '-C', layout]);
  const read = (file: string) => JSON.parse(readFileSync(join(layout, file), 'utf8'));
  const blob = ({ digest }: { digest: string }) => `blobs/${digest.replace(':', '/')}`;
  const manifest = read(blob(read('index.json').manifests[0]));
  for (const layer of manifest.layers) {
    await execa('tar', ['-xzpf', join(layout, blob(layer)), '-C', root]);
  }
  return read(blob(manifest.config));
}

const EVERY_CAPABILITY = [
  'CHOWN',
  'DAC_OVERRIDE',
  'NET_ADMIN',
  'NET_RAW',
  'SYS_ADMIN',
  'SYS_MODULE',
];

/**
 * Writes the configuration of a container beside rootfs.
 *
 * @param volumes The source of each volume of the pod; an absent one is an empty directory in
 * memory.
 */
export function writeContainer(
  directory: string,
  { config }: ImageConfig,
  { args, securityContext, volumeMounts }: Container,
  namespace: string,
  volumes: Readonly<Record<string, string>>,
): void {
  const { privileged = false, allowPrivilegeEscalation, capabilities } = securityContext;
  const names = privileged ? EVERY_CAPABILITY : (capabilities?.add ?? []);
  const set = names.map((name) => `CAP_${name}`);
  const access = privileged ? 'rw' : 'ro';
  const spec = {
    ociVersion: '1.0.2',
    process: {
      args: [...config.Entrypoint, ...args.map((arg) => arg.replace('$(NODE_NAME)', 'node'))],
      env: config.Env,
      cwd: '/',
      user: { uid: 0, gid: 0 },
      noNewPrivileges: allowPrivilegeEscalation === false,
      capabilities: { bounding: set, effective: set, permitted: set },
    },
    root: { path: 'rootfs', readonly: securityContext.readOnlyRootFilesystem },
    mounts: [
      { destination: '/proc', type: 'proc', source: 'proc' },
      { destination: '/dev', type: 'tmpfs', source: 'tmpfs', options: ['nosuid', 'mode=755'] },
      { destination: '/sys', type: 'sysfs', source: 'sysfs', options: [access] },
      ...volumeMounts.map(({ name, mountPath, readOnly = false }) => {
        const source = volumes[name];
        return source === undefined
          ? { destination: mountPath, type: 'tmpfs', source: 'tmpfs' }
          : {
              destination: mountPath,
              type: 'bind',
              source,
              options: ['rbind', readOnly ? 'ro' : 'rw'],
            };
      }),
    ],
    linux: {
      namespaces: [
        ...['mount', 'pid', 'ipc', 'uts'].map((type) => ({ type })),
        { type: 'network', path: `/run/netns/${namespace}` },
      ],
      readonlyPaths: privileged ? [] : ['/proc/sys'],
    },
  };
  writeFileSync(join(directory, 'config.json'), JSON.stringify(spec));
}
