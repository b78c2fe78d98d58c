/** The kernel's side: what it holds, and writing changes in the order of their stages. */
import { isLinkLocal } from '../api/addresses.ts';
import type { IpFamily } from '../api/objects.ts';
import { IPVS_DEVICE } from '../api/vip-device.ts';
import {
  EAFNOSUPPORT,
  EEXIST,
  ENOENT,
  ESRCH,
  hasErrno,
  type NetlinkError,
  UnsupportedError,
} from '../netlink/core/error.ts';
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
import { destinationText, type Item, STAGES, serviceText, stageOf } from './items.ts';
import { kernelName, SET_NAMES, type SetName, setSpec, temporarySet } from './sets.ts';

/** A change that the kernel refused: what it was about, and why. */
export type FailedChange = readonly [what: string, error: NetlinkError];

/** Changes that the kernel refused; all others are done. */
export class IpvsApplyError extends AggregateError {
  override readonly name = 'IpvsRefusedError';
  declare readonly errors: NetlinkError[];
  readonly failures: readonly FailedChange[];

  constructor(refused: readonly FailedChange[]) {
    const [first] = refused;
    const others = refused.length > 1 ? `, and ${refused.length - 1} more` : '';
    super(
      refused.map(([, error]) => error),
      `the kernel refused ${first?.[0]}: ${first?.[1].message}${others}`,
      { cause: first?.[1] },
    );
    this.failures = refused;
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

const LINKS = { findLink, createDummy, changeAddresses, listBoundAddresses };

/** The ways into the kernel; tests have one in memory. */
export interface KernelInterfaces {
  readonly ipvs: Pick<Ipvs, 'services' | 'destinations' | 'apply' | 'close'>;
  readonly sets: Pick<
    Ipsets,
    'list' | 'visitEntries' | 'create' | 'destroy' | 'swap' | 'change' | 'close'
  >;
  readonly links: typeof LINKS;
}

/** The IPVS table, the ipsets and the dummy device, as far as one family goes. */
export class IpvsKernel {
  readonly family: IpFamily;
  readonly #ipvs: KernelInterfaces['ipvs'];
  readonly #sets: KernelInterfaces['sets'];
  readonly #links: KernelInterfaces['links'];
  /** The device that was there when everything was compared last. */
  #deviceIndex: number | undefined;

  constructor(family: IpFamily, { ipvs, sets, links }: KernelInterfaces) {
    this.family = family;
    this.#ipvs = ipvs;
    this.#sets = sets;
    this.#links = links;
  }

  /** @throws IpvsMissingError, UnsupportedError, NetlinkError */
  static async open(family: IpFamily): Promise<IpvsKernel> {
    const ipvs = await Ipvs.open();
    try {
      return new IpvsKernel(family, { ipvs, sets: await Ipsets.open(), links: LINKS });
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
   * Tries what this mode needs: a service with the scheduler, and a set of each type.
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
    // One may be left of an agent that was killed, or of kube-proxy, which tries the same.
    await this.#ipvs.apply([{ op: 'delete-service', key }]);
    const [refusal] = await this.#ipvs.apply([{ op: 'add-service', key, config }]);
    if (refusal?.error.errno === ENOENT) {
      throw new SchedulerMissingError(scheduler, { cause: refusal.error });
    }
    if (refusal?.error.errno === EAFNOSUPPORT) {
      throw new UnsupportedError('IPVS for IPv6', { cause: refusal.error });
    }
    if (refusal !== undefined) throw refusal.error;
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

  /** Each entry of a set, perhaps more than once; none of a set that does not exist. */
  async visitEntries(set: SetName, visit: (entry: IpsetEntry) => void): Promise<void> {
    try {
      await this.#sets.visitEntries(kernelName(set, this.family), visit);
    } catch (error) {
      if (!hasErrno(error, ENOENT)) throw error;
    }
  }

  /** VIPs of the family on the dummy device: whoever sets it up gives it an address of the link too. */
  async addresses(): Promise<BoundAddress[]> {
    const index = await this.#links.findLink(IPVS_DEVICE);
    if (index === undefined) return [];
    const bound = await this.#links.listBoundAddresses(index);
    return bound.filter(({ family, address }) => family === this.family && !isLinkLocal(address));
  }

  /**
   * What is not there of the device and the sets, with entries where they should have some, in
   * words (`ipset KUBE-CLUSTER-IP`); undefined: nothing is missing.
   * @param hasEntries whether a set should.
   */
  async findDrift(hasEntries: (set: SetName) => boolean): Promise<string | undefined> {
    // Another one than it was has, of this family, no addresses: whoever missed it first made it.
    const device = await this.#links.findLink(IPVS_DEVICE);
    if (device === undefined || device !== this.#deviceIndex) return `device ${IPVS_DEVICE}`;
    const headers = new Map((await this.#sets.list()).map((header) => [header.name, header]));
    for (const set of SET_NAMES) {
      const name = kernelName(set, this.family);
      const header = headers.get(name);
      if (header === undefined) return `ipset ${name}`;
      if (header.elements === 0 && hasEntries(set)) return `entries of ipset ${name}`;
    }
    return undefined;
  }

  /**
   * Creates the device and the sets that are missing. A set of another version, such as
   * kube-proxy's, which hold fewer elements, is exchanged for one with the entries that are wanted.
   * @returns how many were made.
   */
  async prepare(wanted: Pick<DesiredItems, 'countOf' | 'entriesOf'>): Promise<number> {
    let made = 0;
    this.#deviceIndex = await this.#links.findLink(IPVS_DEVICE);
    if (this.#deviceIndex === undefined) {
      this.#deviceIndex = await this.#links.createDummy(IPVS_DEVICE).catch((error: unknown) => {
        // The other family may be about to.
        if (!hasErrno(error, EEXIST)) throw error;
        return this.#links.findLink(IPVS_DEVICE);
      });
      made += 1;
    }
    const headers = new Map((await this.#sets.list()).map((header) => [header.name, header]));
    for (const set of SET_NAMES) {
      const spec = setSpec(set, this.family, wanted.countOf(set));
      const header = headers.get(spec.name);
      if (header !== undefined && isUsable(header, spec)) continue;
      made += 1;
      if (header === undefined) await this.#sets.create(spec);
      else await this.#swapSet(header, spec, wanted.entriesOf(set));
    }
    return made;
  }

  /** Puts another set, with its entries, in the place of one; rules never see it without. */
  async #swapSet(
    header: IpsetHeader,
    spec: IpsetSpec,
    entries: Iterable<IpsetEntry>,
  ): Promise<void> {
    if (header.type !== spec.type || (header.family ?? spec.family) !== spec.family) {
      // Not a set that rules for this one could refer to; what does refer to it must go first.
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
   * Brings items into being, stage by stage.
   * @throws IpvsRefusedError after all was tried.
   */
  async add(items: readonly Item[]): Promise<void> {
    await this.#writeAll(await groupByStage(items), 'add');
  }

  /**
   * Removes items, the other way round.
   * @throws IpvsRefusedError after all was tried.
   */
  async remove(items: readonly Item[]): Promise<void> {
    await this.#writeAll((await groupByStage(items)).reverse(), 'remove');
  }

  /**
   * Changes to the IPVS table alone. What is there already is made as wanted; what is to go and is
   * not there is no error.
   * @throws IpvsRefusedError after all was tried.
   */
  async change(changes: readonly IpvsChange[]): Promise<void> {
    const refusals = await this.#changeIpvs(changes);
    if (refusals.length > 0) throw new IpvsApplyError(refusals);
  }

  async #writeAll(stages: readonly Item[][], op: 'add' | 'remove'): Promise<void> {
    const refusals: FailedChange[] = [];
    for (const stage of stages) refusals.push(...(await this.#write(stage, op)));
    if (refusals.length > 0) throw new IpvsApplyError(refusals);
  }

  async #write(stage: readonly Item[], op: 'add' | 'remove'): Promise<FailedChange[]> {
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
    const refusals = await this.#changeIpvs(table);
    if (sets.length > 0) {
      for (const { change, error } of await this.#sets.change(sets)) {
        const { ip, port } = change.entry;
        const what = [ip, port].filter((each) => each !== undefined).join(' ');
        refusals.push([`${what} in set ${change.set}`, error]);
      }
    }
    if (addresses.length > 0) refusals.push(...(await this.#changeAddresses(op, addresses)));
    return refusals;
  }

  async #changeAddresses(
    op: 'add' | 'remove',
    addresses: readonly string[],
  ): Promise<FailedChange[]> {
    const index = await this.#links.findLink(IPVS_DEVICE);
    // Somebody deleted it; `loss` will tell, and the next comparison makes it anew.
    if (index === undefined && op === 'remove') return [];
    const link = index ?? (await this.#links.createDummy(IPVS_DEVICE));
    const refused = await this.#links.changeAddresses(
      link,
      op === 'add' ? addresses : [],
      op === 'remove' ? addresses : [],
    );
    return refused.map(({ address, error }) => [`${address} on ${IPVS_DEVICE}`, error]);
  }

  async #changeIpvs(changes: readonly IpvsChange[]): Promise<FailedChange[]> {
    if (changes.length === 0) return [];
    const refusals: FailedChange[] = [];
    const edits: IpvsChange[] = [];
    for (const { change, error } of await this.#ipvs.apply(changes)) {
      const { errno } = error;
      if (change.op === 'add-service' && errno === EEXIST) {
        edits.push({ ...change, op: 'edit-service' });
      } else if (change.op === 'add-destination' && errno === EEXIST) {
        edits.push({ ...change, op: 'edit-destination' });
      } else if (!isTeardown(change) || (errno !== ENOENT && errno !== ESRCH)) {
        refusals.push([changeText(change), error]);
      }
    }
    if (edits.length === 0) return refusals;
    for (const { change, error } of await this.#ipvs.apply(edits)) {
      refusals.push([changeText(change), error]);
    }
    return refusals;
  }
}

/** Whether a set can hold what is wanted; one that is bigger than need be is left as it is. */
function isUsable(header: IpsetHeader, spec: IpsetSpec): boolean {
  return (
    header.type === spec.type &&
    (header.family ?? spec.family) === spec.family &&
    header.skbinfo === spec.skbinfo &&
    header.comments === (spec.comments ?? false) &&
    (header.maxElements ?? spec.maxElements) >= spec.maxElements
  );
}

/** `add-destination TCP 10.96.0.1:80 > 10.244.0.9:8080` */
function changeText(change: IpvsChange): string {
  const { op, key } = change;
  const what =
    'destination' in change ? destinationText(key, change.destination) : serviceText(key);
  return `${op} ${what}`;
}

/** Whether what it concerns is to end, so that it may as well be gone. */
function isTeardown(change: IpvsChange): boolean {
  if (change.op === 'edit-destination') return change.destination.weight === 0;
  return change.op === 'delete-service' || change.op === 'delete-destination';
}

function tableChange(
  item: Extract<Item, { kind: 'service' | 'destination' }>,
  op: 'add' | 'remove',
): IpvsChange {
  const key = item.service;
  if (item.kind === 'service') {
    return op === 'add'
      ? { op: 'add-service', key, config: item.config }
      : { op: 'delete-service', key };
  }
  return op === 'add'
    ? { op: 'add-destination', key, destination: { ...item.destination, weight: 1 } }
    : { op: 'delete-destination', key, destination: item.destination };
}

async function groupByStage(items: readonly Item[]): Promise<Item[][]> {
  const stages = Array.from({ length: STAGES }, (): Item[] => []);
  const slice = new TimeSlice();
  for (const item of items) {
    stages[stageOf(item)]?.push(item);
    if (slice.isOver()) await slice.yield();
  }
  return stages;
}
