/**
 * takeover/: removes what other modes, kube-proxy and older versions left on the node. Here is what a running agent
 * removes, when, and what it keeps while connections need it; `portwide cleanup` is cleanup.ts.
 *
 * It goes when the rules of this mode stand, not before: in between both serve. The hooks that come last are
 * asked first (nf_hook_entries_grow), and what is translated is translated once, so a packet meets the rules
 * of one of the two. Filters of the mode that goes look for VIPs: what was translated passes them by.
 */
import type { IpFamily } from '../api/objects.ts';
import type { ProxyMode } from '../config/node-settings.ts';
import type { RunOptions } from '../config/settings.ts';
import type { Kept, Leftover as LeftoverName } from '../metrics/portwide.ts';
import { TABLE } from '../nftables/skeleton.ts';
import type { DebugLog } from '../process/log.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import type { Timers } from '../sync/timers.ts';
import { Attempt, aggregate, type Leftover } from './attempt.ts';
import { iptablesRules } from './iptables-rules.ts';
import { ipvs } from './ipvs.ts';
import { isLocalnetOpen, LocalnetOpenError } from './localnet.ts';
import { KUBE_PROXY_TABLE, nftTables } from './nft-tables.ts';
import { policyRules } from './policy-rules.ts';

/** What goes, in this order; and network policy, with an agent that does not enforce any. */
interface Plan {
  /** Tables of nf_tables in each family, after its first sync. */
  readonly tables: readonly string[];
  /** Rules of iptables, likewise. Of modes iptables and ipvs, the first sync itself replaces those of either. */
  readonly hasRules: boolean;
  /** Services, sets and the device of IPVS, after the last family's, and when no rule names the sets. */
  readonly hasIpvs: boolean;
}

const PLANS: Readonly<Record<ProxyMode, Plan>> = {
  nftables: { tables: [KUBE_PROXY_TABLE], hasRules: true, hasIpvs: true },
  iptables: { tables: [TABLE, KUBE_PROXY_TABLE], hasRules: false, hasIpvs: true },
  ipvs: { tables: [TABLE, KUBE_PROXY_TABLE], hasRules: false, hasIpvs: false },
};

/**
 * Milliseconds between two looks whether connections have ended. What they needed is to be gone
 * within 60 s of the last one, the removal of thousands of VIPs included.
 */
const LOOK_PERIOD = 15_000;
/** Milliseconds in which handshakes that are under way are over, a SYN that was lost and sent again included. */
const HANDSHAKE_PERIOD = 2000;
/** Milliseconds from a failure to the next attempt; doubled with each one in a row, up to the longest. */
const RETRY_PERIOD = 1000;
const LONGEST_RETRY_PERIOD = 5 * 60_000;

/**
 * What an attempt that did not fail has left: something for so many established connections (0: for handshakes
 * that are under way), or KUBE-FIREWALL alone, while route_localnet is 1.
 */
type Left = number | LocalnetOpenError | undefined;

interface TakeoverOptions {
  readonly mode: ProxyMode;
  /** Those that it serves. */
  readonly families: readonly IpFamily[];
  readonly options: Pick<RunOptions, 'ipvsExcludeCidrs' | 'networkPolicy'>;
  readonly log: DebugLog;
  readonly timers: Timers;
}

const KINDS = { nftTables, iptablesRules, ipvs, policyRules };

/** The taking over of a running agent. */
export class Takeover {
  readonly #options: TakeoverOptions;
  readonly #kinds: typeof KINDS;
  readonly #unsynced: Set<IpFamily>;
  readonly #rulesGone: Promise<void>[] = [];
  readonly #kept = new Map<Leftover, Kept>();
  readonly #waiting = new Set<unknown>();
  #stopped = false;

  /** @param kinds for tests. */
  constructor(options: TakeoverOptions, kinds = KINDS) {
    this.#options = options;
    this.#kinds = kinds;
    this.#unsynced = new Set(options.families);
  }

