/** Mode ipvs: this folder renders TrafficPlans as IPVS services, ipsets, addresses and rules, and applies them. */
import { cidrContains } from '../api/addresses.ts';
import type { ObjectKey } from '../api/objects.ts';
import { IPVS_DEVICE } from '../api/vip-device.ts';
import type { Iptables } from '../iptables/commands.ts';
import type { TableChange } from '../iptables/ruleset.ts';
import { type RulesetWriter, rulesetWriter } from '../iptables/writer.ts';
import { EINVAL } from '../netlink/core/error.ts';
import type { IpsetEntry } from '../netlink/ipset/ipset.ts';
import type { ApplyReport, Backend, BackendStats } from '../proxier/backend.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import type { Route } from '../services/route.ts';
import { SerialQueue } from '../sync/serial-queue.ts';
import { TimeSlice } from '../sync/time-slice.ts';
import { every, type Timers } from '../sync/timers.ts';
import { compareWithKernel } from './compare.ts';
import { GracefulTermination } from './graceful-termination.ts';
import { type Item, itemKey, precedesDestinations, serviceOf, serviceText } from './items.ts';
import { type FailedChange, IpvsApplyError, type IpvsKernel } from './kernel.ts';
import { MarkAllocator } from './marks.ts';
import { IpvsPlan, type IpvsPlanOptions } from './plan.ts';
import type { SetName } from './sets.ts';

export interface IpvsOptions extends IpvsPlanOptions {
  /** Services with these addresses are left alone (`--ipvs-exclude-cidrs`). */
  readonly excludeCidrs: readonly string[];
}

/** Milliseconds between two looks at destinations that drain, as in kube-proxy. */
const DRAIN_CHECK_PERIOD = 60_000;

/** Milliseconds in which handshakes under way, which the kernel counts like UDP flows, are over. */
const HANDSHAKE_TIME = 1000;

/** VIPs that one warning names. */
const MAX_VIPS_IN_WARNING = 10;

