/** FQDN learning in a running agent: whose answers count, and what is logged. */
import type { Logger } from 'pino';
import type { IpFamily } from '../api/objects.ts';
import type { RunOptions } from '../config/settings.ts';
import { type Iptables, iptablesCommands } from '../iptables/commands.ts';
import { detectVariant, iptablesTables } from '../iptables/variant.ts';
import type { PolicyKernel } from '../policy/enforce/kernel.ts';
import { FQDN_CACHE_DEFAULTS } from '../policy/fqdn/cache.ts';
import type { MangleTable } from '../policy/fqdn/dns-queue-rules.ts';
import { DnsSnooper } from '../policy/fqdn/dns-snooper.ts';
import type { ObjectSink } from '../sources/source.ts';
import { systemTimers } from '../sync/timers.ts';

/** The Service of the cluster's DNS, by its name of old, which CoreDNS kept. */
const CLUSTER_DNS = 'kube-system/kube-dns';

type NamesOptions = Pick<
  RunOptions,
  'fqdnResolvers' | 'fqdnTtlFloor' | 'fqdnTtlCap' | 'iptablesVariant'
>;

/** Trusts the resolvers of `--fqdn-resolvers`; without any see `clusterDnsSink`. */
export function createDnsLearning(
  store: PolicyKernel,
  options: NamesOptions,
  log: Logger,
): DnsSnooper {
  const learning = new DnsSnooper({
    store,
    tables: [...store.families.keys()].map((family) => mangleTable(family, options)),
    observer: {
      addFailed: (err) => log.warn({ err }, 'cannot let packets go to addresses of a domain name'),
      removeFailed: (err) => log.warn({ err }, 'cannot remove addresses of domain names'),
      rulesFailed: (family, err) =>
        log.error({ family, err }, 'cannot have DNS answers queued; no addresses are learned'),
      threadFailed: (err) =>
        log.error({ err }, 'the thread that looks into DNS answers failed; starting it again'),
    },
    timers: systemTimers,
    cache: { ...FQDN_CACHE_DEFAULTS, floor: options.fqdnTtlFloor, cap: options.fqdnTtlCap },
  });
  learning.prestart();
  learning.setResolvers(new Set(options.fqdnResolvers));
  return learning;
}

/** Trusts the addresses of the cluster's DNS Service. */
export function clusterDnsSink(learning: DnsSnooper): ObjectSink {
  return {
    upsert(object) {
      if (object.kind !== 'Service' || object.key !== CLUSTER_DNS) return;
      learning.setResolvers(new Set(object.clusterIPs));
    },
    remove(kind, key) {
      if (kind === 'Service' && key === CLUSTER_DNS) learning.setResolvers(new Set());
    },
    synced() {},
  };
}

/** By the variant that the node uses, which is found out when there is something to do. */
function mangleTable(family: IpFamily, { iptablesVariant }: NamesOptions): MangleTable {
  let found: Promise<Iptables> | undefined;
  const iptables = () => {
    found ??= (async () => iptablesCommands(family, iptablesVariant ?? (await detectVariant())))();
    return found;
  };
  return {
    family,
    saveTable: async (table) => {
      const commands = await iptables();
      // To ask for a table that is not there would create it.
      const tables = await iptablesTables(family, commands.variant);
      return tables.includes(table) ? await commands.saveTable(table) : '';
    },
    restore: async (inputs) => (await iptables()).restore(inputs),
  };
}
