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
import type { Leftover as LeftoverName, RemainingState } from '../metrics/portwide.ts';
import { TABLE } from '../nftables/static-chains.ts';
import type { DebugLog } from '../process/log.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import type { Timers } from '../sync/timers.ts';
import { aggregateErrors, CleanupAttempt, type CleanupStep } from './cleanup-attempt.ts';
import { iptablesRules } from './iptables-rules.ts';
import { ipvs } from './ipvs.ts';
import { KUBE_PROXY_TABLE, nftTables } from './nft-tables.ts';
import { policyRules } from './policy-rules.ts';
import { isRouteLocalnetEnabled, RouteLocalnetError } from './route-localnet.ts';

/** What goes, in this order; and network policy, with an agent that does not enforce any. */
interface TakeoverPlan {
  /** Tables of nf_tables in each family, after its first sync. */
  readonly tables: readonly string[];
  /** Rules of iptables, likewise. Of modes iptables and ipvs, the first sync itself replaces those of either. */
  readonly hasRules: boolean;
  /** Services, sets and the device of IPVS, after the last family's, and when no rule names the sets. */
  readonly hasIpvs: boolean;
}

const TAKEOVER_PLANS: Readonly<Record<ProxyMode, TakeoverPlan>> = {
  nftables: { tables: [KUBE_PROXY_TABLE], hasRules: true, hasIpvs: true },
  iptables: { tables: [TABLE, KUBE_PROXY_TABLE], hasRules: false, hasIpvs: true },
  ipvs: { tables: [TABLE, KUBE_PROXY_TABLE], hasRules: false, hasIpvs: false },
};

/**
 * Milliseconds between two looks whether connections have ended. What they needed is to be gone
 * within 60 s of the last one, the removal of thousands of VIPs included.
 */
const CONNECTION_CHECK_PERIOD = 15_000;
/** Milliseconds in which handshakes that are under way are over, a SYN that was lost and sent again included. */
const HANDSHAKE_PERIOD = 2000;
/** Milliseconds from a failure to the next attempt; doubled with each one in a row, up to the longest. */
const MIN_RETRY_PERIOD = 1000;
const MAX_RETRY_PERIOD = 5 * 60_000;

/**
 * What an attempt that did not fail has left: something for so many established connections (0: for handshakes
 * that are under way), or KUBE-FIREWALL alone, while route_localnet is 1.
 */
type Remaining = number | RouteLocalnetError | undefined;

interface TakeoverOptions {
  readonly mode: ProxyMode;
  /** Those that it serves. */
  readonly families: readonly IpFamily[];
  readonly options: Pick<RunOptions, 'ipvsExcludeCidrs' | 'networkPolicy'>;
  readonly log: DebugLog;
  readonly timers: Timers;
}

const CLEANUP_STEPS = { nftTables, iptablesRules, ipvs, policyRules };

/** The taking over of a running agent. */
export class Takeover {
  readonly #options: TakeoverOptions;
  readonly #steps: typeof CLEANUP_STEPS;
  readonly #unsynced: Set<IpFamily>;
  readonly #rulesRemoved: Promise<void>[] = [];
  readonly #remaining = new Map<CleanupStep, RemainingState>();
  readonly #retryTimers = new Set<unknown>();
  #stopped = false;

  /** @param kinds for tests. */
  constructor(options: TakeoverOptions, kinds = CLEANUP_STEPS) {
    this.#options = options;
    this.#steps = kinds;
    this.#unsynced = new Set(options.families);
  }

