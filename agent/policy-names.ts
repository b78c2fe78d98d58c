/** Domain names of network policy in a running agent: whose answers count, and who hears of what. */
import type { Logger } from 'pino';
import type { ApiObject, IpFamily, Kind, ObjectKey } from '../api/objects.ts';
import type { RunOptions } from '../config/settings.ts';
import { type Iptables, iptablesCommands, VARIANTS } from '../iptables/commands.ts';
import { detectVariant } from '../iptables/variant.ts';
import type { FqdnEntry, LearnedElement } from '../policy/compile/change.ts';
import type { Enforcer } from '../policy/enforce/enforcer.ts';
import { FQDN_CACHE_DEFAULTS } from '../policy/fqdn/cache.ts';
import { DnsLearning } from '../policy/fqdn/learning.ts';
import { type MangleTable, removeDnsRules } from '../policy/fqdn/rules.ts';
import type { ListNumber } from '../policy/model/terms.ts';
import type { ObjectSink } from '../sources/store.ts';
import { systemTimers } from '../sync/loop.ts';
import { iptablesTables } from '../takeover/removal.ts';

/** The Service of the cluster's DNS, by its name of old, which CoreDNS kept. */
const CLUSTER_DNS = 'kube-system/kube-dns';
/** Milliseconds between two looks at the rules that queue packets. Each is a run of iptables-save. */
const MEND_PERIOD = 60_000;

export interface PolicyNamesOptions {
  readonly families: readonly IpFamily[];
  readonly options: Pick<
    RunOptions,
    'fqdnResolvers' | 'fqdnTtlFloor' | 'fqdnTtlCap' | 'iptablesVariant'
  >;
  readonly enforcer: () => Enforcer;
  readonly log: Logger;
}

/** What pods were told of domain names, and what follows for the kernel. */
export class PolicyNames {
  readonly #options: PolicyNamesOptions;
  readonly #learning: DnsLearning;
  readonly #mending: NodeJS.Timeout;
  #hasNames = false;

  constructor(options: PolicyNamesOptions) {
    this.#options = options;
    const { log, enforcer, families } = options;
    this.#learning = new DnsLearning({
      store: {
        learn: (elements, answers) => enforcer().learn(elements, answers),
        forget: (elements, answers) => enforcer().forget(elements, answers),
      },
      tables: families.map((family) => mangleTable(family, options.options)),
      observer: {
        notLearned: (err) =>
          log.warn({ err }, 'cannot let packets go to addresses of a domain name'),
        notForgotten: (err) => log.warn({ err }, 'cannot remove addresses of domain names'),
        rulesFailed: (family, err) =>
          log.error({ family, err }, 'cannot have DNS answers queued; no addresses are learned'),
        threadFailed: (err) =>
          log.error({ err }, 'the thread that looks into DNS answers failed; starting it again'),
      },
      timers: systemTimers,
      learner: {
        ...FQDN_CACHE_DEFAULTS,
        floor: options.options.fqdnTtlFloor,
        cap: options.options.fqdnTtlCap,
      },
    });
    this.#learning.prepare();
    this.#setResolvers(options.options.fqdnResolvers);
    this.#mending = setInterval(() => this.mend(), MEND_PERIOD).unref();
  }

  /** Follows the cluster's DNS, unless resolvers were named. */
  readonly sink: ObjectSink = {
    upsert: (object: ApiObject) => {
      if (object.kind !== 'Service' || object.key !== CLUSTER_DNS) return;
      this.#followDns(object.clusterIPs);
    },
    remove: (kind: Kind, key: ObjectKey) => {
      if (kind === 'Service' && key === CLUSTER_DNS) this.#followDns([]);
    },
    synced: () => {},
  };

  /** Takes over what an earlier agent learned, before anything is enforced. */
  async restore(names: ReadonlyMap<string, ReadonlySet<ListNumber>>): Promise<void> {
    this.setNames(names);
    try {
      this.#learning.restore(await this.#options.enforcer().answers());
    } catch (err) {
      this.#options.log.warn({ err }, 'cannot read which addresses of domain names were known');
    }
  }

  /** To be called whenever these may have changed; the map may be the same. */
  setNames(names: ReadonlyMap<string, ReadonlySet<ListNumber>>): void {
    this.#hasNames = names.size > 0;
    void this.#learning.setNames(names);
  }

  /** For whoever writes a table anew. */
  learned(family: IpFamily): {
    elements: readonly LearnedElement[];
    answers: readonly FqdnEntry[];
  } {
    return this.#learning.learned(family);
  }

  /** Somebody changed what is ours: perhaps the rules that queue packets, too. */
  mend(): void {
    if (this.#hasNames) this.#learning.mend();
  }

  numbers(): ReturnType<DnsLearning['numbers']> {
    return this.#learning.numbers();
  }

  async close(): Promise<void> {
    clearInterval(this.#mending);
    await this.#learning.close();
  }

  #followDns(addresses: readonly string[]): void {
    if (this.#options.options.fqdnResolvers.length === 0) this.#setResolvers(addresses);
  }

  #setResolvers(addresses: readonly string[]): void {
    this.#learning.setResolvers(new Set(addresses));
  }
}

/** By the variant that the node uses, which is found out when there is something to do. */
function mangleTable(
  family: IpFamily,
  { iptablesVariant }: PolicyNamesOptions['options'],
): MangleTable {
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

/** Takes away the rules that queue packets, of both variants. @throws IptablesError */
export async function removeDnsQueues(families: readonly IpFamily[]): Promise<boolean> {
  let isRemoved = false;
  for (const family of families) {
    for (const variant of VARIANTS) {
      if (!(await iptablesTables(family, variant)).includes('mangle')) continue;
      if (await removeDnsRules(iptablesCommands(family, variant))) isRemoved = true;
    }
  }
  return isRemoved;
}
