/**
 * The ipvs proxy mode: renders TrafficPlans as IPVS services, ipsets, addresses and rules, and writes
 * these to the kernel.
 */
import { cidrContains } from '../api/addresses.ts';
import type { ObjectKey } from '../api/objects.ts';
import { IPVS_DEVICE } from '../api/vip-device.ts';
import { untraceableVariant } from '../iptables/backend.ts';
import type { Iptables } from '../iptables/commands.ts';
import type { TableChange } from '../iptables/ruleset.ts';
import { type RulesetWriter, rulesetWriter } from '../iptables/writer.ts';
import { EINVAL } from '../netlink/core/error.ts';
import type { IpsetEntry } from '../netlink/ipset/ipset.ts';
import type { ApplyReport, Backend, BackendStats, RefusalState } from '../proxier/backend.ts';
import type { Comparison } from '../proxier/compared-object.ts';
import { ComparisonBuilder } from '../proxier/comparison.ts';
import { SyncOverlap } from '../proxier/sync-overlap.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import type { Route } from '../services/route.ts';
import { SerialQueue } from '../sync/serial-queue.ts';
import { TimeSlice } from '../sync/time-slice.ts';
import { callPeriodically, type Timers } from '../sync/timers.ts';
import { type ComparisonScope, compareWithKernel } from './compare.ts';
import { compareState } from './compare-state.ts';
import { GracefulTermination } from './graceful-termination.ts';
import {
  type IpvsItem,
  isWrittenBeforeDestinations,
  itemKey,
  serviceOf,
  serviceText,
} from './items.ts';
import { type FailedChange, IpvsApplyError, type IpvsKernel } from './kernel.ts';
import { MarkAllocator } from './marks.ts';
import { IpvsPlan, type IpvsPlanOptions } from './plan.ts';
import type { SetName } from './sets.ts';

/** Options that are fixed while the agent runs. */
export interface IpvsOptions extends IpvsPlanOptions {
  /** IPVS services and addresses in these CIDRs stay untouched (`--ipvs-exclude-cidrs`). */
  readonly excludeCidrs: readonly string[];
}

/** Milliseconds between two checks of draining destinations, as in kube-proxy. */
const DRAIN_CHECK_PERIOD = 60_000;

/**
 * Milliseconds after which a handshake in flight has completed. IPVS counts connections in their
 * handshake as inactive, like UDP flows.
 */
const HANDSHAKE_TIME = 1000;

/** Maximum number of VIPs in one warning. */
const MAX_VIPS_IN_WARNING = 10;

/**
 * Creates the ipvs backend of one family. Reads the mark records in the kernel first, so that
 * Services keep their marks across restarts.
 * @throws (rejection) NetlinkError
 */
export async function ipvsBackend(
  kernel: IpvsKernel,
  iptables: Iptables,
  options: IpvsOptions,
  timers: Timers,
): Promise<Backend> {
  const recorded: IpsetEntry[] = [];
  await kernel.visitEntries('KUBE-MARKS', (entry) => recorded.push(entry));
  const own = new Set(recorded.map(({ mark }) => mark));
  const foreign = (await kernel.services()).flatMap(({ key }) =>
    key.kind === 'mark' && !own.has(key.mark) ? [key.mark] : [],
  );
  const known = recorded.map(({ comment = '', mark = 0 }) => [comment, mark] as const);
  const marks = new MarkAllocator(options.markRange, known, foreign);
  return new IpvsBackend(kernel, iptables, options, marks, timers);
}

class IpvsBackend implements Backend {
  readonly family: Backend['family'];
  readonly untraceable: Backend['untraceable'];
  readonly traffic = () => this.#plan.traffic();
  readonly describeRule: NonNullable<Backend['describeRule']> = (rule) =>
    this.#plan.describeRule(rule);
  readonly #kernel: IpvsKernel;
  readonly #options: IpvsOptions;
  readonly #marks: MarkAllocator;
  readonly #plan: IpvsPlan;
  readonly #writer: RulesetWriter;
  readonly #termination: GracefulTermination;
  readonly #timers: Timers;
  readonly #stopDrainChecks: () => void;
  /** Changes that the kernel rejected permanently and that were logged. */
  #permanentErrors: ReadonlySet<string> = new Set();
  /** Updates that arrive during a full sync; the next sync writes them. */
  #deferredChanges: (() => void)[] | undefined;
  #handshakeTimer: unknown;
  #isClosed = false;
  /** Whether the last sync succeeded. */
  #isInSync = false;
  /**
   * Whether no full sync has succeeded yet. The kernel state may then come from an earlier agent or
   * from kube-proxy.
   */
  #isFirstSync = true;
  /** Items of VIPs that have drained and may still exist in the kernel. */
  #pendingUnbinds: readonly IpvsItem[] = [];
  /** Serialises syncs and drain checks. */
  readonly #queue = new SerialQueue();
  readonly #syncs = new SyncOverlap();