  /**
   * To be called once for each family.
   * @returns resolves when the tables of nf_tables that go are gone in this family.
   */
  async afterFirstSync(family: IpFamily): Promise<void> {
    const { mode, families, options } = this.#options;
    const { tables, hasRules, hasIpvs } = TAKEOVER_PLANS[mode];
    const { nftTables, iptablesRules, ipvs, policyRules } = this.#steps;
    const tablesGone = this.#remove('nftables', nftTables(family, tables));
    if (hasRules) this.#rulesRemoved.push(this.#remove('iptables', iptablesRules(family)));
    if (!options.networkPolicy && this.#unsynced.size === families.length) {
      void this.#remove('network-policy', policyRules);
    }
    this.#unsynced.delete(family);
    if (hasIpvs && this.#unsynced.size === 0) {
      const leftover = ipvs(options.ipvsExcludeCidrs);
      void Promise.all(this.#rulesRemoved).then(() => this.#remove('ipvs', leftover));
    }
    await tablesGone;
  }

  /** What is still on the node, and why. */
  kept(): Iterable<RemainingState> {
    return this.#remaining.values();
  }

  /** No attempt begins any more. What was not removed is found again by the next agent. */
  stop(): void {
    this.#stopped = true;
    for (const handle of this.#retryTimers) this.#options.timers.clear(handle);
    this.#retryTimers.clear();
  }

  /** Resolves when all is gone but perhaps KUBE-FIREWALL; never after `stop()`. */
  #remove(what: LeftoverName, leftover: CleanupStep): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    void this.#removeUntilDone(what, leftover, resolve);
    return promise;
  }

  async #removeUntilDone(
    what: LeftoverName,
    leftover: CleanupStep,
    onCleared: () => void,
  ): Promise<void> {
    const { log, timers } = this.#options;
    const failures = new RepeatedFailures(log, () => timers.now());
    const succeeded = () => failures.succeeded(what, { what }, 'the removal succeeds again');
    let retryPeriod = MIN_RETRY_PERIOD;
    let left: Remaining;
    for (;;) {
      try {
        left = await this.#attempt(what, leftover, left);
        if (typeof left !== 'number') onCleared();
        if (left === undefined) break;
        const connections = typeof left === 'number' ? left : 0;
        if (connections > 0 && !this.#remaining.get(leftover)?.connections) {
          log.info(
            { what, connections },
            `mode ${what} left established connections; what they need stays until they end`,
          );
        }
        const reason = typeof left === 'number' ? 'connections' : 'sysctl';
        this.#remaining.set(leftover, { what, reason, connections });
        retryPeriod = MIN_RETRY_PERIOD;
        succeeded();
        await this.#wait(left === 0 ? HANDSHAKE_PERIOD : CONNECTION_CHECK_PERIOD);
      } catch (error) {
        failures.failed(what, { err: error }, `${failureOf(what)}; trying again`);
        this.#remaining.set(leftover, { what, reason: 'error', connections: 0 });
        await this.#wait(retryPeriod);
        retryPeriod = Math.min(2 * retryPeriod, MAX_RETRY_PERIOD);
      }
    }
    this.#remaining.delete(leftover);
    succeeded();
  }

  /** @param last of the last attempt that did not fail. */
  async #attempt(what: LeftoverName, leftover: CleanupStep, last: Remaining): Promise<Remaining> {
    const { log } = this.#options;
    const waitedForLocalnet = last instanceof RouteLocalnetError;
    if (waitedForLocalnet && (await isRouteLocalnetEnabled())) return last;
    const attempt = new CleanupAttempt();
    await leftover(attempt);
    for (const details of attempt.removed) log.info(details, removedOf(what));
    const errors = attempt.failures.map(({ error }) => error);
    const open = errors.find((error) => error instanceof RouteLocalnetError);
    const failures = errors.filter((error) => !(error instanceof RouteLocalnetError));
    if (failures.length > 0) throw failures.length === 1 ? failures[0] : aggregateErrors(failures);
    if (!waitedForLocalnet) open?.warn(log);
    return attempt.connections ?? open;
  }

  #wait(milliseconds: number): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    if (this.#stopped) return promise;
    const handle = this.#options.timers.set(() => {
      this.#retryTimers.delete(handle);
      resolve();
    }, milliseconds);
    this.#retryTimers.add(handle);
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
