/** `--proxy-mode ipvs`, from settings to backends. */
import { release } from 'node:os';
import type { Logger } from 'pino';
import type { IpFamily } from '../api/objects.ts';
import type { NodeOptions, RunOptions } from '../config/settings.ts';
import type { Iptables } from '../iptables/commands.ts';
import { type IpvsOptions, ipvsBackend } from '../ipvs/backend.ts';
import { IpvsKernel, SchedulerMissingError } from '../ipvs/kernel.ts';
import { UnsupportedError } from '../netlink/core/error.ts';
import { Ipvs, IpvsMissingError } from '../netlink/ipvs/ipvs.ts';
import { UserError } from '../process/errors.ts';
import type { Backend } from '../proxier/backend.ts';
import { systemTimers } from '../sync/timers.ts';
import { trafficOptions } from '../traffic/options.ts';
import type { SupportedMode } from './mode.ts';
import { hasRandomFully, usableIptables, writeSysctl } from './node-setup.ts';

/** `--proxy-mode ipvs`. */
export async function openIpvsMode(options: RunOptions, log: Logger): Promise<SupportedMode> {
  const commands = await usableIptables(options, log);
  return {
    families: commands.map(({ family }) => family),
    start: async (podCidrs, _monitor, takeover) => {
      const backends: Backend[] = [];
      try {
        for (const iptables of commands) {
          const { family } = iptables;
          const kernel = await IpvsKernel.open(family);
          await kernel.probe(options.ipvsScheduler);
          const traits = {
            randomFully: hasRandomFully(await iptables.version()),
            onWarning: (details: object, message: string) =>
              log.warn({ family, ...details }, message),
          };
          const own = ipvsOptions(options, family, podCidrs, traits);
          backends.push(await ipvsBackend(kernel, iptables, own, systemTimers));
        }
        await setTimeouts(options);
      } catch (error) {
        throw withRequiredModule(error);
      }
      await warnOfCalico(options, commands, log);
      if (options.resetDeletedEndpointConnections) {
        log.warn(
          { setting: '--reset-deleted-endpoint-connections' },
          '--reset-deleted-endpoint-connections has no effect in mode ipvs: connections to deleted endpoints are not reset',
        );
      }
      await setSysctls(options, log);
      return {
        backends,
        minSyncPeriod: options.ipvsMinSyncPeriod,
        // Without its entry in conntrack an IPVS connection goes on, and loses its masquerade.
        resetsTcp: false,
        localhostProxyFamilies: [],
        afterFirstSync: (family) => void takeover.afterFirstSync(family),
      };
    },
  };
}

/**
 * Felix, on iptables, takes note of kube-ipvs0 and marks what is new to a VIP in filter INPUT
 * (cali-set-endpoint-mark): behind our marks and before IPVS, which compares marks whole.
 */
async function warnOfCalico(
  options: RunOptions,
  commands: readonly Iptables[],
  log: Logger,
): Promise<void> {
  if (options.ipvsAllPorts !== 'fwmark') return;
  for (const iptables of commands) {
    const filter = (await iptables.save()).get('filter');
    if (!filter?.foreign.has(':cali-INPUT')) continue;
    log.warn(
      { family: iptables.family },
      'Calico runs here, which marks packets to VIPs anew: all-ports Services are rejected; set --ipvs-all-ports=iptables',
    );
  }
}

/** What `--init-only` does for this mode: has modules loaded, and sets the sysctls. @throws UserError */
export async function prepareIpvs(options: RunOptions, log: Logger): Promise<void> {
  try {
    const kernel = await IpvsKernel.open('IPv4');
    await kernel.probe(options.ipvsScheduler).finally(() => kernel.close());
  } catch (error) {
    throw withRequiredModule(error);
  }
  await setSysctls(options, log);
}

