/**
 * The sets of VIPs and node ports that the rules of `RefusalLog` read. They follow the Routes, also after a transaction
 * that failed.
 */
import { ADDRESS_BITS } from '../../api/addresses.ts';
import { asError } from '../../api/errors.ts';
import type { IpFamily } from '../../api/objects.ts';
import type { OwnedSet, OwnedTables } from '../../netlink/nftables/owned-table.ts';
import {
  FIELD,
  REFUSAL_SETS,
  RefusalKeys,
  type RefusalMode,
  type RefusalSet,
} from './refusal-keys.ts';
import type { ServiceIndex } from './service-index.ts';

/** The sets of one family. */
interface FamilySets {
  readonly keys: RefusalKeys;
  /** Sets that may lack changes which `keys` has, after an error. */
  stale: Set<RefusalSet>;
}

/** Bytes of an address. */
export function widthOf(family: IpFamily): number {
  return ADDRESS_BITS[family] / 8;
}

/** Errors of one or both IP families. */
export class FamilyErrors extends AggregateError {
  override readonly name = 'FamilyErrors';

  constructor(errors: ReadonlyMap<IpFamily, unknown>) {
    const byText = Map.groupBy(errors, ([, error]) => asError(error).message);
    const texts = [...byText].map(
      ([text, same]) => `${same.map(([family]) => family).join(', ')}: ${text}`,
    );
    super([...errors.values()], texts.join('; '));
  }
}

/** The sets of the tables of all families. */
export class RefusalSets {
  readonly #tables: Pick<OwnedTables, 'change' | 'replace'>;
  readonly #index: ServiceIndex;
  readonly #mode: RefusalMode;
  readonly #families = new Map<IpFamily, FamilySets>();
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
    const keys = new RefusalKeys(family, this.#index, this.#mode);
    const width = widthOf(family);
    const lengths: Readonly<Record<RefusalSet, number>> = {
      vips: width,
      'node-ports': 2 * FIELD,
      'served-ports': width + 2 * FIELD,
      'listed-vips': width,
    };
    try {
      await keys.takeChanges();
      await create(
        REFUSAL_SETS.map((name) => ({
          name,
          keyLength: lengths[name],
          keys: keyBytes(keys.all(name)),
        })),
      );
    } catch (error) {
      keys.close();
      throw error;
    }
    this.#families.set(family, { keys, stale: new Set() });
  }

  /**
   * Writes the keys of changed Routes, and of the sets that the last refresh failed to write. Does nothing while another
   * refresh runs: the next one sees what has changed meanwhile.
   * @throws FamilyErrors; the other family goes on. The next refresh writes all keys of the set again.
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
    for (const { keys } of this.#families.values()) keys.close();
    await this.#refreshing?.catch(() => {});
  }

  async #refresh(): Promise<void> {
    const errors = new Map<IpFamily, unknown>();
    for (const [family, sets] of this.#families) {
      try {
        await this.#refreshFamily(family, sets);
      } catch (error) {
        errors.set(family, error);
      }
    }
    if (errors.size > 0) throw new FamilyErrors(errors);
  }

  async #refreshFamily(family: IpFamily, sets: FamilySets): Promise<void> {
    const { keys, stale } = sets;
    const changes = await keys.takeChanges();
    // An error leaves the sets that are not written yet.
    const unwritten = new Set([...stale, ...changes.keys()]);
    sets.stale = unwritten;
    for (const set of unwritten) {
      if (this.#isClosed) return;
      const change = stale.has(set) ? undefined : changes.get(set);
      if (change === undefined) await this.#tables.replace(family, set, keyBytes(keys.all(set)));
      else {
        const { added, deleted } = change;
        await this.#tables.change(family, set, keyBytes(added), keyBytes(deleted));
      }
      unwritten.delete(set);
    }
  }
}

function keyBytes(keys: Iterable<string>): Buffer[] {
  return [...keys].map((hex) => Buffer.from(hex, 'hex'));
}
