/**
 * Compares table `portwide` with the applied state: elements, chains, hooks, rules, whether the table is
 * dormant, which maps, sets and counters exist, and the interfaces of the flowtable.
 *
 * Rules are compared by their expressions. Affinity entries are not compared, because packets write
 * them, nor are comments and counts. Types and flags of maps are not compared either. If another
 * program has changed the type of a map, a full sync replaces the table.
 */
import type { IpFamily, ObjectKey } from '../api/objects.ts';
import { EINTR, hasErrno } from '../netlink/core/error.ts';
import { NFT_TABLE_DORMANT } from '../netlink/nftables/tables.ts';
import { elementKeyText } from '../nft/element.ts';
import { nftFamily } from '../nft/rule.ts';
import type { NftReader } from '../nft/table.ts';
import type { ComparedState } from '../proxier/compared-object.ts';
import { ComparisonBuilder } from '../proxier/comparison.ts';
import { BackgroundSlice } from '../sync/precedence.ts';
import { TimeSlice } from '../sync/time-slice.ts';
import type { NftChain } from './chains.ts';
import { compareChains } from './compare-chains.ts';
import { compareFlowtable } from './compare-flowtable.ts';
import { compareServiceElements, type ElementAdder } from './compare-service.ts';
import { elementFromTexts, elementId, type MapElement } from './element.ts';
import { elementOwners } from './element-owners.ts';
import type { FlowtableDevices } from './flowtable-devices.ts';
import { KernelElements } from './kernel-elements.ts';
import { isReferenceCounted, MAP_NAMES } from './maps.ts';
import type { NftPlan } from './plan.ts';
import { onDemandMapsOf, TABLE } from './static-chains.ts';
import { elementFormatter } from './table-script.ts';
import { existingObjects, neededObjects, withoutObjects } from './unknown-objects.ts';

/**
 * Changes nothing. Before the first full sync there is nothing to compare. For one Service: its
 * elements, and the chains that they lead to.
 * @throws NetlinkError
 */
export async function compareTable(
  tables: NftReader,
  plan: NftPlan,
  family: IpFamily,
  result: ComparisonBuilder,
  flowtableDevices?: FlowtableDevices,
): Promise<void> {
  if (!plan.hasApplied) return;
  const add = elementAdder(family, result);
  if (result.service === undefined) {
    const chains = [...plan.chains()];
    await compareObjects(tables, chains, family, result);
    await compareChains(tables, chains, family, result, true);
    await compareAllElements(tables, plan, family, add, result.signal);
    if (flowtableDevices !== undefined) await compareFlowtable(tables, flowtableDevices, result);
  } else {
    const chains = await compareServiceElements(
      tables,
      plan,
      family,
      result.service,
      add,
      result.signal,
    );
    await compareChains(tables, chains, family, result, false);
  }
}

/**
 * Number of chains, rules, maps and counters that differ, without elements. A full sync writes all rules again, so it
 * needs this number to know whether it repairs something. 0 before the first full sync, and if other changes of nf_tables
 * interrupt every dump: the repair must not fail for its report.
 * @throws NetlinkError
 */
export async function countRuleDifferences(
  tables: NftReader,
  plan: NftPlan,
  family: IpFamily,
): Promise<number> {
  if (!plan.hasApplied) return 0;
  const result = new ComparisonBuilder(undefined);
  const chains = [...plan.chains()];
  try {
    await compareObjects(tables, chains, family, result);
    // Not a slice for background work, which would wait for the sync that calls this.
    await compareChains(tables, chains, family, result, true, new TimeSlice());
  } catch (error) {
    if (!hasErrno(error, EINTR)) throw error;
    return 0;
  }
  return result.result().different;
}

function elementAdder(family: IpFamily, result: ComparisonBuilder): ElementAdder {
  const format = elementFormatter(family);
  const textOf = (element: MapElement | undefined) =>
    element === undefined ? null : format(element);
  return (state, desired, actual, service) =>
    result.add(state, () => ({
      type: 'element',
      in: (desired ?? actual)?.map ?? '',
      desired: textOf(desired),
      actual: textOf(actual),
      service: service ?? null,
    }));
}

async function compareObjects(
  tables: NftReader,
  chains: readonly NftChain[],
  family: IpFamily,
  result: ComparisonBuilder,
): Promise<void> {
  const table = `table ${nftFamily(family)} ${TABLE}`;
  const flags = await tables.tableFlags();
  const isDormant = flags !== undefined && (flags & NFT_TABLE_DORMANT) !== 0;
  const isPresent = isDormant ? 'changed' : 'ok';
  result.add(flags === undefined ? 'missing' : isPresent, () => ({
    type: 'table',
    in: 'nf_tables',
    desired: table,
    actual: flags === undefined ? null : `${table}${isDormant ? ' { flags dormant; }' : ''}`,
    service: null,
  }));
  const needed = neededObjects(chains);
  const existing = await existingObjects(tables);
  const missing = withoutObjects(needed, existing);
  const unknown = withoutObjects(existing, needed);
  for (const [type, kind] of [
    ['map or set', 'sets'],
    ['counter', 'counters'],
    ['flowtable', 'flowtables'],
  ] as const) {
    result.addUnchanged(needed[kind].length - missing[kind].length);
    const add = (state: ComparedState, name: string) =>
      result.add(state, () => ({
        type,
        in: `${nftFamily(family)} ${TABLE}`,
        desired: state === 'missing' ? name : null,
        actual: state === 'missing' ? null : name,
        service: null,
      }));
    for (const name of missing[kind]) add('missing', name);
    for (const name of unknown[kind]) add('unexpected', name);
  }
}

async function compareAllElements(
  tables: NftReader,
  plan: NftPlan,
  family: IpFamily,
  add: ElementAdder,
  signal: AbortSignal | undefined,
): Promise<void> {
  const maps = [...MAP_NAMES, ...onDemandMapsOf(plan.chains())];
  const kernel = await KernelElements.readExisting(tables, maps);
  const slice = new BackgroundSlice(signal);
  const compare = (element: MapElement, service: ObjectKey | undefined) => {
    const [state, data] = kernel.take(element);
    const { map } = element;
    const actual =
      state === 'changed' && data !== undefined
        ? elementFromTexts(map, elementKeyText(element), data, family)
        : undefined;
    add(state, element, state === 'ok' ? element : actual, service);
  };
  for (const element of plan.appliedNodeElements()) compare(element, undefined);
  const shared = new Set<string>();
  for (const { planned, elements } of plan.applied()) {
    for (const element of elements) {
      if (isReferenceCounted(element.map)) {
        const id = elementId(element);
        if (shared.has(id)) continue;
        shared.add(id);
      }
      compare(element, planned.route.serviceKey);
      if (slice.isOver()) await slice.yield();
    }
  }
  const stale: MapElement[] = [];
  for (const [map, key, data] of kernel.staleTexts()) {
    stale.push(elementFromTexts(map, key, data, family));
    if (slice.isOver()) await slice.yield();
  }
  if (stale.length === 0) return;
  const owners = await elementOwners(plan, stale, family, signal);
  for (const element of stale) {
    add('unexpected', undefined, element, owners(element));
    if (slice.isOver()) await slice.yield();
  }
}
