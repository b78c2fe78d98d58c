/** Kernel state of the ipvs mode in one family: reads it, and writes changes stage by stage. */
import { isLinkLocal } from '../api/addresses.ts';
import type { IpFamily } from '../api/objects.ts';
import { IPVS_DEVICE } from '../api/vip-device.ts';
import { type ConntrackEntry, dumpConntrack } from '../netlink/conntrack/conntrack.ts';
import {
  EAFNOSUPPORT,
  EEXIST,
  ENOENT,
  ESRCH,
  hasErrno,
  type NetlinkError,
  UnsupportedError,
} from '../netlink/core/error.ts';
import { protocolOf } from '../netlink/core/protocol.ts';
import {
  type IpsetChange,
  type IpsetEntry,
  type IpsetHeader,
  type IpsetSpec,
  Ipsets,
} from '../netlink/ipset/ipset.ts';
import {
  Ipvs,
  type IpvsChange,
  type IpvsDestinationState,
  type IpvsService,
  type IpvsServiceKey,
} from '../netlink/ipvs/ipvs.ts';
import {
  type BoundAddress,
  changeAddresses,
  createDummy,
  findLink,
  listBoundAddresses,
} from '../netlink/route/links.ts';
import { TimeSlice } from '../sync/time-slice.ts';
import type { DesiredItems } from './desired-items.ts';
import { type IpvsItem, STAGES, stageOf } from './items.ts';
import { isUsable, kernelName, SET_NAMES, type SetName, setSpec, temporarySet } from './sets.ts';
import { changeText, isTeardown, tableChange } from './table-changes.ts';

/** A change that the kernel rejected: its description, and the error. */
export type FailedChange = readonly [what: string, error: NetlinkError];

/** Changes that the kernel rejected; all other changes were applied. */
export class IpvsApplyError extends AggregateError {
  override readonly name = 'IpvsApplyError';
  declare readonly errors: NetlinkError[];
  readonly failures: readonly FailedChange[];

  constructor(failures: readonly FailedChange[]) {
    const [first] = failures;
    const others = failures.length > 1 ? `, and ${failures.length - 1} more` : '';
    super(
      failures.map(([, error]) => error),
      `the kernel rejected ${first?.[0]}: ${first?.[1].message}${others}`,
      { cause: first?.[1] },
    );
    this.failures = failures;
  }
}

/** The kernel has no IPVS scheduler of this name. */
export class SchedulerMissingError extends Error {
  override readonly name = 'SchedulerMissingError';
  readonly scheduler: string;

  constructor(scheduler: string, options: ErrorOptions) {
    super(`the kernel has no IPVS scheduler ${scheduler}`, options);
    this.scheduler = scheduler;
  }
}

/**
 * The VIPs for which conntrack has an entry of a protocol that IPVS schedules. `net.ipv4.vs.conntrack` keeps the
 * connections of IPVS there. One dump, whatever the number of VIPs; the kernel can select the entries of one VIP.
 * @param dump for tests.
 */
export async function connectedVips(
  family: IpFamily,
  vips: ReadonlySet<string>,
  dump: typeof dumpConntrack = dumpConntrack,
): Promise<ReadonlySet<string>> {
  const found = new Set<string>();
  const keep = ({ protocol, origDst }: ConntrackEntry) => {
    if (protocolOf(protocol) !== undefined && vips.has(origDst)) found.add(origDst);
    return false;
  };
  const [only, ...others] = vips;
  const origDst = others.length === 0 ? only : undefined;
  await dump({ family, keep, ...(origDst !== undefined && { origDst }) });
  return found;
}

const LINKS = { findLink, createDummy, changeAddresses, listBoundAddresses };

/** Access to the kernel; tests use an in-memory fake. */
export interface KernelInterfaces {
  readonly ipvs: Pick<Ipvs, 'services' | 'destinations' | 'apply' | 'close'>;
  readonly sets: Pick<
    Ipsets,
    'list' | 'visitEntries' | 'create' | 'destroy' | 'swap' | 'change' | 'close'
  >;
  readonly links: typeof LINKS;
  readonly connectedVips: typeof connectedVips;
}