  constructor(
    kernel: IpvsKernel,
    iptables: Iptables,
    options: IpvsOptions,
    marks: MarkAllocator,
    timers: Timers,
  ) {
    this.family = kernel.family;
    this.untraceable = untraceableVariant(iptables);
    this.#kernel = kernel;
    this.#options = options;
    this.#marks = marks;
    this.#plan = new IpvsPlan(options, marks);
    this.#writer = rulesetWriter(iptables, this.#plan.ruleset, options.onWarning);
    this.#termination = new GracefulTermination(kernel, {
      isDesired: (key) => this.#plan.desired.has(key),
      endpointState: (service, destination) => this.#plan.endpointState(service, destination),
    });
    this.#timers = timers;
    this.#stopDrainChecks = callPeriodically(timers, DRAIN_CHECK_PERIOD, () => {
      const isIdle = this.#plan.drainingVips.size === 0 && this.#pendingUnbinds.length === 0;
      if (!this.#termination.isEmpty || !isIdle)
        void this.#enqueueDrainCheck(async () => {
          await this.#termination.checkAll();
          await this.#plan.drainingVips.checkConntrack((vips) => this.#kernel.connectedVips(vips));
        });
    });
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#stopDrainChecks();
    this.#timers.clear(this.#handshakeTimer);
    await this.#queue.idle();
    await this.#kernel.close();
  }

  setNodeAddresses(nodeAddresses: NodeAddresses): void {
    this.#changeOrDefer(() => this.#plan.setNodeAddresses(nodeAddresses));
  }

  update(upserts: Iterable<Route>, removals: Iterable<string>): void {
    const [changed, gone] = [[...upserts], [...removals]];
    this.#changeOrDefer(() => this.#plan.update(changed, gone));
  }

  setRefusedServices(changes: ReadonlyMap<ObjectKey, RefusalState>): void {
    this.#changeOrDefer(() => this.#plan.drainingVips.setRefusedServices(changes));
  }

  /** Runs a sync or a drain check after the operations in the queue. */
  #enqueue<T>(work: () => Promise<T>): Promise<T> {
    return this.#queue.run(() => this.#syncs.run(work));
  }

  #changeOrDefer(change: () => void): void {
    // A comparison reads the changes besides the items, so that it would see an item twice.
    this.#syncs.changed();
    if (this.#deferredChanges === undefined) change();
    else this.#deferredChanges.push(change);
  }

  apply(full: boolean): Promise<ApplyReport> {
    return this.#enqueue(async () => {
      this.#isInSync = false;
      const isFirst = this.#isFirstSync;
      const written = full ? await this.#applyFull() : await this.#applyChanges();
      this.#isInSync = true;
      await this.#checkDraining(() => this.#termination.check(this.#plan.takeChangedServices()));
      if (isFirst) this.#warnOfDrainingVips();
      this.#scheduleHandshakeCheck();
      return { written };
    });
  }

  /** Checks draining destinations, then unbinds draining VIPs without connections. */
  async #checkDraining(check: () => Promise<void>): Promise<void> {
    await check();
    const { drainingVips, desired } = this.#plan;
    // Wait for the next sync: services of Routes that were removed since the last sync do not drain
    // yet, so their VIP would seem idle.
    if (!this.#isInSync || desired.hasChanges) return;
    const vips = this.#termination.vips();
    const idle = [...this.#pendingUnbinds, ...drainingVips.takeIdle((vip) => vips.has(vip))];
    // Skip VIPs that a Service has started to use since the last attempt failed.
    this.#pendingUnbinds = idle.filter((item) => !desired.has(itemKey(item)));
    if (this.#pendingUnbinds.length === 0) return;
    await this.#kernel.remove(this.#pendingUnbinds);
    this.#pendingUnbinds = [];
  }

  /**
   * Warns about VIPs without a served Service. After a restart it is unknown whether their Services
   * were refused or deleted.
   */
  #warnOfDrainingVips(): void {
    const { vips } = this.#plan.drainingVips;
    if (vips.length === 0) return;
    this.#options.onWarning(
      { device: IPVS_DEVICE, count: vips.length, vips: vips.slice(0, MAX_VIPS_IN_WARNING) },
      'VIPs without a served Service stay bound until their connections end',
    );
  }

  /** Schedules a check of destinations whose handshakes may still be in flight. */
  #scheduleHandshakeCheck(): void {
    if (
      this.#isClosed ||
      this.#handshakeTimer !== undefined ||
      !this.#termination.needsHandshakeCheck
    )
      return;
    this.#handshakeTimer = this.#timers.set(() => {
      this.#handshakeTimer = undefined;
      void this.#enqueueDrainCheck(() => this.#termination.checkHandshakes()).then(() =>
        this.#scheduleHandshakeCheck(),
      );
    }, HANDSHAKE_TIME);
  }

  /** Runs a drain check after the operations in the queue. */
  async #enqueueDrainCheck(check: () => Promise<void>): Promise<void> {
    try {
      await this.#enqueue(() => this.#checkDraining(check));
    } catch (error) {
      this.#options.onWarning({ err: error }, 'cannot check draining IPVS destinations');
    }
  }

  findDrift(): Promise<string | undefined> {
    return this.#queue.run(async () => {
      // Ignore state that is not yet written; it is not drift.
      const isWritten = !this.#plan.desired.hasChanges;
      const hasEntries = (set: SetName) => isWritten && this.#plan.desired.countOf(set) > 0;
      const missing = await this.#kernel.findDrift(hasEntries);
      if (missing !== undefined) return missing;
      // Checking one service is enough: `ipvsadm -C` clears all services.
      const failed = [...this.#permanentErrors];
      const isAccepted = (key: string) => !failed.some((what) => what.endsWith(key));
      const probed = isWritten
        ? this.#plan.desired.findServiceWithDestination(isAccepted)
        : undefined;
      if (probed !== undefined && (await this.#kernel.destinations(probed)).length === 0) {
        return `IPVS service ${serviceText(probed)}`;
      }
      return await this.#writer.findDrift();
    });
  }

  /** Does not wait for a sync in progress, and holds up no sync. */
  async compare(
    service?: ObjectKey,
    signal?: AbortSignal,
    namespace?: string,
  ): Promise<Comparison> {
    const result = new ComparisonBuilder(service, signal, namespace);
    const syncSpan = this.#syncs.watch();
    // Before the first sync the kernel may have the state of kube-proxy.
    if (this.#isFirstSync) return result.result();
    await compareState(this.#kernel, this.#plan, this.#scope(), result);
    await this.#writer.compare(result);
    return result.result(syncSpan());
  }

  /** Kernel state that this mode leaves untouched. */
  #scope(): ComparisonScope {
    return {
      isExcluded: (address) =>
        this.#options.excludeCidrs.some((cidr) => cidrContains(cidr, address)),
      isOwnMark: (mark) => this.#marks.isOwn(mark),
      isDraining: (service, key) => this.#termination.has(service, key),
    };
  }

  stats(): BackendStats {
    return {
      marks: { inUse: this.#marks.inUse, waiting: this.#plan.waitingForMark },
      drainingVips: this.#plan.drainingVips.size,
    };
  }

  async #applyChanges(): Promise<number> {
    const differences = this.#plan.desired.takeChanges();
    const adds = differences.flatMap(({ after }) => (after === undefined ? [] : [after]));
    const removes = differences.flatMap(({ before, after }) =>
      before === undefined || after !== undefined ? [] : [before],
    );
    const rejected = new ApplyFailures();
    await rejected.collect(this.#kernel.add(adds));
    for (const change of this.#plan.ruleset.pendingChanges()) await this.#writer.write(change);
    await this.#remove(removes, rejected);
    return differences.length - this.#reportPermanentErrors(rejected);
  }

  /**
   * Runs a full sync. The desired state does not change meanwhile, because updates are deferred.
   */
  async #applyFull(): Promise<number> {
    const deferred: (() => void)[] = [];
    this.#deferredChanges = deferred;
    try {
      return await this.#reconcile();
    } finally {
      const slice = new TimeSlice();
      // More updates may arrive while this loop yields.
      for (const change of deferred) {
        change();
        if (slice.isOver()) await slice.yield();
      }
      this.#deferredChanges = undefined;
    }
  }

  async #reconcile(): Promise<number> {
    const scope = this.#scope();
    if (this.#isFirstSync) await this.#adoptVips(scope.isExcluded);
    this.#plan.desired.discardChanges();
    let written = await this.#kernel.prepare(this.#plan.desired);
    const { adds, removes } = await compareWithKernel(this.#kernel, this.#plan.desired, scope);
    const rejected = new ApplyFailures();
    const isAddress = ({ kind }: IpvsItem) => kind === 'address';
    await rejected.collect(this.#kernel.add(adds.filter((item) => !isAddress(item))));

    // Install the reject and masquerade rules before the VIPs are bound. Keep the DNAT rules of the
    // iptables mode until the VIPs are bound, so that the takeover has no gap.
    const changes = await this.#writer.diff();
    const isLast = ({ table, remove }: TableChange) =>
      table === 'nat' && remove.some((chain) => chain.startsWith('KUBE-SVC-'));
    const write = async (some: readonly TableChange[]) => {
      for (const change of some) written += await this.#writer.writeSkippingBlocked(change);
    };
    await write(changes.filter((change) => !isLast(change)));
    await rejected.collect(this.#kernel.add(adds.filter(isAddress)));
    await write(changes.filter(isLast));

    await this.#remove(removes, rejected);
    const permanent = this.#reportPermanentErrors(rejected);
    // Keep only the errors of this full sync, which retried all desired items.
    this.#permanentErrors = new Set(rejected.failures.map(([what]) => what));
    this.#isFirstSync = false;
    return written + adds.length + removes.length - permanent;
  }

  /** Keeps bound VIPs that are not desired while they have connections. */
  async #adoptVips(isExcluded: (address: string) => boolean): Promise<void> {
    for (const { address } of await this.#kernel.addresses()) {
      if (isExcluded(address) || this.#plan.isNodeAddress(address)) continue;
      if (!this.#plan.desired.has(address)) this.#plan.drainingVips.adopt(address);
    }
  }

  /**
   * Removes items in phases. Entries and addresses that direct packets to destinations are removed
   * first. Then destinations start draining; their services and mark records stay until they have
   * drained. Entries that guard destinations (source ranges, masquerade) are removed last.
   */
  async #remove(items: readonly IpvsItem[], rejected: ApplyFailures): Promise<void> {
    const undesired = items.flatMap((item): IpvsItem[] =>
      item.kind === 'entry' ? this.#plan.desired.undesiredParts(item) : [item],
    );
    const [before, after] = [false, true].map((isAfter) =>
      undesired.filter(
        (item) => item.kind !== 'destination' && isWrittenBeforeDestinations(item) === isAfter,
      ),
    );
    await rejected.collect(this.#kernel.remove(before ?? []));
    await rejected.collect(
      this.#termination.start(items.flatMap((item) => (item.kind === 'destination' ? [item] : []))),
    );
    const gone = (after ?? []).filter((item) => {
      const service = serviceOf(item);
      return service === undefined || !this.#termination.deferRemoval(service, item);
    });
    await rejected.collect(this.#kernel.remove(gone));
  }

  /**
   * Logs permanent errors (EINVAL, for example an endpoint with a broadcast address) once. A full
   * sync, as after other failures, would not fix them.
   * @returns the number of permanent errors.
   * @throws IpvsApplyError for all other errors.
   */
  #reportPermanentErrors({ failures }: ApplyFailures): number {
    const isPermanent = ([, { errno }]: FailedChange) => errno === EINVAL;
    const others = failures.filter((each) => !isPermanent(each));
    if (others.length > 0) throw new IpvsApplyError(others);
    const known = this.#permanentErrors;
    this.#permanentErrors = new Set([...known, ...failures.map(([what]) => what)]);
    for (const [what, error] of failures) {
      if (known.has(what)) continue;
      // `what` is for example `add-destination TCP 10.96.0.1:80 > 10.244.0.9:8080`.
      const [service = ''] = what.replace(/^\S+ /, '').split(' > ');
      const name = this.#plan.servicePortName(service);
      const details = { change: what, ...(name !== undefined && { service: name }), err: error };
      this.#options.onWarning(details, 'kernel rejected an IPVS change permanently');
    }
    return failures.length;
  }
}

/** Collects rejected changes, so that a rejected change does not stop the rest of the sync. */
class ApplyFailures {
  readonly failures: FailedChange[] = [];

  async collect(work: Promise<void>): Promise<void> {
    try {
      await work;
    } catch (error) {
      if (!(error instanceof IpvsApplyError)) throw error;
      this.failures.push(...error.failures);
    }
  }
}
