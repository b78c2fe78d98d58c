import { type Command, Option } from 'commander';
import { VARIANTS, type Variant } from '../iptables/commands.ts';
import {
  type BindAddress,
  bindAddress,
  boolean,
  duration,
  logLevel,
  optionalBindAddress,
} from './flag-values.ts';
import { addNodeOptions, contradiction, type NodeOptions } from './node-options.ts';

/** Flags of `portwide run`. Periods are in milliseconds. */
export interface RunOptions extends NodeOptions {
  readonly manifests?: string;
  readonly kubeconfig?: string;
  readonly master?: string;
  readonly iptablesSyncPeriod: number;
  readonly iptablesMinSyncPeriod: number;
  readonly iptablesVariant?: Variant;
  readonly ipvsSyncPeriod: number;
  readonly ipvsMinSyncPeriod: number;
  readonly ipvsStrictArp: boolean;
  readonly ipvsTcpTimeout: number;
  readonly ipvsTcpfinTimeout: number;
  readonly ipvsUdpTimeout: number;
  readonly healthzBindAddress: BindAddress | 'none';
  readonly metricsBindAddress: BindAddress;
  readonly v: number;
}

export function addRunOptions(command: Command): Command {
  return addNodeOptions(
    command
      .option(
        '--manifests <dir>',
        'read Services and EndpointSlices from this directory, not from a cluster',
      )
      .option(
        '--kubeconfig <file>',
        'how to reach the API server; default: the service account of the pod',
      )
      .option('--master <url>', 'URL of the API server; overrides the kubeconfig')
      .addOption(
        new Option(
          '--iptables-sync-period <duration>',
          'how often to look whether the rules still stand',
        )
          .argParser(duration)
          .default(30_000, '30s'),
      )
      .addOption(
        new Option(
          '--iptables-min-sync-period <duration>',
          'least time between two changes of the rules',
        )
          .argParser(duration)
          .default(1000, '1s'),
      )
      .addOption(
        new Option(
          '--iptables-variant <variant>',
          'iptables to use; default: the one that the node uses',
        ).choices(VARIANTS),
      )
      .addOption(
        new Option(
          '--ipvs-sync-period <duration>',
          'how often to look whether the services and rules of mode ipvs still stand',
        )
          .argParser(duration)
          .default(30_000, '30s'),
      )
      .addOption(
        new Option(
          '--ipvs-min-sync-period <duration>',
          'least time between two changes in mode ipvs',
        )
          .argParser(duration)
          .default(0, '0'),
      )
      .addOption(
        new Option(
          '--ipvs-strict-arp [true|false]',
          'set arp_ignore and arp_announce, so that the node answers no ARP for VIPs',
        )
          .argParser(boolean)
          .preset('true')
          .default(false),
      )
      .addOption(timeout('--ipvs-tcp-timeout <duration>', 'idle TCP connections'))
      .addOption(timeout('--ipvs-tcpfin-timeout <duration>', 'TCP connections after a FIN'))
      .addOption(timeout('--ipvs-udp-timeout <duration>', 'UDP flows'))
      .addOption(
        new Option(
          '--healthz-bind-address <address>',
          'where /healthz and /livez are served; empty: nowhere',
        )
          .argParser(optionalBindAddress)
          .default({ host: '0.0.0.0', port: 10256 }, '0.0.0.0:10256'),
      )
      .addOption(
        new Option('--metrics-bind-address <address>', 'where /metrics is served')
          .argParser(bindAddress)
          .default({ host: '127.0.0.1', port: 10249 }, '127.0.0.1:10249'),
      )
      .addOption(
        new Option('-v, --v <level>', 'log level: 0 to 2 tell what operators act on, 3 each sync')
          .argParser(logLevel)
          .default(0),
      ),
  );
}

function timeout(flags: string, what: string): Option {
  const text = `when IPVS forgets ${what}; 0: the kernel's own`;
  return new Option(flags, text).argParser(duration).default(0, '0');
}

/** @returns what is wrong with the flags together, naming one; undefined when all is well. */
export function runContradiction(options: RunOptions): string | undefined {
  if (options.manifests !== undefined) {
    if (options.kubeconfig !== undefined) return '--manifests and --kubeconfig exclude each other';
    if (options.master !== undefined) return '--manifests and --master exclude each other';
  }
  if (options.iptablesSyncPeriod <= 0) return '--iptables-sync-period must be greater than 0';
  if (options.iptablesMinSyncPeriod > options.iptablesSyncPeriod) {
    return '--iptables-min-sync-period must not be greater than --iptables-sync-period';
  }
  if (options.ipvsSyncPeriod <= 0) return '--ipvs-sync-period must be greater than 0';
  if (options.ipvsMinSyncPeriod > options.ipvsSyncPeriod) {
    return '--ipvs-min-sync-period must not be greater than --ipvs-sync-period';
  }
  return contradiction(options);
}