/** The IPVS table, the ipsets and the dummy device, in one family. */
export class IpvsKernel {
  readonly family: IpFamily;
  readonly #ipvs: KernelInterfaces['ipvs'];
  readonly #sets: KernelInterfaces['sets'];
  readonly #links: KernelInterfaces['links'];
  readonly #connectedVips: KernelInterfaces['connectedVips'];
  /** Interface index of the dummy device at the last full sync. */
  #deviceIndex: number | undefined;

  constructor(family: IpFamily, { ipvs, sets, links, connectedVips }: KernelInterfaces) {
    this.family = family;
    this.#ipvs = ipvs;
    this.#sets = sets;
    this.#links = links;
    this.#connectedVips = connectedVips;
  }

  /** @throws IpvsMissingError, UnsupportedError, NetlinkError */
  static async open(family: IpFamily): Promise<IpvsKernel> {
    const ipvs = await Ipvs.open();
    try {
      const sets = await Ipsets.open();
      return new IpvsKernel(family, { ipvs, sets, links: LINKS, connectedVips });
    } catch (error) {
      await ipvs.close();
      throw error;
    }
  }

  async close(): Promise<void> {
    await this.#ipvs.close();
    await this.#sets.close();
  }

  /**
   * Checks the kernel features that this mode requires, by creating and deleting a service with the
   * scheduler and a set of each type.
   * @throws SchedulerMissingError, UnsupportedError, NetlinkError
   */
  async probe(scheduler: string): Promise<void> {
    const address = this.family === 'IPv4' ? '198.51.100.0' : '2001:db8::';
    const key = {
      kind: 'address',
      family: this.family,
      protocol: 'TCP',
      address,
      port: 20_000,
    } as const;
    const config = { scheduler, schedulerFlags: 0, persistenceSeconds: 0 };
    // A killed agent, or kube-proxy with the same probe, may have left this service.
    await this.#ipvs.apply([{ op: 'delete-service', key }]);
    const [failure] = await this.#ipvs.apply([{ op: 'add-service', key, config }]);
    if (failure?.error.errno === ENOENT) {
      throw new SchedulerMissingError(scheduler, { cause: failure.error });
    }
    if (failure?.error.errno === EAFNOSUPPORT) {
      throw new UnsupportedError('IPVS for IPv6', { cause: failure.error });
    }
    if (failure !== undefined) throw failure.error;
    await this.#ipvs.apply([{ op: 'delete-service', key }]);

    const name = temporarySet(this.family);
    await this.#destroyIfThere(name);
    for (const set of SET_NAMES) {
      await this.#sets.create({ ...setSpec(set, this.family), name });
      await this.#sets.destroy(name);
    }
  }

