/** Proxy mode ipvs: node support, options and backends. */
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

/** Opens proxy mode ipvs. @throws UserError if no IP family is supported. */
export async function openIpvsMode(options: RunOptions, log: Logger): Promise<SupportedMode> {
  const commands = await usableIptables(options, log, options.ipvsAllPorts === 'iptables');
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
          const familyOptions = ipvsOptions(options, family, podCidrs, traits);
          backends.push(await ipvsBackend(kernel, iptables, familyOptions, systemTimers));
        }
        await setTimeouts(options);
      } catch (error) {
        throw withRequiredModule(error);
      }
      await warnOfCalico(options, commands, log);
      if (options.resetDeletedEndpointConnections) {
        log.warn(
          {
            setting: '--reset-deleted-endpoint-connections',
            effect: 'connections to deleted endpoints are not reset',
          },
          'setting has no effect in mode ipvs',
        );
      }
      await setSysctls(options, log);
      return {
        backends,
        minSyncPeriod: options.ipvsMinSyncPeriod,
        // Without its conntrack entry, an IPVS connection continues but is no longer masqueraded.
        resetsTcp: false,
        localhostProxyFamilies: [],
        afterFirstSync: (family) => void takeover.afterFirstSync(family),
      };
    },
  };
}

/**
 * Warns about Calico with fwmark services. With kube-ipvs0 present, Felix (iptables dataplane) marks new
 * connections to VIPs in filter INPUT (cali-set-endpoint-mark). That is after Portwide sets its mark and before
 * IPVS, which matches the whole mark.
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
      {
        family: iptables.family,
        effect: 'connections to all-ports Services are rejected',
        hint: 'set --ipvs-all-ports=iptables',
      },
      'Calico changes the packet marks of fwmark services',
    );
  }
}

/** The setup of `--init-only` for this mode: loads kernel modules and sets sysctls. @throws UserError */
export async function prepareIpvs(options: RunOptions, log: Logger): Promise<void> {
  try {
    const kernel = await IpvsKernel.open('IPv4');
    await kernel.probe(options.ipvsScheduler).finally(() => kernel.close());
  } catch (error) {
    throw withRequiredModule(error);
  }
  await setSysctls(options, log);
}

/** The options of mode ipvs for an IP family. */
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

/** Turns an error about a missing kernel feature into a UserError with the remedy. */
function withRequiredModule(error: unknown): unknown {
  const requires = '--proxy-mode=ipvs requires';
  if (error instanceof IpvsMissingError) {
    return new UserError(
      `${requires} IPVS: load the kernel module ip_vs (on some distributions in package ` +
        'linux-modules-extra); in a pod, mount /lib/modules or load the module on the node',
    );
  }
  if (error instanceof SchedulerMissingError) {
    return new UserError(
      `--ipvs-scheduler=${error.scheduler} is not available: load the kernel module ip_vs_${error.scheduler}`,
    );
  }
  if (error instanceof UnsupportedError) {
    return new UserError(`${requires} ${error.feature}: ${remedy(error)}`);
  }
  return error;
}

function remedy({ feature }: UnsupportedError): string {
  if (feature === 'dummy interfaces') return 'load the kernel module dummy';
  if (feature === 'IPVS for IPv6') return 'use a kernel built with CONFIG_IP_VS_IPV6';
  const type = /^ipset type (\S+)$/.exec(feature)?.[1];
  return type === undefined
    ? 'load the kernel modules ip_set and nfnetlink'
    : `load the kernel module ip_set_${type.replace(':', '_').replaceAll(',', '')}`;
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

/** Sets the sysctls that kube-proxy's IPVS mode sets. */
async function setSysctls(options: RunOptions, log: Logger): Promise<void> {
  const sysctls: [name: string, value: string][] = [
    // Keeps IPVS connections in conntrack; without it they are not masqueraded.
    ['net.ipv4.vs.conntrack', '1'],
    ['net.ipv4.ip_forward', '1'],
    // Terminates connections to a deleted endpoint; otherwise their packets are dropped for minutes.
    ['net.ipv4.vs.expire_nodest_conn', '1'],
    ['net.ipv4.vs.expire_quiescent_template', '1'],
  ];
  if (!keepsConnReuseMode(release())) sysctls.push(['net.ipv4.vs.conn_reuse_mode', '0']);
  if (options.ipvsStrictArp) {
    sysctls.push(['net.ipv4.conf.all.arp_ignore', '1'], ['net.ipv4.conf.all.arp_announce', '2']);
  }
  for (const [name, value] of sysctls) {
    try {
      await writeSysctl(name, value);
    } catch (error) {
      if (name === 'net.ipv4.vs.conntrack') {
        throw new UserError(
          `--proxy-mode=ipvs requires sysctl ${name}=${value}; set it on the node, or run "portwide run --init-only" in a privileged container: ${String(error)}`,
        );
      }
      log.warn({ err: error, sysctl: name, value }, 'cannot set sysctl');
    }
  }
}

/**
 * Whether conn_reuse_mode keeps its default 1. In Linux 4.1 to 5.8, 1 delays a connection from a reused port by a
 * second (kubernetes/kubernetes#81775). Linux 5.9 fixed that; there, 0 sends connections to removed endpoints.
 */
export function keepsConnReuseMode(kernelRelease: string): boolean {
  const [, major = '', minor = ''] = /^(\d+)\.(\d+)/.exec(kernelRelease) ?? [];
  const version = Number(major) * 1000 + Number(minor);
  return version < 4001 || version >= 5009;
}