  /**
   * To be called once for each family.
   * @returns resolves when the tables of nf_tables that go are gone in this family.
   */
  async afterFirstSync(family: IpFamily): Promise<void> {
    const { mode, families, options } = this.#options;
    const { tables, hasRules, hasIpvs } = PLANS[mode];
    const { nftTables, iptablesRules, ipvs, policyRules } = this.#kinds;
    const tablesGone = this.#remove('nftables', nftTables(family, tables));
    if (hasRules) this.#rulesGone.push(this.#remove('iptables', iptablesRules(family)));
    if (!options.networkPolicy && this.#unsynced.size === families.length) {
      void this.#remove('network-policy', policyRules);
    }
    this.#unsynced.delete(family);
    if (hasIpvs && this.#unsynced.size === 0) {
      const leftover = ipvs(options.ipvsExcludeCidrs);
      void Promise.all(this.#rulesGone).then(() => this.#remove('ipvs', leftover));
    }
    await tablesGone;
  }

  /** What is still on the node, and why. */
  kept(): Iterable<Kept> {
    return this.#kept.values();
  }

  /** No attempt begins any more. What was not removed is found again by the next agent. */
  stop(): void {
    this.#stopped = true;
    for (const handle of this.#waiting) this.#options.timers.clear(handle);
    this.#waiting.clear();
  }

  /** Resolves when all is gone but perhaps KUBE-FIREWALL; never after `stop()`. */
  #remove(what: LeftoverName, leftover: Leftover): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    void this.#untilGone(what, leftover, resolve);
    return promise;
  }

  async #untilGone(what: LeftoverName, leftover: Leftover, onCleared: () => void): Promise<void> {
    const { log, timers } = this.#options;
    const failures = new RepeatedFailures(log, () => timers.now());
    const succeeded = () => failures.succeeded(what, { what }, 'the removal succeeds again');
    let retryPeriod = RETRY_PERIOD;
    let left: Left;
    for (;;) {
      try {
        left = await this.#attempt(what, leftover, left);
        if (typeof left !== 'number') onCleared();
        if (left === undefined) break;
        const connections = typeof left === 'number' ? left : 0;
        if (connections > 0 && !this.#kept.get(leftover)?.connections) {
          log.info(
            { what, connections },
            `mode ${what} left established connections; what they need stays until they end`,
          );
        }
        const reason = typeof left === 'number' ? 'connections' : 'sysctl';
        this.#kept.set(leftover, { what, reason, connections });
        retryPeriod = RETRY_PERIOD;
        succeeded();
        await this.#wait(left === 0 ? HANDSHAKE_PERIOD : LOOK_PERIOD);
      } catch (error) {
        failures.failed(what, { err: error }, `${failureOf(what)}; trying again`);
        this.#kept.set(leftover, { what, reason: 'error', connections: 0 });
        await this.#wait(retryPeriod);
        retryPeriod = Math.min(2 * retryPeriod, LONGEST_RETRY_PERIOD);
      }
    }
    this.#kept.delete(leftover);
    succeeded();
  }

  /** @param last of the last attempt that did not fail. */
  async #attempt(what: LeftoverName, leftover: Leftover, last: Left): Promise<Left> {
    const { log } = this.#options;
    const waitedForLocalnet = last instanceof LocalnetOpenError;
    if (waitedForLocalnet && (await isLocalnetOpen())) return last;
    const attempt = new Attempt();
    await leftover(attempt);
    for (const details of attempt.removed) log.info(details, removedOf(what));
    const errors = attempt.failures.map(({ error }) => error);
    const open = errors.find((error) => error instanceof LocalnetOpenError);
    const failures = errors.filter((error) => !(error instanceof LocalnetOpenError));
    if (failures.length > 0) throw failures.length === 1 ? failures[0] : aggregate(failures);
    if (!waitedForLocalnet) open?.warn(log);
    return attempt.connections ?? open;
  }

  #wait(milliseconds: number): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    if (this.#stopped) return promise;
    const handle = this.#options.timers.set(() => {
      this.#waiting.delete(handle);
      resolve();
    }, milliseconds);
    this.#waiting.add(handle);
    return promise;
  }
}

function failureOf(what: LeftoverName): string {
  return what === 'network-policy'
    ? 'cannot remove the tables of network policy; their policies stay in force'
    : `cannot remove what mode ${what} left; Services are served without it`;
}

function removedOf(what: LeftoverName): string {
  return what === 'network-policy'
    ? 'removed what an agent with --network-policy had enforced'
    : `removed what mode ${what} had left`;
}