/** The IPVS mode's options for one family, from the flags. */
export function ipvsOptions(
  options: NodeOptions,
  family: IpFamily,
  podCidrs: readonly string[],
  traits: Pick<IpvsOptions, 'randomFully' | 'onWarning'>,
): IpvsOptions {
  return {
    ...traits,
    ...trafficOptions(options, family, podCidrs),
    masqueradeBit: options.iptablesMasqueradeBit,
    scheduler: options.ipvsScheduler,
    excludeCidrs: options.ipvsExcludeCidrs,
    markRange: options.ipvsFwmarkRange,
    allPorts: options.ipvsAllPorts,
  };
}

/** Says what is missing and what brings it. */
function withRequiredModule(error: unknown): unknown {
  const needs = '--proxy-mode ipvs needs';
  if (error instanceof IpvsMissingError) {
    return new UserError(
      `${needs} IPVS, which this kernel lacks: module ip_vs, of the kernel's own package ` +
        '(linux-modules-extra on some distributions); in a pod, mount /lib/modules or load it on the node',
    );
  }
  if (error instanceof SchedulerMissingError) {
    return new UserError(
      `--ipvs-scheduler ${error.scheduler}: this kernel lacks it: module ip_vs_${error.scheduler}`,
    );
  }
  if (error instanceof UnsupportedError) {
    return new UserError(`${needs} ${error.feature}, which this kernel lacks: ${module(error)}`);
  }
  return error;
}

function module({ feature }: UnsupportedError): string {
  if (feature === 'dummy interfaces') return 'module dummy';
  if (feature === 'IPVS for IPv6') return 'build option CONFIG_IP_VS_IPV6';
  const type = /^ipset type (\S+)$/.exec(feature)?.[1];
  return type === undefined
    ? 'modules ip_set and nfnetlink'
    : `module ip_set_${type.replace(':', '_').replaceAll(',', '')}`;
}

async function setTimeouts(options: RunOptions): Promise<void> {
  const seconds = (period: number) => Math.ceil(period / 1000);
  const tcp = seconds(options.ipvsTcpTimeout);
  const tcpFin = seconds(options.ipvsTcpfinTimeout);
  const udp = seconds(options.ipvsUdpTimeout);
  if (tcp === 0 && tcpFin === 0 && udp === 0) return;
  const ipvs = await Ipvs.open();
  try {
    await ipvs.setTimeouts({ tcp, tcpFin, udp });
  } finally {
    await ipvs.close();
  }
}

/** As kube-proxy's IPVS mode sets them. */
async function setSysctls(options: RunOptions, log: Logger): Promise<void> {
  const wanted: [name: string, value: string][] = [
    // Without it IPVS takes its connections out of conntrack, and nothing is masqueraded.
    ['net.ipv4.vs.conntrack', '1'],
    ['net.ipv4.ip_forward', '1'],
    // Connections to an endpoint that was deleted end at once, instead of being dropped for minutes.
    ['net.ipv4.vs.expire_nodest_conn', '1'],
    ['net.ipv4.vs.expire_quiescent_template', '1'],
  ];
  if (!keepsConnReuseMode(release())) wanted.push(['net.ipv4.vs.conn_reuse_mode', '0']);
  if (options.ipvsStrictArp) {
    wanted.push(['net.ipv4.conf.all.arp_ignore', '1'], ['net.ipv4.conf.all.arp_announce', '2']);
  }
  for (const [name, value] of wanted) {
    try {
      await writeSysctl(name, value);
    } catch (error) {
      if (name === 'net.ipv4.vs.conntrack') {
        throw new UserError(`cannot set ${name} to ${value}: ${String(error)}`);
      }
      log.warn({ err: error, sysctl: name, value }, 'cannot set');
    }
  }
}

/**
 * From 4.1 to 5.8 conn_reuse_mode 1 delays a new connection from a port that was used before by
 * a second (kubernetes/kubernetes 81775); 5.9 mended it, and 0 there hits endpoints that are gone.
 */
export function keepsConnReuseMode(kernelRelease: string): boolean {
  const [, major = '', minor = ''] = /^(\d+)\.(\d+)/.exec(kernelRelease) ?? [];
  const version = Number(major) * 1000 + Number(minor);
  return version < 4001 || version >= 5009;
}
