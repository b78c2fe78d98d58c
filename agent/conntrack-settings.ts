/** Conntrack's limits and timeouts, as the settings have them. */
import { readFile, writeFile } from 'node:fs/promises';
import { cpus } from 'node:os';
import type { RunOptions } from '../config/settings.ts';
import type { Log } from '../process/log.ts';
import { readSysctl, writeSysctl } from './node-setup.ts';

/** The hash table is the kernel's, not the namespace's, and no sysctl can make it larger. */
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

/** The limit on entries; undefined: it is left as it is. */
export function conntrackMax(options: ConntrackOptions, cpuCount: number): number | undefined {
  const { conntrackMaxPerCore: perCore, conntrackMin: least } = options;
  if (perCore === 0) return undefined;
  // The kernel takes 32 bits with a sign.
  return Math.min(Math.max(perCore * Math.max(cpuCount, 1), least), 2 ** 31 - 1);
}

/** Sysctls to be set, as kube-proxy sets them; what is 0 or off is left as it is. */
export function conntrackSysctls(
  options: ConntrackOptions,
  cpuCount: number,
): [name: string, value: string][] {
  const wanted: [name: string, value: number | undefined][] = [
    ['max', conntrackMax(options, cpuCount)],
    ['tcp_timeout_established', seconds(options.conntrackTcpTimeoutEstablished)],
    ['tcp_timeout_close_wait', seconds(options.conntrackTcpTimeoutCloseWait)],
    ['tcp_be_liberal', options.conntrackTcpBeLiberal ? 1 : undefined],
    ['udp_timeout', seconds(options.conntrackUdpTimeout)],
    ['udp_timeout_stream', seconds(options.conntrackUdpTimeoutStream)],
  ];
  return wanted.flatMap(([name, value]) =>
    value === undefined ? [] : [[`net.netfilter.nf_conntrack_${name}`, String(value)]],
  );
}

/** The kernel counts whole seconds; less than one must not become 0, which forgets at once. */
function seconds(period: number): number | undefined {
  return period === 0 ? undefined : Math.max(1, Math.floor(period / 1000));
}

/** Where settings are; tests have another than the kernel. */
export type ConntrackKernel = typeof KERNEL;

const KERNEL = {
  readSysctl,
  writeSysctl,
  readHashsize: () => readFile(HASHSIZE, 'utf8'),
  writeHashsize: (value: string) => writeFile(HASHSIZE, value),
};

/**
 * Sets connection tracking up. What cannot be set is logged and left: in a namespace of its own, a
 * container may change timeouts but not the limits, and Services are served without.
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
        log.warn({ sysctl, value }, 'cannot set: this kernel has no such sysctl');
      } else if (before !== value) {
        await kernel.writeSysctl(sysctl, value);
        log.info({ sysctl, before, value }, 'set');
      }
    } catch (error) {
      log.warn({ sysctl, value, reason: (error as Error).message }, 'cannot set');
    }
  }
  const max = conntrackMax(options, cpuCount);
  if (max === undefined) return;
  const buckets = Math.floor(max / 4);
  try {
    const before = Number(await kernel.readHashsize());
    if (before >= buckets) return;
    await kernel.writeHashsize(String(buckets));
    log.info({ file: HASHSIZE, before, value: buckets }, 'set');
  } catch (error) {
    log.warn(
      { file: HASHSIZE, value: buckets, reason: (error as Error).message },
      'cannot set; many connections are slow',
    );
  }
}
