/**
 * Keeps the interfaces of the flowtable up to date, in transactions of their own: a new pod changes one interface. See
 * `flowtable.ts`.
 */
import { compareText } from '../api/collections.ts';
import { ENOENT, hasErrno } from '../netlink/core/error.ts';
import { type NftElement, type NftOperation, NftRefusedError } from '../netlink/nftables/tables.ts';
import type { Device } from '../netlink/route/devices.ts';
import type { NftReader, RuleTable } from '../nft/table.ts';
import { Loop } from '../sync/loop.ts';
import type { Timers } from '../sync/timers.ts';
import { deleteFlowtable, FLOWTABLE, FLOWTABLE_HAIRPINS, FLOWTABLE_SETS } from './flowtable.ts';

export interface FlowtableDevicesOptions {
  readonly tables: readonly RuleTable[];
  readonly listDevices: () => Promise<readonly Device[]>;
  /** Logs a warning: a constant message, and fields for everything variable. */
  readonly onWarning: (message: string, fields: Readonly<Record<string, unknown>>) => void;
  /** The flowtable was deleted for this reason. A full sync must create it again, and then call `request`. */
  readonly onDeleted: (reason: string) => void;
  readonly timers: Timers;
}

/** ARPHRD_ETHER of linux/if_arp.h. Most tunnels have another type. */
const ETHERNET = 1;
/**
 * Kinds of interfaces that carry packets of pods. Hardware has no kind. Tunnels such as VXLAN are not in the list:
 * the outer header takes a part of the MTU. VLANs are not tested.
 */
const USABLE_KINDS: ReadonlySet<string | undefined> = new Set([
  undefined,
  'veth',
  'bridge',
  'bond',
]);
/** Bytes of an interface name in nf_tables (IFNAMSIZ). */
const NAME_BYTES = 16;
/** Milliseconds. A new pod causes several notifications. */
const COALESCE = 50;
const BACKOFF = { first: 100, max: 10_000 };

/**
 * Names of the interfaces that may be in the flowtable, sorted. A port of a bridge is not: its packets would bypass the
 * bridge, and they pass the ingress hook of the bridge too.
 */
export function usableDevices(devices: readonly Device[]): string[] {
  return devices
    .filter(isUsable)
    .map(({ name }) => name)
    .sort(compareText);
}

function isUsable({ type, kind, isEnslaved }: Device): boolean {
  return type === ETHERNET && !isEnslaved && USABLE_KINDS.has(kind);
}

/** Result of an update of the flowtables of all families. */
export interface FlowtableInterfaces {
  /** Interfaces that all flowtables have. */
  readonly attached: readonly Device[];
  /** Names of interfaces that the kernel refused. */
  readonly refused: readonly string[];
}

/** Interfaces in the flowtables of all families. */
export class FlowtableDevices {
  readonly #options: FlowtableDevicesOptions;
  readonly #loop: Loop;
  /** By index of the interface. */
  #mtus: ReadonlyMap<number, number> = new Map();
  /** Interfaces that the kernel refused, so that each is logged once. */
  #refused: ReadonlySet<string> = new Set();
  #interfaces: FlowtableInterfaces | undefined;

  constructor(options: FlowtableDevicesOptions) {
    this.#options = options;
    this.#loop = new Loop({
      run: async () => {
        try {
          await this.#sync();
          return 0;
        } catch (err) {
          options.onWarning('cannot update the interfaces of the flowtable', { err });
          throw err;
        }
      },
      minPeriod: 0,
      delay: COALESCE,
      backoff: BACKOFF,
      timers: options.timers,
    });
  }

  /** Requests an update: interfaces may have changed, or a full sync created the flowtable. */
  request(): void {
    this.#loop.request();
  }

  async stop(): Promise<void> {
    await this.#loop.stop();
  }

  /** Result of the last update; undefined while there is no flowtable. */
  get interfaces(): FlowtableInterfaces | undefined {
    return this.#interfaces;
  }

  /** Names of the interfaces that may be in the flowtable now. @throws NetlinkError */
  async listUsable(): Promise<ReadonlySet<string>> {
    return new Set(usableDevices(await this.#options.listDevices()));
  }

  async #sync(): Promise<void> {
    const { listDevices, tables, onDeleted } = this.#options;
    const devices = await listDevices();
    const mtus = new Map(devices.filter(isUsable).map(({ index, mtu }) => [index, mtu]));
    const lowered = devices.find(({ index }) => {
      const [before, now] = [this.#mtus.get(index), mtus.get(index)];
      return before !== undefined && now !== undefined && now < before;
    });
    if (lowered !== undefined) {
      // The kernel keeps the MTU that a flow began with, and would send packets that are too large.
      await Promise.all(tables.map(deleteFlowtable));
      this.#mtus = mtus;
      this.#interfaces = undefined;
      onDeleted(`MTU of ${lowered.name} lowered`);
      return;
    }
    this.#mtus = mtus;
    const names = usableDevices(devices);
    const refused = new Set<string>();
    let isComplete = true;
    for (const table of tables) {
      const refusedHere = await syncTable(table, names);
      for (const name of refusedHere ?? []) refused.add(name);
      isComplete &&= refusedHere !== undefined;
    }
    const attached = devices.filter((each) => isUsable(each) && !refused.has(each.name));
    this.#interfaces = isComplete ? { attached, refused: [...refused] } : undefined;
    for (const name of refused) {
      if (this.#refused.has(name)) continue;
      this.#options.onWarning('the kernel refuses an interface in the flowtable', {
        interface: name,
        effect: 'its packets take all rules, as without --nftables-flowtable',
      });
    }
    this.#refused = refused;
  }
}

