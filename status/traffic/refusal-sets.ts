/**
 * The sets of VIPs and node ports that the rules of `RefusalLog` read. They follow the Routes, also after a transaction
 * that failed.
 */
import { ADDRESS_BITS, familyOf } from '../../api/addresses.ts';
import type { IpFamily, Protocol } from '../../api/objects.ts';
import { addressBytes } from '../../netlink/core/address.ts';
import { protocolNumbers } from '../../netlink/core/protocol.ts';
import type { OwnedSet, OwnedTables } from '../../netlink/nftables/owned-table.ts';
import { BackgroundSlice } from '../../sync/precedence.ts';
import { mayRefuse } from './refusal.ts';
import type { ServiceIndex } from './service-index.ts';

/**
 * VIPs with a Route that may refuse packets, and node ports of such Routes. `listed-vips`, only in mode ipvs: other VIPs,
 * whose packets to all ports but `served-ports` are refused. VIPs with port ranges are left out.
 */
const SETS = ['vips', 'node-ports', 'served-ports', 'listed-vips'] as const;
type SetName = (typeof SETS)[number];
/** Bytes of a protocol or port in a concatenated key. */
const FIELD = 4;

type Keys = Readonly<Record<SetName, ReadonlySet<string>>>;

/** What the proxy mode does with packets before the rules of the log. */
export interface RefusalMode {
  /** See `RefusalRules.mayBeTranslated`. */
  readonly mayBeTranslated: boolean;
}

/** Bytes of an address. */
export function widthOf(family: IpFamily): number {
  return ADDRESS_BITS[family] / 8;
}

/** The sets of the tables of all families. */
export class RefusalSets {
  readonly #tables: Pick<OwnedTables, 'change' | 'replace'>;
  readonly #index: ServiceIndex;
  readonly #mode: RefusalMode;
  /** The keys that the kernel has, by set; a set whose keys are unknown after an error is missing. */
  readonly #written = new Map<IpFamily, Map<SetName, ReadonlySet<string>>>();
  /** `ServiceIndex.changes` when all sets were last read from the index; undefined before the first refresh. */
  #changes: number | undefined;
  #refreshing: Promise<void> | undefined;
  #isClosed = false;

  constructor(
    tables: Pick<OwnedTables, 'change' | 'replace'>,
    index: ServiceIndex,
    mode: RefusalMode,
  ) {
    this.#tables = tables;
    this.#index = index;
    this.#mode = mode;
  }

  /**
   * Adds a family.
   * @param create creates the sets with their keys.
   * @throws whatever `create` throws.
   */
  async create(
    family: IpFamily,
    create: (sets: readonly OwnedSet[]) => Promise<void>,
  ): Promise<void> {
    const keys = await keysOf(this.#index, family, this.#mode);
    const width = widthOf(family);
    const lengths: Readonly<Record<SetName, number>> = {
      vips: width,
      'node-ports': 2 * FIELD,
      'served-ports': width + 2 * FIELD,
      'listed-vips': width,
    };
    await create(
      SETS.map((name) => ({ name, keyLength: lengths[name], keys: keyBytes(keys[name]) })),
    );
    this.#written.set(family, new Map(SETS.map((name) => [name, keys[name]])));
  }

  /**
   * Updates the sets if Routes have changed or the last refresh failed. Does nothing while another refresh runs: the next
   * one sees what has changed meanwhile.
   * @throws NftRefusedError; NetlinkError. The next refresh writes all keys of the set again.
   */
  async refresh(): Promise<void> {
    if (this.#isClosed || this.#refreshing !== undefined) return;
    this.#refreshing = this.#refresh();
    try {
      await this.#refreshing;
    } catch (error) {
      // The tables are being closed.
      if (!this.#isClosed) throw error;
    } finally {
      this.#refreshing = undefined;
    }
  }

  /** Later refreshes do nothing. Resolves when the current one has ended, which fails if its tables are closed. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#refreshing?.catch(() => {});
  }

  async #refresh(): Promise<void> {
    const { changes } = this.#index;
    if (this.#changes === changes) return;
    for (const [family, written] of this.#written) {
      const keys = await keysOf(this.#index, family, this.#mode);
      for (const set of SETS) {
        if (this.#isClosed) return;
        await this.#write(family, set, written, keys[set]);
      }
    }
    this.#changes = changes;
  }

  async #write(
    family: IpFamily,
    set: SetName,
    written: Map<SetName, ReadonlySet<string>>,
    after: ReadonlySet<string>,
  ): Promise<void> {
    const before = written.get(set);
    written.delete(set);
    if (before === undefined) await this.#tables.replace(family, set, keyBytes(after));
    else {
      const added = [...after].filter((key) => !before.has(key));
      const deleted = [...before].filter((key) => !after.has(key));
      await this.#tables.change(family, set, keyBytes(added), keyBytes(deleted));
    }
    written.set(set, after);
  }
}

/** The keys of the sets, in hexadecimal. */
async function keysOf(index: ServiceIndex, family: IpFamily, mode: RefusalMode): Promise<Keys> {
  const keys = {
    vips: new Set<string>(),
    'node-ports': new Set<string>(),
    'served-ports': new Set<string>(),
    'listed-vips': new Set<string>(),
  };
  const slice = new BackgroundSlice();
  for (const vip of [...index.vips]) {
    if (slice.isOver()) await slice.yield();
    if (familyOf(vip) !== family) continue;
    const routes = index.routesOf(vip);
    const address = addressBytes(vip).toString('hex');
    if (routes.some((route) => mayRefuse(route, mode))) keys.vips.add(address);
    else if (routes.length > 0 && routes.every(({ match }) => match.kind === 'port')) {
      keys['listed-vips'].add(address);
      for (const { match } of routes) {
        if (match.kind !== 'port') continue;
        keys['served-ports'].add(`${address}${portKey(match)}`);
      }
    }
  }
  for (const route of [...index.nodePorts(family)]) {
    if (slice.isOver()) await slice.yield();
    const { match, nodePort } = route;
    if (match.kind !== 'port' || !mayRefuse(route, mode)) continue;
    keys['node-ports'].add(portKey({ protocol: match.protocol, port: nodePort }));
  }
  return keys;
}

function portKey({ protocol, port }: { readonly protocol: Protocol; readonly port: number }) {
  const key = Buffer.alloc(2 * FIELD);
  key.writeUInt8(protocolNumbers[protocol]);
  key.writeUInt16BE(port, FIELD);
  return key.toString('hex');
}

function keyBytes(keys: Iterable<string>): Buffer[] {
  return [...keys].map((hex) => Buffer.from(hex, 'hex'));
}