  async #destroyIfThere(name: string): Promise<void> {
    await this.#sets.destroy(name).catch((error: unknown) => {
      if (!hasErrno(error, ENOENT)) throw error;
    });
  }

  services(): Promise<IpvsService[]> {
    return this.#ipvs.services(this.family);
  }

  destinations(key: IpvsServiceKey): Promise<IpvsDestinationState[]> {
    return this.#ipvs.destinations(key);
  }

  /** The VIPs to which conntrack has connections. @throws (rejection) NetlinkError */
  connectedVips(vips: ReadonlySet<string>): Promise<ReadonlySet<string>> {
    return this.#connectedVips(this.family, vips);
  }

  /**
   * Visits each entry of a set, possibly more than once. A set that does not exist has no entries.
   */
  async visitEntries(set: SetName, visit: (entry: IpsetEntry) => void): Promise<void> {
    try {
      await this.#sets.visitEntries(kernelName(set, this.family), visit);
    } catch (error) {
      if (!hasErrno(error, ENOENT)) throw error;
    }
  }

  /** All ipsets of the network namespace, also of other programs, by name. */
  async setHeaders(): Promise<Map<string, IpsetHeader>> {
    return new Map((await this.#sets.list()).map((header) => [header.name, header]));
  }

  async hasDevice(): Promise<boolean> {
    return (await this.#links.findLink(IPVS_DEVICE)) !== undefined;
  }

  /**
   * VIPs of this family on the dummy device. Skips the link-local address that the device gets when
   * it is set up.
   */
  async addresses(): Promise<BoundAddress[]> {
    const index = await this.#links.findLink(IPVS_DEVICE);
    if (index === undefined) return [];
    const bound = await this.#links.listBoundAddresses(index);
    return bound.filter(({ family, address }) => family === this.family && !isLinkLocal(address));
  }

  /**
   * Checks whether the device and the sets exist, and whether sets have entries.
   * @param hasEntries whether a set should have entries.
   * @returns the missing object, for the log (`ipset KUBE-CLUSTER-IP`); undefined if nothing is
   * missing.
   */
  async findDrift(hasEntries: (set: SetName) => boolean): Promise<string | undefined> {
    // If the interface was recreated (its index changed), this family's VIPs are gone. The other
    // family may have recreated it first.
    const device = await this.#links.findLink(IPVS_DEVICE);
    if (device === undefined || device !== this.#deviceIndex) return `device ${IPVS_DEVICE}`;
    const headers = await this.setHeaders();
    for (const set of SET_NAMES) {
      const name = kernelName(set, this.family);
      const header = headers.get(name);
      if (header === undefined) return `ipset ${name}`;
      if (header.elements === 0 && hasEntries(set)) return `entries of ipset ${name}`;
    }
    return undefined;
  }

  /**
   * Creates the dummy device and missing sets, and replaces sets that have another definition, such
   * as a smaller set of kube-proxy.
   * @returns the number of created objects.
   */
  async prepare(desired: Pick<DesiredItems, 'countOf' | 'entriesOf'>): Promise<number> {
    let created = 0;
    this.#deviceIndex = await this.#links.findLink(IPVS_DEVICE);
    if (this.#deviceIndex === undefined) {
      this.#deviceIndex = await this.#links.createDummy(IPVS_DEVICE).catch((error: unknown) => {
        // The sync of the other family may have created the device at the same time.
        if (!hasErrno(error, EEXIST)) throw error;
        return this.#links.findLink(IPVS_DEVICE);
      });
      created += 1;
    }
    const headers = await this.setHeaders();
    for (const set of SET_NAMES) {
      const spec = setSpec(set, this.family, desired.countOf(set));
      const header = headers.get(spec.name);
      if (header !== undefined && isUsable(header, spec)) continue;
      created += 1;
      if (header === undefined) await this.#sets.create(spec);
      else await this.#swapSet(header, spec, desired.entriesOf(set));
    }
    return created;
  }

  /**
   * Replaces a set by a set with the desired entries (`ipset swap`), so that rules never match
   * against an empty set. A set of another type or family is deleted and created empty.
   */
  async #swapSet(
    header: IpsetHeader,
    spec: IpsetSpec,
    entries: Iterable<IpsetEntry>,
  ): Promise<void> {
    if (header.type !== spec.type || (header.family ?? spec.family) !== spec.family) {
      // `swap` needs equal types. Rules for the new type cannot reference the old set. If other
      // rules reference the old set, `destroy` fails until these rules are removed.
      await this.#sets.destroy(spec.name);
      await this.#sets.create(spec);
      return;
    }
    const name = temporarySet(this.family);
    await this.#destroyIfThere(name);
    await this.#sets.create({ ...spec, name });
    const changes = [...entries].map((entry) => ({ op: 'add' as const, set: name, entry }));
    for (const { error } of await this.#sets.change(changes)) throw error;
    await this.#sets.swap(name, spec.name);
    await this.#sets.destroy(name);
  }

  /**
   * Adds items, stage by stage.
   * @throws IpvsApplyError after trying all items.
   */
  async add(items: readonly IpvsItem[]): Promise<void> {
    await this.#writeAll(await groupByStage(items), 'add');
  }

  /**
   * Removes items, stage by stage in reverse order.
   * @throws IpvsApplyError after trying all items.
   */
  async remove(items: readonly IpvsItem[]): Promise<void> {
    await this.#writeAll((await groupByStage(items)).reverse(), 'remove');
  }

  /**
   * Changes the IPVS table only. An existing object is updated. Removing a missing object is not an
   * error.
   * @throws IpvsApplyError after trying all changes.
   */
  async change(changes: readonly IpvsChange[]): Promise<void> {
    const failures = await this.#changeIpvs(changes);
    if (failures.length > 0) throw new IpvsApplyError(failures);
  }

  async #writeAll(stages: readonly IpvsItem[][], op: 'add' | 'remove'): Promise<void> {
    const failures: FailedChange[] = [];
    for (const stage of stages) failures.push(...(await this.#write(stage, op)));
    if (failures.length > 0) throw new IpvsApplyError(failures);
  }

  async #write(stage: readonly IpvsItem[], op: 'add' | 'remove'): Promise<FailedChange[]> {
    const table: IpvsChange[] = [];
    const sets: IpsetChange[] = [];
    const addresses: string[] = [];
    const slice = new TimeSlice();
    for (const item of stage) {
      if (slice.isOver()) await slice.yield();
      if (item.kind === 'address') addresses.push(item.address);
      else if (item.kind === 'entry') {
        const set = kernelName(item.set, this.family);
        sets.push({ op: op === 'add' ? 'add' : 'delete', set, entry: item.entry });
      } else table.push(tableChange(item, op));
    }
    const failures = await this.#changeIpvs(table);
    if (sets.length > 0) {
      for (const { change, error } of await this.#sets.change(sets)) {
        const { ip, port } = change.entry;
        const what = [ip, port].filter((each) => each !== undefined).join(' ');
        failures.push([`entry ${what} of ipset ${change.set}`, error]);
      }
    }
    if (addresses.length > 0) failures.push(...(await this.#changeAddresses(op, addresses)));
    return failures;
  }

  async #changeAddresses(
    op: 'add' | 'remove',
    addresses: readonly string[],
  ): Promise<FailedChange[]> {
    const index = await this.#links.findLink(IPVS_DEVICE);
    // Another program has deleted the device. `findDrift` reports the missing device, and the next
    // full sync creates it.
    if (index === undefined && op === 'remove') return [];
    const link = index ?? (await this.#links.createDummy(IPVS_DEVICE));
    const failures = await this.#links.changeAddresses(
      link,
      op === 'add' ? addresses : [],
      op === 'remove' ? addresses : [],
    );
    return failures.map(({ address, error }) => [`address ${address} on ${IPVS_DEVICE}`, error]);
  }

  async #changeIpvs(changes: readonly IpvsChange[]): Promise<FailedChange[]> {
    if (changes.length === 0) return [];
    const failures: FailedChange[] = [];
    const edits: IpvsChange[] = [];
    for (const { change, error } of await this.#ipvs.apply(changes)) {
      const { errno } = error;
      if (change.op === 'add-service' && errno === EEXIST) {
        edits.push({ ...change, op: 'edit-service' });
      } else if (change.op === 'add-destination' && errno === EEXIST) {
        edits.push({ ...change, op: 'edit-destination' });
      } else if (!isTeardown(change) || (errno !== ENOENT && errno !== ESRCH)) {
        failures.push([changeText(change), error]);
      }
    }
    if (edits.length === 0) return failures;
    for (const { change, error } of await this.#ipvs.apply(edits)) {
      failures.push([changeText(change), error]);
    }
    return failures;
  }
}

async function groupByStage(items: readonly IpvsItem[]): Promise<IpvsItem[][]> {
  const stages = Array.from({ length: STAGES }, (): IpvsItem[] => []);
  const slice = new TimeSlice();
  for (const item of items) {
    stages[stageOf(item)]?.push(item);
    if (slice.isOver()) await slice.yield();
  }
  return stages;
}