/** @returns the interfaces that the kernel refused although they exist; undefined if there is no flowtable. */
async function syncTable(
  table: RuleTable,
  wanted: readonly string[],
): Promise<string[] | undefined> {
  const flowtable = (await table.flowtables())?.find(({ name }) => name === FLOWTABLE);
  // The next full sync creates it.
  if (flowtable === undefined) return undefined;
  const listed = new Map<string, ReadonlySet<string>>();
  for (const set of FLOWTABLE_SETS) listed.set(set, await readNames(table, set));
  const withdraw = (isStale: (name: string) => boolean) =>
    table.transact(
      [...listed].map(([set, names]) => elementChange('delete', set, [...names].filter(isStale))),
    );
  const attached = new Set(flowtable.devices);
  const desired = new Set(wanted);
  const isComplete = (name: string) => [attached, ...listed.values()].every((all) => all.has(name));
  const added = wanted.filter((name) => !isComplete(name));
  await withdraw((name) => !desired.has(name));
  // An interface that is gone cannot be removed, and the kernel has removed it.
  await oneByOneIfRefused(
    flowtable.devices.filter((name) => !desired.has(name)),
    (names) => table.transact([{ action: 'detach', flowtable: FLOWTABLE, devices: names }]),
  );
  const refused = await oneByOneIfRefused(added, (names) =>
    table.transact([
      { action: 'attach', flowtable: FLOWTABLE, devices: names },
      ...FLOWTABLE_SETS.map((set) => elementChange('add', set, names)),
    ]),
  );
  await withdraw((name) => refused.has(name));
  return [...refused].filter(([, errno]) => errno !== ENOENT).map(([name]) => name);
}

/**
 * Changes all interfaces in one transaction. If the kernel refuses, changes each in a transaction of its own.
 * @returns the refused interfaces with the errors; ENOENT: the interface is gone.
 */
async function oneByOneIfRefused(
  names: readonly string[],
  change: (names: readonly string[]) => Promise<void>,
): Promise<Map<string, number>> {
  const refusal = async (some: readonly string[]): Promise<number | undefined> => {
    try {
      await change(some);
      return undefined;
    } catch (error) {
      if (error instanceof NftRefusedError) return error.errno;
      throw error;
    }
  };
  const refused = new Map<string, number>();
  if (names.length === 0 || (await refusal(names)) === undefined) return refused;
  for (const name of names) {
    const errno = await refusal([name]);
    if (errno !== undefined) refused.set(name, errno);
  }
  return refused;
}

/** The interfaces in a set of the flowtable. @throws NetlinkError */
export async function readNames(
  table: Pick<NftReader, 'visitElements'>,
  set: string,
): Promise<Set<string>> {
  let names = new Set<string>();
  try {
    await table.visitElements(
      set,
      // A key of `FLOWTABLE_HAIRPINS` has the name twice.
      ({ key }) => names.add(key.toString('utf8', 0, NAME_BYTES).replace(/\0.*$/s, '')),
      () => (names = new Set()),
    );
  } catch (error) {
    // Another program has deleted the table since.
    if (!hasErrno(error, ENOENT)) throw error;
  }
  return names;
}

function elementChange(
  action: 'add' | 'delete',
  set: string,
  names: readonly string[],
): NftOperation {
  const elements = names.map((name): NftElement => {
    const key = Buffer.alloc(NAME_BYTES);
    key.write(name);
    return { key: set === FLOWTABLE_HAIRPINS ? Buffer.concat([key, key]) : key };
  });
  return { action, set, elements };
}
