/**
 * The takeover: removes state of other modes, kube-proxy and older versions from the node. Decides
 * which state a running agent removes, when, and which state stays while connections need it;
 * `portwide cleanup` is in cleanup.ts.
 *
 * Removal starts after the rules of this mode exist, never before. In between, the rules of both
 * modes exist, but only one mode translates a packet. Of hooks with equal priority, the kernel runs
 * the newest first (nf_hook_entries_grow), and it translates a packet only once. The filter rules
 * of the old mode match VIPs, so translated packets pass them.
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
import { iptablesCleanup } from './iptables-rules.ts';
import { ipvsCleanup } from './ipvs.ts';
import { MissingProgramError } from './missing-program.ts';
import { KUBE_PROXY_TABLE, nftTablesCleanup } from './nft-tables.ts';
import { dnsRulesCleanup, policyCleanup } from './policy-rules.ts';
import { isRouteLocalnetEnabled, RouteLocalnetError } from './route-localnet.ts';

/**
 * State that a mode removes, in this order. An agent without `--network-policy` also removes
 * network policy enforcement; an agent with it, the DNS queue rules of earlier versions, once its own rules replace them.
 */
interface TakeoverPlan {
  /** nf_tables tables to delete in each family, after its first sync. */
  readonly tables: readonly string[];
  /**
   * Whether to remove iptables rules, after the first sync of a family. In modes iptables and ipvs,
   * the first sync itself replaces the rules of both modes.
   */
  readonly removesIptables: boolean;
  /**
   * Whether to remove IPVS services, sets and the device, after the first sync of the last family,
   * when no rule references the sets.
   */
  readonly removesIpvs: boolean;
}

const TAKEOVER_PLANS: Readonly<Record<ProxyMode, TakeoverPlan>> = {
  nftables: { tables: [KUBE_PROXY_TABLE], removesIptables: true, removesIpvs: true },
  iptables: { tables: [TABLE, KUBE_PROXY_TABLE], removesIptables: false, removesIpvs: true },
  ipvs: { tables: [TABLE, KUBE_PROXY_TABLE], removesIptables: false, removesIpvs: false },
};

/**
 * Milliseconds between two checks whether connections have ended. State must be removed within 60 s
 * after the last connection that needed it ended. Removing thousands of VIPs takes part of that
 * time.
 */
const CONNECTION_CHECK_PERIOD = 15_000;
/**
 * Milliseconds after which handshakes in flight have completed, including a lost and repeated SYN.
 */
const HANDSHAKE_PERIOD = 2000;
/**
 * Milliseconds from a failure to the next attempt; doubled with each consecutive failure, up to the
 * maximum.
 */
const MIN_RETRY_PERIOD = 1000;
const MAX_RETRY_PERIOD = 5 * 60_000;

/**
 * State that an attempt without errors kept. A number: state for this many established connections
 * (0: for handshakes in flight). RouteLocalnetError: only KUBE-FIREWALL, because route_localnet is
 * 1. MissingProgramError: all rules of a kind. undefined: no state was kept.
 */
type Remaining = number | KeptState | undefined;
/** State that stays until an operator acts. */
type KeptState = RouteLocalnetError | MissingProgramError;

interface TakeoverOptions {
  readonly mode: ProxyMode;
  /** Families that the mode serves. */
  readonly families: readonly IpFamily[];
  readonly options: Pick<RunOptions, 'ipvsExcludeCidrs' | 'networkPolicy'>;
  readonly log: DebugLog;
  readonly timers: Timers;
}

/** Effect of state that cannot be removed, for the log. */
const EFFECTS: Readonly<Record<LeftoverName, string>> = {
  nftables: 'Services are served by this mode',
  iptables:
    'Services are served by this mode; addresses of deleted Services may still lead to their last endpoints',
  ipvs: 'Services are served by this mode',
  'network-policy': 'network policies, or DNS queue rules, of the earlier agent stay in force',
};

const PROGRAM_MISSING = 'leftover state stays, because a program is not installed';

const CLEANUP_STEPS = {
  nftTables: nftTablesCleanup,
  iptablesRules: iptablesCleanup,
  ipvs: ipvsCleanup,
  policyRules: policyCleanup,
  dnsRules: dnsRulesCleanup,
};

/** The takeover by a running agent. */
export class Takeover {
  readonly #options: TakeoverOptions;
  readonly #steps: typeof CLEANUP_STEPS;
  readonly #unsynced: Set<IpFamily>;
  readonly #rulesRemoved: Promise<void>[] = [];
  readonly #remaining = new Map<CleanupStep, RemainingState>();
  readonly #retryTimers = new Set<unknown>();
  #stopped = false;

  /** @param steps for tests. */
  constructor(options: TakeoverOptions, steps = CLEANUP_STEPS) {
    this.#options = options;
    this.#steps = steps;
    this.#unsynced = new Set(options.families);
  }

