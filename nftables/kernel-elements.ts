/** The elements that the kernel has in the maps of table `portwide`. */
import type { IpFamily } from '../api/objects.ts';
import { ENOENT, undefinedOnErrno } from '../netlink/core/error.ts';
import { elementDataText, elementKeyText } from '../nft/element.ts';
import type { RuleTable } from '../nft/table.ts';
import type { ComparedState } from '../proxier/compared-object.ts';
import { elementFromKeyText, type MapElement } from './element.ts';
import { isOnDemand, MAP_NAMES, type MapName } from './maps.ts';

/** Data by map and by key, as text. An element takes a third of the memory of an object. */
export class KernelElements {
  readonly #maps = new Map<MapName, Map<string, string>>();
  readonly #filled = new Set<MapName>();

  /**
   * Reads all elements of all maps, with the maps that exist on demand.
   * @throws NetlinkError: ENOENT if a map does not exist.
   */
  static async read(tables: Pick<RuleTable, 'sets' | 'visitElements'>): Promise<KernelElements> {
    const all = new KernelElements();
    const onDemand = ((await tables.sets()) ?? []).map(({ name }) => name).filter(isOnDemand);
    for (const name of [...MAP_NAMES, ...onDemand]) await all.#read(tables, name);
    return all;
  }

  /** Reads these maps. A map that does not exist has no elements. @throws NetlinkError */
  static async readExisting(
    tables: Pick<RuleTable, 'visitElements'>,
    names: Iterable<MapName>,
  ): Promise<KernelElements> {
    const all = new KernelElements();
    for (const name of names) await undefinedOnErrno(all.#read(tables, name), ENOENT);
    return all;
  }

  /** Whether the map had elements when it was read. */
  hadElements(map: MapName): boolean {
    return this.#filled.has(map);
  }

  async #read(tables: Pick<RuleTable, 'visitElements'>, name: MapName): Promise<void> {
    const elements = new Map<string, string>();
    this.#maps.set(name, elements);
    await tables.visitElements(
      name,
      (element) => elements.set(elementKeyText(element), elementDataText(element)),
      () => elements.clear(),
    );
    if (elements.size > 0) this.#filled.add(name);
  }

  /**
   * Compares a desired element with the kernel, and removes it from these elements. Elements that
   * remain at the end are stale.
   * @returns the state, and the data in the kernel as text; undefined if the kernel has no such element.
   */
  take(element: MapElement): readonly [state: ComparedState, data: string | undefined] {
    const elements = this.#maps.get(element.map);
    if (elements === undefined || elements.size === 0) return ['missing', undefined];
    const key = elementKeyText(element);
    const data = elements.get(key);
    if (data === undefined) return ['missing', undefined];
    elements.delete(key);
    return [data === elementDataText(element) ? 'ok' : 'changed', data];
  }

  /** Removes a stale element from these elements. */
  delete(element: MapElement): void {
    this.#maps.get(element.map)?.delete(elementKeyText(element));
  }

  /** Stale elements, which no desired element has taken, without data. */
  *stale(family: IpFamily): Iterable<MapElement> {
    for (const [map, key] of this.staleTexts()) yield elementFromKeyText(map, key, family);
  }

  /** Stale elements as text, see `elementKeyText` and `elementDataText`. */
  *staleTexts(): Iterable<readonly [map: MapName, key: string, data: string]> {
    for (const [map, elements] of this.#maps) {
      for (const [key, data] of elements) yield [map, key, data];
    }
  }
}
