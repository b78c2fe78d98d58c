/** Sets the conntrack limits and timeouts of the --conntrack-* flags. */
import { readFile, writeFile } from 'node:fs/promises';
import { cpus } from 'node:os';
import type { RunOptions } from '../config/settings.ts';
import type { Log } from '../process/log.ts';
import { readSysctl, writeSysctl } from './node-setup.ts';

/** Number of buckets of the conntrack hash table, which all network namespaces share; kube-proxy writes the same file. */
const HASHSIZE = '/sys/module/nf_conntrack/parameters/hashsize';

type ConntrackOptions = Pick<
  RunOptions,
  | 'conntrackMaxPerCore'
  | 'conntrackMin'
  | 'conntrackTcpTimeoutEstablished'
  | 'conntrackTcpTimeoutCloseWait'
  | 'conntrackTcpBeLiberal'
  | 'conntrackUdpTimeout'
  | 'conntrackUdpTimeoutStream'
>;

/** The value of nf_conntrack_max; undefined: unchanged. */
export function conntrackMax(options: ConntrackOptions, cpuCount: number): number | undefined {
  const { conntrackMaxPerCore: perCore, conntrackMin: min } = options;
  if (perCore === 0) return undefined;
  // The sysctl is a signed 32-bit integer.
  return Math.min(Math.max(perCore * Math.max(cpuCount, 1), min), 2 ** 31 - 1);
}

/** The sysctls to set, as in kube-proxy. Options that are 0 or false leave their sysctl unchanged. */
export function conntrackSysctls(
  options: ConntrackOptions,
  cpuCount: number,
): [name: string, value: string][] {
  const sysctls: [name: string, value: number | undefined][] = [
    ['max', conntrackMax(options, cpuCount)],
    ['tcp_timeout_established', seconds(options.conntrackTcpTimeoutEstablished)],
    ['tcp_timeout_close_wait', seconds(options.conntrackTcpTimeoutCloseWait)],
    ['tcp_be_liberal', options.conntrackTcpBeLiberal ? 1 : undefined],
    ['udp_timeout', seconds(options.conntrackUdpTimeout)],
    ['udp_timeout_stream', seconds(options.conntrackUdpTimeoutStream)],
  ];
  return sysctls.flatMap(([name, value]) =>
    value === undefined ? [] : [[`net.netfilter.nf_conntrack_${name}`, String(value)]],
  );
}

/**
 * Converts milliseconds to whole seconds, at least 1: a timeout of 0 would expire entries immediately.
 * @returns undefined for 0, which leaves the sysctl unchanged.
 */
function seconds(milliseconds: number): number | undefined {
  return milliseconds === 0 ? undefined : Math.max(1, Math.floor(milliseconds / 1000));
}

/** Access to the kernel's settings; tests replace it. */
export type ConntrackKernel = typeof KERNEL;

const KERNEL = {
  readSysctl,
  writeSysctl,
  readHashsize: () => readFile(HASHSIZE, 'utf8'),
  writeHashsize: (value: string) => writeFile(HASHSIZE, value),
};

/**
 * Sets the conntrack limits and timeouts. Logs a setting that cannot be written and continues: Services work
 * without it. A container in its own network namespace can change timeouts but not limits.
 */
export async function configureConntrack(
  options: ConntrackOptions,
  log: Log,
  kernel: ConntrackKernel = KERNEL,
  cpuCount: number = cpus().length,
): Promise<void> {
  for (const [sysctl, value] of conntrackSysctls(options, cpuCount)) {
    try {
      const before = await kernel.readSysctl(sysctl);
      if (before === undefined) {
        const reason =
          'no such sysctl: nf_conntrack is not loaded, or this kernel does not have it';
        log.warn({ sysctl, value, reason }, 'cannot set sysctl');
      } else if (before !== value) {
        await kernel.writeSysctl(sysctl, value);
        log.info({ sysctl, before, value }, 'sysctl set');
      }
    } catch (error) {
      log.warn({ sysctl, value, reason: (error as Error).message }, 'cannot set sysctl');
    }
  }
  const max = conntrackMax(options, cpuCount);
  if (max === undefined) return;
  const buckets = Math.floor(max / 4);
  try {
    const before = Number(await kernel.readHashsize());
    if (before >= buckets) return;
    await kernel.writeHashsize(String(buckets));
    log.info({ file: HASHSIZE, before, value: buckets }, 'conntrack hash table resized');
  } catch (error) {
    log.warn(
      {
        file: HASHSIZE,
        value: buckets,
        reason: (error as Error).message,
        effect: 'conntrack lookups are slow with many connections',
      },
      'cannot resize the conntrack hash table',
    );
  }
}
