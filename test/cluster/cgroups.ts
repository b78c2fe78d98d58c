/** The machine's cgroup hierarchies. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

const MOUNT = '/sys/fs/cgroup';

/** @returns mount points that the kubelet uses: one with cgroup v2, one per controller with v1. */
export function cgroupMounts(mounts = '/proc/mounts'): string[] {
  if (!existsSync(mounts) || existsSync(join(MOUNT, 'cgroup.controllers'))) return [MOUNT];
  const lines = readFileSync(mounts, 'utf8').split('\n');
  return lines.flatMap((line) => {
    const [, path = '', type] = line.split(' ');
    return type === 'cgroup' ? [path] : [];
  });
}