/**
 * The IPVS mode in one family. Asks the kernel first who has which mark.
 * @throws NetlinkError
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
  readonly #kernel: IpvsKernel;
  readonly #options: IpvsOptions;
  readonly #marks: MarkAllocator;
  readonly #plan: IpvsPlan;
  readonly #writer: RulesetWriter;
  readonly #termination: GracefulTermination;
  readonly #timers: Timers;
  readonly #stopDrainChecks: () => void;
  /** What the kernel will not do, and was warned of. */
  #permanentErrors: ReadonlySet<string> = new Set();
  /** What changes while everything is compared; it is written with the next sync. */
  #deferredChanges: (() => void)[] | undefined;
  #handshakeTimer: unknown;
  #isClosed = false;
  /** The last sync did all that it was to do. */
  #isInSync = false;
  /** Nothing was compared yet: what the kernel holds is of an earlier agent, or of kube-proxy. */
  #isFirstSync = true;
  /** Of VIPs that no longer linger, what the kernel may still have. */
  #pendingUnbinds: readonly Item[] = [];
  /** One at a time: syncs and looks at what drains. */
  readonly #queue = new SerialQueue();

  constructor(
    kernel: IpvsKernel,
    iptables: Iptables,
    options: IpvsOptions,
    marks: MarkAllocator,
    timers: Timers,
  ) {
    this.family = kernel.family;
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
    this.#stopDrainChecks = every(timers, DRAIN_CHECK_PERIOD, () => {
      const isIdle = this.#plan.drainingVips.size === 0 && this.#pendingUnbinds.length === 0;
      if (!this.#termination.isEmpty || !isIdle)
        void this.#enqueueDrainCheck(() => this.#termination.checkAll());
    });
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#stopDrainChecks();
    this.#timers.clear(this.#handshakeTimer);
    await this.#queue.idle();
    await this.#kernel.close();
  }

  setNodeAddresses(facts: NodeAddresses): void {
    this.#changeOrDefer(() => this.#plan.setNodeAddresses(facts));
  }

  update(upserts: Iterable<Route>, removals: Iterable<string>): void {
    const [changed, gone] = [[...upserts], [...removals]];
    this.#changeOrDefer(() => this.#plan.update(changed, gone));
  }

  setRefusedServices(changes: ReadonlyMap<ObjectKey, boolean>): void {
    this.#changeOrDefer(() => this.#plan.drainingVips.setRefusedServices(changes));
  }

  #changeOrDefer(change: () => void): void {
    if (this.#deferredChanges === undefined) change();
    else this.#deferredChanges.push(change);
  }

  apply(full: boolean): Promise<ApplyReport> {
    return this.#queue.run(async () => {
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

  /** Looks at what drains, then unbinds VIPs that stayed for what is over. */
  async #checkDraining(look: () => Promise<void>): Promise<void> {
    await look();
    const { drainingVips: lingering, desired: wanted } = this.#plan;
    // Of a VIP whose Routes went since the last sync, the services do not drain yet.
    if (!this.#isInSync || wanted.hasChanges) return;
    const vips = this.#termination.vips();
    const over = [...this.#pendingUnbinds, ...lingering.takeIdle((vip) => vips.has(vip))];
    // What a Service asks for since an attempt that failed stays.
    this.#pendingUnbinds = over.filter((item) => !wanted.has(itemKey(item)));
    if (this.#pendingUnbinds.length === 0) return;
    await this.#kernel.remove(this.#pendingUnbinds);
    this.#pendingUnbinds = [];
  }

  /** Nobody can tell whether their Services are refused or were deleted while no agent ran. */
  #warnOfDrainingVips(): void {
    const { vips } = this.#plan.drainingVips;
    if (vips.length === 0) return;
    const more =
      vips.length > MAX_VIPS_IN_WARNING ? ` and ${vips.length - MAX_VIPS_IN_WARNING} more` : '';
    this.#options.onWarning(
      `no Service is served on these VIPs; they stay bound to ${IPVS_DEVICE} while connections to them last: ` +
        `${vips.slice(0, MAX_VIPS_IN_WARNING).join(', ')}${more}`,
    );
  }

  /** Looks again at what has just begun to drain. */
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

  /** Looks when nothing else is under way. */
  async #enqueueDrainCheck(look: () => Promise<void>): Promise<void> {
    try {
      await this.#queue.run(() => this.#checkDraining(look));
    } catch (error) {
      this.#options.onWarning(`cannot look at destinations that drain: ${String(error)}`);
    }
  }

  findDrift(): Promise<string | undefined> {
    return this.#queue.run(async () => {
      // What is still to be written is not lost.
      const isSettled = !this.#plan.desired.hasChanges;
      const hasEntries = (set: SetName) => isSettled && this.#plan.desired.countOf(set) > 0;
      const missing = await this.#kernel.findDrift(hasEntries);
      if (missing !== undefined) return missing;
      // One service stands for all: IPVS is cleared as a whole (`ipvsadm -C`).
      const hopeless = [...this.#permanentErrors];
      const isThere = (key: string) => !hopeless.some((what) => what.endsWith(key));
      const some = isSettled ? this.#plan.desired.findServiceWithDestination(isThere) : undefined;
      if (some !== undefined && (await this.#kernel.destinations(some)).length === 0) {
        return `IPVS service ${serviceText(some)}`;
      }
      return await this.#writer.findDrift();
    });
  }

  stats(): BackendStats {
    return {
      marks: { inUse: this.#marks.inUse, waiting: this.#plan.waitingForMark },
      lingeringVips: this.#plan.drainingVips.size,
    };
  }

  async #applyChanges(): Promise<number> {
    const differences = this.#plan.desired.takeChanges();
    const adds = differences.flatMap(({ after }) => (after === undefined ? [] : [after]));
    const removes = differences.flatMap(({ before, after }) =>
      before === undefined || after !== undefined ? [] : [before],
    );
    const refusals = new ApplyFailures();
    await refusals.collect(this.#kernel.add(adds));
    for (const change of this.#plan.ruleset.pending()) await this.#writer.write(change);
    await this.#remove(removes, refusals);
    return differences.length - this.#reportPermanentErrors(refusals);
  }

  /** Compares everything with a plan that stands still. */
  async #applyFull(): Promise<number> {
    const deferred: (() => void)[] = [];
    this.#deferredChanges = deferred;
    try {
      return await this.#reconcile();
    } finally {
      const slice = new TimeSlice();
      // More may come between the turns.
      for (const change of deferred) {
        change();
        if (slice.isOver()) await slice.yield();
      }
      this.#deferredChanges = undefined;
    }
  }

  async #reconcile(): Promise<number> {
    const isExcluded = (address: string) =>
      this.#options.excludeCidrs.some((cidr) => cidrContains(cidr, address));
    if (this.#isFirstSync) await this.#adoptVips(isExcluded);
    this.#plan.desired.discardChanges();
    let written = await this.#kernel.prepare(this.#plan.desired);
    const { adds, removes } = await compareWithKernel(this.#kernel, this.#plan.desired, {
      isExcluded,
      isOwnMark: (mark) => this.#marks.isOwn(mark),
      isDraining: (service, key) => this.#termination.has(service, key),
    });
    const refusals = new ApplyFailures();
    const isAddress = ({ kind }: Item) => kind === 'address';
    await refusals.collect(this.#kernel.add(adds.filter((item) => !isAddress(item))));

    // Rejects stand before there are addresses to be rejected on, and masquerade before there are
    // packets for it; but rules of another mode that translate stay until there are addresses.
    const changes = await this.#writer.diff();
    const isLast = ({ table, remove }: TableChange) =>
      table === 'nat' && remove.some((chain) => chain.startsWith('KUBE-SVC-'));
    const write = async (some: readonly TableChange[]) => {
      for (const change of some) written += await this.#writer.writeTolerant(change);
    };
    await write(changes.filter((change) => !isLast(change)));
    await refusals.collect(this.#kernel.add(adds.filter(isAddress)));
    await write(changes.filter(isLast));

    await this.#remove(removes, refusals);
    const hopeless = this.#reportPermanentErrors(refusals);
    // What is wanted no more is not among what was tried again.
    this.#permanentErrors = new Set(refusals.failures.map(([what]) => what));
    this.#isFirstSync = false;
    return written + adds.length + removes.length - hopeless;
  }

  /** VIPs that are bound and not wanted stay while connections to them last. */
  async #adoptVips(isExcluded: (address: string) => boolean): Promise<void> {
    for (const { address } of await this.#kernel.addresses()) {
      if (isExcluded(address) || this.#plan.isNodeAddress(address)) continue;
      if (!this.#plan.desired.has(address)) this.#plan.drainingVips.adopt(address);
    }
  }

  /**
   * Destinations drain; services, and the records of their marks, stay for those that do. What
   * leads packets to destinations goes before, and what guards them after they have begun.
   */
  async #remove(items: readonly Item[], refusals: ApplyFailures): Promise<void> {
    const unwanted = items.flatMap((item): Item[] =>
      item.kind === 'entry' ? this.#plan.desired.undesiredParts(item) : [item],
    );
    const [before, after] = [false, true].map((isAfter) =>
      unwanted.filter(
        (item) => item.kind !== 'destination' && precedesDestinations(item) === isAfter,
      ),
    );
    await refusals.collect(this.#kernel.remove(before ?? []));
    await refusals.collect(
      this.#termination.start(items.flatMap((item) => (item.kind === 'destination' ? [item] : []))),
    );
    const gone = (after ?? []).filter((item) => {
      const service = serviceOf(item);
      return service === undefined || !this.#termination.deferRemoval(service, item);
    });
    await refusals.collect(this.#kernel.remove(gone));
  }

  /**
   * Warns once of what no kernel will ever take, such as an endpoint with a broadcast address.
   * Comparing everything again and again, as after a failure, would help neither it nor the rest.
   * @returns how much that was.
   * @throws IpvsRefusedError for what else was refused.
   */
  #reportPermanentErrors({ failures: refused }: ApplyFailures): number {
    const isHopeless = ([, { errno }]: FailedChange) => errno === EINVAL;
    const others = refused.filter((each) => !isHopeless(each));
    if (others.length > 0) throw new IpvsApplyError(others);
    const known = this.#permanentErrors;
    this.#permanentErrors = new Set([...known, ...refused.map(([what]) => what)]);
    for (const [what, error] of refused) {
      if (known.has(what)) continue;
      // `add-destination TCP 10.96.0.1:80 > 10.244.0.9:8080`
      const [service = ''] = what.replace(/^\S+ /, '').split(' > ');
      const name = this.#plan.nameOf(service);
      const whose = name === undefined ? '' : ` for ${name}`;
      this.#options.onWarning(`the kernel will not ${what}${whose}: ${error.message}`);
    }
    return refused.length;
  }
}

/** What the kernel refused does not keep the rest from being done. */
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
