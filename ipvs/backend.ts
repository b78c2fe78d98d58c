/** Mode ipvs: this folder renders TrafficPlans as IPVS services, ipsets, addresses and rules, and applies them. */
import { cidrContains } from '../api/addresses.ts';
import type { ObjectKey } from '../api/objects.ts';
import { IPVS_DEVICE } from '../api/vip-device.ts';
import type { Iptables } from '../iptables/commands.ts';
import type { TableChange } from '../iptables/ruleset.ts';
import { type RulesetWriter, rulesetWriter } from '../iptables/writer.ts';
import { EINVAL } from '../netlink/core/error.ts';
import type { SetEntry } from '../netlink/ipset/ipset.ts';
import type { ApplyReport, Backend, BackendNumbers, NodeFacts } from '../proxier/backend.ts';
import type { Route } from '../services/route.ts';
import { SerialQueue } from '../sync/serial-queue.ts';
import { TimeSlice } from '../sync/time-slice.ts';
import { every, type Timers } from '../sync/timers.ts';
import { compareWithKernel } from './compare.ts';
import { Draining } from './draining.ts';
import { type Item, itemKey, precedesDestinations, serviceOf, serviceText } from './items.ts';
import { type IpvsKernel, IpvsRefusedError, type Refused } from './kernel.ts';
import { Marks } from './marks.ts';
import { IpvsPlan, type PlanOptions } from './plan.ts';
import type { SetName } from './sets.ts';

export interface IpvsOptions extends PlanOptions {
  /** Services with these addresses are left alone (`--ipvs-exclude-cidrs`). */
  readonly excludeCidrs: readonly string[];
}

/** Milliseconds between two looks at destinations that drain, as in kube-proxy. */
const DRAIN_PERIOD = 60_000;

/** Milliseconds in which handshakes under way, which the kernel counts like UDP flows, are over. */
const SETTLE_TIME = 1000;

/** VIPs that one warning names. */
const MAX_NAMED = 10;

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
  const recorded: SetEntry[] = [];
  await kernel.visitEntries('KUBE-MARKS', (entry) => recorded.push(entry));
  const own = new Set(recorded.map(({ mark }) => mark));
  const foreign = (await kernel.services()).flatMap(({ key }) =>
    key.kind === 'mark' && !own.has(key.mark) ? [key.mark] : [],
  );
  const known = recorded.map(({ comment = '', mark = 0 }) => [comment, mark] as const);
  const marks = new Marks(options.markRange, known, foreign);
  return new IpvsBackend(kernel, iptables, options, marks, timers);
}

class IpvsBackend implements Backend {
  readonly family: Backend['family'];
  readonly #kernel: IpvsKernel;
  readonly #options: IpvsOptions;
  readonly #marks: Marks;
  readonly #plan: IpvsPlan;
  readonly #writer: RulesetWriter;
  readonly #draining: Draining;
  readonly #timers: Timers;
  readonly #stopDraining: () => void;
  /** What the kernel will not do, and was warned of. */
  #hopeless: ReadonlySet<string> = new Set();
  /** What changes while everything is compared; it is written with the next sync. */
  #deferred: (() => void)[] | undefined;
  #settling: unknown;
  #isClosed = false;
  /** The last sync did all that it was to do. */
  #isApplied = false;
  /** Nothing was compared yet: what the kernel holds is of an earlier agent, or of kube-proxy. */
  #isFirst = true;
  /** Of VIPs that no longer linger, what the kernel may still have. */
  #unbinding: readonly Item[] = [];
  /** One at a time: syncs and looks at what drains. */
  readonly #queue = new SerialQueue();