  /**
   * Call it once for each family, after the first sync of the family.
   * @returns resolves when the nf_tables tables of this family are deleted.
   */
  async afterFirstSync(family: IpFamily): Promise<void> {
    const { mode, families, options } = this.#options;
    const { tables, removesIptables, removesIpvs } = TAKEOVER_PLANS[mode];
    const { nftTables, iptablesRules, ipvs, policyRules } = this.#steps;
    const tablesRemoved = this.#remove('nftables', nftTables(family, tables));
    if (removesIptables) this.#rulesRemoved.push(this.#remove('iptables', iptablesRules(family)));
    const isFirst = this.#unsynced.size === families.length;
    if (isFirst && !options.networkPolicy) void this.#remove('network-policy', policyRules);
    this.#unsynced.delete(family);
    if (removesIpvs && this.#unsynced.size === 0) {
      const step = ipvs(options.ipvsExcludeCidrs);
      void Promise.all(this.#rulesRemoved).then(() => this.#remove('ipvs', step));
    }
    await tablesRemoved;
  }

  /** Call it once this agent enforces network policies in all families: its own rules queue DNS packets. */
  afterNetworkPolicy(): void {
    void this.#remove('network-policy', this.#steps.dnsRules);
  }

  /** State that is still on the node, and the reason. */
  remaining(): Iterable<RemainingState> {
    return this.#remaining.values();
  }

  /** Starts no further attempts. The next agent finds the remaining state. */
  stop(): void {
    this.#stopped = true;
    for (const handle of this.#retryTimers) this.#options.timers.clear(handle);
    this.#retryTimers.clear();
  }

  /**
   * Resolves when everything is removed except perhaps KUBE-FIREWALL. May never resolve after `stop()`.
   */
  #remove(what: LeftoverName, step: CleanupStep): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    void this.#removeUntilDone(what, step, resolve);
    return promise;
  }

  async #removeUntilDone(
    what: LeftoverName,
    step: CleanupStep,
    onRemoved: () => void,
  ): Promise<void> {
    const { log, timers } = this.#options;
    const failures = new RepeatedFailures(log, () => timers.now());
    const succeeded = () =>
      failures.succeeded(what, { what }, 'removing leftover state no longer fails');
    const warned = new Set<string>();
    let retryPeriod = MIN_RETRY_PERIOD;
    let left: Remaining;
    for (;;) {
      try {
        left = await this.#attempt(what, step, left, warned);
        if (left === undefined || left instanceof RouteLocalnetError) onRemoved();
        if (left === undefined) break;
        const connections = typeof left === 'number' ? left : 0;
        if (connections > 0 && !this.#remaining.get(step)?.connections) {
          log.info({ what, connections }, 'keeping leftover state until its connections end');
        }
        this.#remaining.set(step, { what, connections, ...reasonOf(left) });
        retryPeriod = MIN_RETRY_PERIOD;
        succeeded();
        await this.#wait(waitFor(left));
      } catch (error) {
        const details = { what, effect: EFFECTS[what], err: error };
        failures.failed(what, details, 'cannot remove leftover state; retrying');
        this.#remaining.set(step, { what, reason: 'error', connections: 0 });
        await this.#wait(retryPeriod);
        retryPeriod = Math.min(2 * retryPeriod, MAX_RETRY_PERIOD);
      }
    }
    this.#remaining.delete(step);
    succeeded();
  }

  /**
   * @param last result of the last attempt without errors.
   * @param warned reasons of kept state that were logged.
   */
  async #attempt(
    what: LeftoverName,
    step: CleanupStep,
    last: Remaining,
    warned: Set<string>,
  ): Promise<Remaining> {
    const { log } = this.#options;
    if (last instanceof RouteLocalnetError && (await isRouteLocalnetEnabled())) return last;
    const attempt = new CleanupAttempt();
    await step(attempt);
    for (const details of attempt.removed) log.info({ what, ...details }, 'removed leftover state');
    const errors = attempt.failures.map(({ error }) => error);
    const failures = errors.filter((error) => !isKeptState(error));
    if (failures.length > 0) throw failures.length === 1 ? failures[0] : aggregateErrors(failures);
    const kept = errors.filter(isKeptState);
    for (const state of kept) {
      if (warned.has(state.message)) continue;
      warned.add(state.message);
      if (state instanceof RouteLocalnetError) state.warn(log);
      else log.warn({ what, effect: EFFECTS[what], err: state }, PROGRAM_MISSING);
    }
    const missing = kept.find((state) => state instanceof MissingProgramError);
    return attempt.connections ?? missing ?? kept[0];
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

function isKeptState(error: unknown): error is KeptState {
  return error instanceof RouteLocalnetError || error instanceof MissingProgramError;
}

function reasonOf(left: NonNullable<Remaining>): Pick<RemainingState, 'reason' | 'problem'> {
  if (typeof left === 'number') return { reason: 'connections' };
  const { reason, message } = left;
  return reason === 'program' ? { reason, problem: message } : { reason };
}

/** Milliseconds until the next attempt. */
function waitFor(left: NonNullable<Remaining>): number {
  if (left === 0) return HANDSHAKE_PERIOD;
  return left instanceof MissingProgramError ? MAX_RETRY_PERIOD : CONNECTION_CHECK_PERIOD;
}