  constructor(
    kernel: IpvsKernel,
    iptables: Iptables,
    options: IpvsOptions,
    marks: Marks,
    timers: Timers,
  ) {
    this.family = kernel.family;
    this.#kernel = kernel;
    this.#options = options;
    this.#marks = marks;
    this.#plan = new IpvsPlan(options, marks);
    this.#writer = rulesetWriter(iptables, this.#plan.ruleset, options.onWarning);
    this.#draining = new Draining(kernel, {
      isWanted: (key) => this.#plan.wanted.has(key),
      lifeOf: (service, destination) => this.#plan.lifeOf(service, destination),
    });
    this.#timers = timers;
    this.#stopDraining = every(timers, DRAIN_PERIOD, () => {
      const isIdle = this.#plan.lingering.size === 0 && this.#unbinding.length === 0;
      if (!this.#draining.isEmpty || !isIdle) void this.#lookNext(() => this.#draining.lookAtAll());
    });
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#stopDraining();
    this.#timers.clear(this.#settling);
    await this.#queue.idle();
    await this.#kernel.close();
  }

  setFacts(facts: NodeFacts): void {
    this.#change(() => this.#plan.setFacts(facts));
  }

  update(upserts: Iterable<Route>, removals: Iterable<string>): void {
    const [changed, gone] = [[...upserts], [...removals]];
    this.#change(() => this.#plan.update(changed, gone));
  }

  setRefused(changes: ReadonlyMap<ObjectKey, boolean>): void {
    this.#change(() => this.#plan.lingering.setRefused(changes));
  }

  #change(change: () => void): void {
    if (this.#deferred === undefined) change();
    else this.#deferred.push(change);
  }

  apply(full: boolean): Promise<ApplyReport> {
    return this.#queue.run(async () => {
      this.#isApplied = false;
      const isFirst = this.#isFirst;
      const written = full ? await this.#applyFrozen() : await this.#applyChanges();
      this.#isApplied = true;
      await this.#lookAt(() => this.#draining.look(this.#plan.takeTouched()));
      if (isFirst) this.#warnOfLingering();
      this.#settleLater();
      return { written };
    });
  }

  /** Looks at what drains, then unbinds VIPs that stayed for what is over. */
  async #lookAt(look: () => Promise<void>): Promise<void> {
    await look();
    const { lingering, wanted } = this.#plan;
    // Of a VIP whose Routes went since the last sync, the services do not drain yet.
    if (!this.#isApplied || wanted.hasChanges) return;
    const vips = this.#draining.vips();
    const over = [...this.#unbinding, ...lingering.settle((vip) => vips.has(vip))];
    // What a Service asks for since an attempt that failed stays.
    this.#unbinding = over.filter((item) => !wanted.has(itemKey(item)));
    if (this.#unbinding.length === 0) return;
    await this.#kernel.remove(this.#unbinding);
    this.#unbinding = [];
  }

  /** Nobody can tell whether their Services are refused or were deleted while no agent ran. */
  #warnOfLingering(): void {
    const { vips } = this.#plan.lingering;
    if (vips.length === 0) return;
    const more = vips.length > MAX_NAMED ? ` and ${vips.length - MAX_NAMED} more` : '';
    this.#options.onWarning(
      `no Service is served on these VIPs; they stay bound to ${IPVS_DEVICE} while connections to them last: ` +
        `${vips.slice(0, MAX_NAMED).join(', ')}${more}`,
    );
  }

  /** Looks again at what has just begun to drain. */
  #settleLater(): void {
    if (this.#isClosed || this.#settling !== undefined || !this.#draining.isUnsettled) return;
    this.#settling = this.#timers.set(() => {
      this.#settling = undefined;
      void this.#lookNext(() => this.#draining.settle()).then(() => this.#settleLater());
    }, SETTLE_TIME);
  }

  /** Looks when nothing else is under way. */
  async #lookNext(look: () => Promise<void>): Promise<void> {
    try {
      await this.#queue.run(() => this.#lookAt(look));
    } catch (error) {
      this.#options.onWarning(`cannot look at destinations that drain: ${String(error)}`);
    }
  }

  loss(): Promise<string | undefined> {
    return this.#queue.run(async () => {
      // What is still to be written is not lost.
      const isSettled = !this.#plan.wanted.hasChanges;
      const hasEntries = (set: SetName) => isSettled && this.#plan.wanted.countOf(set) > 0;
      const missing = await this.#kernel.loss(hasEntries);
      if (missing !== undefined) return missing;
      // One service stands for all: IPVS is cleared as a whole (`ipvsadm -C`).
      const hopeless = [...this.#hopeless];
      const isThere = (key: string) => !hopeless.some((what) => what.endsWith(key));
      const some = isSettled ? this.#plan.wanted.serviceOfSome(isThere) : undefined;
      if (some !== undefined && (await this.#kernel.destinations(some)).length === 0) {
        return `IPVS service ${serviceText(some)}`;
      }
      return await this.#writer.loss();
    });
  }

  numbers(): BackendNumbers {
    return {
      marks: { inUse: this.#marks.inUse, waiting: this.#plan.waiting },
      lingeringVips: this.#plan.lingering.size,
    };
  }

  async #applyChanges(): Promise<number> {
    const differences = this.#plan.wanted.takeChanges();
    const adds = differences.flatMap(({ after }) => (after === undefined ? [] : [after]));
    const removes = differences.flatMap(({ before, after }) =>
      before === undefined || after !== undefined ? [] : [before],
    );
    const refusals = new Refusals();
    await refusals.of(this.#kernel.add(adds));
    for (const change of this.#plan.ruleset.pending()) await this.#writer.write(change);
    await this.#remove(removes, refusals);
    return differences.length - this.#settle(refusals);
  }

  /** Compares everything with a plan that stands still. */
  async #applyFrozen(): Promise<number> {
    const deferred: (() => void)[] = [];
    this.#deferred = deferred;
    try {
      return await this.#applyAll();
    } finally {
      const slice = new TimeSlice();
      // More may come between the turns.
      for (const change of deferred) {
        change();
        if (slice.isOver()) await slice.yield();
      }
      this.#deferred = undefined;
    }
  }

  async #applyAll(): Promise<number> {
    const isExcluded = (address: string) =>
      this.#options.excludeCidrs.some((cidr) => cidrContains(cidr, address));
    if (this.#isFirst) await this.#adoptVips(isExcluded);
    this.#plan.wanted.dropChanges();
    let written = await this.#kernel.prepare(this.#plan.wanted);
    const { adds, removes } = await compareWithKernel(this.#kernel, this.#plan.wanted, {
      isExcluded,
      isOwnMark: (mark) => this.#marks.isOurs(mark),
      isDraining: (service, key) => this.#draining.has(service, key),
    });
    const refusals = new Refusals();
    const isAddress = ({ kind }: Item) => kind === 'address';
    await refusals.of(this.#kernel.add(adds.filter((item) => !isAddress(item))));

    // Rejects stand before there are addresses to be rejected on, and masquerade before there are
    // packets for it; but rules of another mode that translate stay until there are addresses.
    const changes = await this.#writer.differences();
    const isLast = ({ table, remove }: TableChange) =>
      table === 'nat' && remove.some((chain) => chain.startsWith('KUBE-SVC-'));
    const write = async (some: readonly TableChange[]) => {
      for (const change of some) written += await this.#writer.writeTolerant(change);
    };
    await write(changes.filter((change) => !isLast(change)));
    await refusals.of(this.#kernel.add(adds.filter(isAddress)));
    await write(changes.filter(isLast));

    await this.#remove(removes, refusals);
    const hopeless = this.#settle(refusals);
    // What is wanted no more is not among what was tried again.
    this.#hopeless = new Set(refusals.refused.map(([what]) => what));
    this.#isFirst = false;
    return written + adds.length + removes.length - hopeless;
  }

  /** VIPs that are bound and not wanted stay while connections to them last. */
  async #adoptVips(isExcluded: (address: string) => boolean): Promise<void> {
    for (const { address } of await this.#kernel.addresses()) {
      if (isExcluded(address) || this.#plan.isNodeAddress(address)) continue;
      if (!this.#plan.wanted.has(address)) this.#plan.lingering.adopt(address);
    }
  }

  /**
   * Destinations drain; services, and the records of their marks, stay for those that do. What
   * leads packets to destinations goes before, and what guards them after they have begun.
   */
  async #remove(items: readonly Item[], refusals: Refusals): Promise<void> {
    const unwanted = items.flatMap((item): Item[] =>
      item.kind === 'entry' ? this.#plan.wanted.unwanted(item) : [item],
    );
    const [before, after] = [false, true].map((isAfter) =>
      unwanted.filter(
        (item) => item.kind !== 'destination' && precedesDestinations(item) === isAfter,
      ),
    );
    await refusals.of(this.#kernel.remove(before ?? []));
    await refusals.of(
      this.#draining.start(items.flatMap((item) => (item.kind === 'destination' ? [item] : []))),
    );
    const gone = (after ?? []).filter((item) => {
      const service = serviceOf(item);
      return service === undefined || !this.#draining.keep(service, item);
    });
    await refusals.of(this.#kernel.remove(gone));
  }

  /**
   * Warns once of what no kernel will ever take, such as an endpoint with a broadcast address.
   * Comparing everything again and again, as after a failure, would help neither it nor the rest.
   * @returns how much that was.
   * @throws IpvsRefusedError for what else was refused.
   */
  #settle({ refused }: Refusals): number {
    const isHopeless = ([, { errno }]: Refused) => errno === EINVAL;
    const others = refused.filter((each) => !isHopeless(each));
    if (others.length > 0) throw new IpvsRefusedError(others);
    const known = this.#hopeless;
    this.#hopeless = new Set([...known, ...refused.map(([what]) => what)]);
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
class Refusals {
  readonly refused: Refused[] = [];

  async of(work: Promise<void>): Promise<void> {
    try {
      await work;
    } catch (error) {
      if (!(error instanceof IpvsRefusedError)) throw error;
      this.refused.push(...error.refused);
    }
  }
}
