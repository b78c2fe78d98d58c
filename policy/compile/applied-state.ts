/**
 * compile/ turns the policy model into nft sets and chains. This file holds the state last passed
 * to the enforcer, and computes the difference to the model.
 */
import { familyOf } from '../../api/addresses.ts';
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import { protocolNumbers } from '../../netlink/core/protocol.ts';
import { type AddressEntry, EMPTY_ENTRY } from '../model/memberships.ts';
import type { PolicyModel } from '../model/model.ts';
import type { ListRanges } from '../model/networks.ts';
import { type AddressRange, addressText, rangesNotIn, rangesOverlap } from '../model/ranges.ts';
import type { ListId } from '../model/terms.ts';
import { addressElements } from './address-elements.ts';
import type { PolicyChange, PolicyElement, PolicySetChain, PolicyState } from './change.ts';
import { isSamePolicySetChain, policySetChain, withNetworksIds } from './policy-set-chain.ts';

type Mutable<T> = { -readonly [K in keyof T]: T[K] extends readonly (infer E)[] ? E[] : T[K] };

/** Ids of networks that the model does not assign to lists. */
const FIRST_NETWORKS_ID = 2 ** 31;

export class AppliedState {
  readonly #model: PolicyModel;
  readonly #families: readonly IpFamily[];
  readonly #lists = new Map<ListId, ListRanges>();
  readonly #entries = new Map<string, AddressEntry>();
  /** Compiled rules by id of the policy set. */
  readonly #chains = new Map<number, PolicySetChain>();
  /** Ids in the set `networks` that differ from the id of the list. */
  readonly #networksIds = new Map<ListId, ListId>();
  #lastNetworksId = FIRST_NETWORKS_ID - 1;
  readonly #ownedVips = new Set<string>();
  /** VIPs set since the last `takeChanges()`, with whether they are owned. */
  readonly #pendingOwnedVips = new Map<string, boolean>();

  /** @param model No other caller may call `model.takeChanges()`. */
  constructor(model: PolicyModel, families: readonly IpFamily[] = IP_FAMILIES) {
    this.#model = model;
    this.#families = families;
  }

  /** Adds or removes a VIP of Services with ports owned by pods, from the next `takeChanges()` on. */
  setOwnedVip(vip: string, isOwned: boolean): void {
    this.#pendingOwnedVips.set(vip, isOwned);
  }

  /**
   * Kernel changes since the last call, one `PolicyChange` for each IP family with changes. The
   * first call returns everything.
   */
  takeChanges(): PolicyChange[] {
    const { lists, entries, policySets } = this.#model.takeChanges();
    const changes = this.#families.map(noChange);
    const renumbered = this.#renumber(lists);
    for (const [listId, now] of lists) {
      const before = this.#lists.get(listId);
      const newId = this.#networksIds.get(listId) ?? listId;
      const oldId = renumbered.get(listId);
      for (const change of changes) {
        if (oldId === undefined) changeList(change, newId, before, now);
        else {
          changeList(change, oldId, before, undefined);
          changeList(change, newId, undefined, now);
        }
      }
      if (now !== undefined) this.#lists.set(listId, now);
      else {
        this.#lists.delete(listId);
        this.#networksIds.delete(listId);
      }
    }
    for (const [address, now] of entries) {
      const family = familyOf(address);
      const change = changes.find((each) => each.family === family);
      const before = this.#entries.get(address) ?? EMPTY_ENTRY;
      if (change === undefined || before === now) continue;
      for (const element of addressElements(address, before, now)) {
        const isListRemoved = 'list' in element && !this.#lists.has(element.list);
        (isListRemoved ? change.cleanup : change.remove).push(element);
      }
      change.add.push(...addressElements(address, now, before));
      if (now === EMPTY_ENTRY) this.#entries.delete(address);
      else this.#entries.set(address, now);
    }
    for (const [{ direction, id: policySetId }, rules] of policySets) {
      const before = this.#chains.get(policySetId);
      if (rules !== undefined) {
        const chain = withNetworksIds(
          policySetChain(direction, policySetId, rules),
          this.#networksIds,
        );
        if (before === undefined || !isSamePolicySetChain(before, chain)) {
          for (const change of changes) change.chains.push(chain);
        }
        this.#chains.set(policySetId, chain);
      } else if (before !== undefined) {
        for (const change of changes) change.cleanupChains.push({ direction, policySetId });
        this.#chains.delete(policySetId);
      }
    }
    if (renumbered.size > 0) this.#renumberChains(changes);
    for (const [vip, isOwned] of this.#pendingOwnedVips) {
      if (this.#ownedVips.has(vip) === isOwned) continue;
      if (isOwned) this.#ownedVips.add(vip);
      else this.#ownedVips.delete(vip);
      const change = changes.find(({ family }) => family === familyOf(vip));
      if (change !== undefined) (isOwned ? change.add : change.remove).push(vipElement(vip));
    }
    this.#pendingOwnedVips.clear();
    return changes.filter(isChange);
  }

  /**
   * The complete state as of the last `takeChanges()`. Consume the elements before the next
   * `takeChanges()`.
   */
  snapshot(family: IpFamily): PolicyState {
    return { chains: [...this.#chains.values()], elements: this.#elements(family) };
  }

  /**
   * Assigns new ids to changed networks if one is replaced by a network that overlaps it, such as 10.0.0.0/24 by
   * 10.0.0.0/16. The new networks are then written beside the old ones. The kernel would allow both changes in one
   * transaction, but before Linux 6.12.48, 6.16.8 and 6.17 a packet meanwhile finds neither network.
   * @returns the former ids of lists with a new one.
   */
  #renumber(lists: ReadonlyMap<ListId, ListRanges | undefined>): ReadonlyMap<ListId, ListId> {
    const changed: ListId[] = [];
    let isReplaced = false;
    for (const [id, now] of lists) {
      const before = this.#lists.get(id);
      if (before === undefined || now === undefined) continue;
      const differences = this.#families.map((family) => {
        const [old, current] = [before.networks[family], now.networks[family]];
        return [rangesNotIn(old, current), rangesNotIn(current, old)] as const;
      });
      if (differences.flat(2).length > 0) changed.push(id);
      isReplaced ||= differences.some(([gone, added]) => rangesOverlap(gone, added));
    }
    const former = new Map<ListId, ListId>();
    if (!isReplaced) return former;
    // All of them: rules see networks of an id that they know some milliseconds late.
    for (const id of changed) {
      former.set(id, this.#networksIds.get(id) ?? id);
      this.#lastNetworksId += 1;
      this.#networksIds.set(id, this.#lastNetworksId);
    }
    return former;
  }

  #renumberChains(changes: readonly Mutable<PolicyChange>[]): void {
    for (const [policySetId, chain] of this.#chains) {
      const renumbered = withNetworksIds(chain, this.#networksIds);
      if (isSamePolicySetChain(chain, renumbered)) continue;
      for (const change of changes) change.chains.push(renumbered);
      this.#chains.set(policySetId, renumbered);
    }
  }

  *#elements(family: IpFamily): Iterable<PolicyElement> {
    for (const vip of this.#ownedVips) if (familyOf(vip) === family) yield vipElement(vip);
    for (const [listId, ranges] of this.#lists)
      yield* rangeElements(this.#networksIds.get(listId) ?? listId, ranges, family);
    for (const [address, entry] of this.#entries) {
      if (familyOf(address) === family) yield* addressElements(address, entry);
    }
  }
}

function changeList(
  change: Mutable<PolicyChange>,
  listId: ListId,
  before: ListRanges | undefined,
  now: ListRanges | undefined,
): void {
  const { family } = change;
  if (before === undefined) {
    if (now !== undefined) change.prepare.push(...rangeElements(listId, now, family));
    return;
  }
  if (now === undefined) {
    change.cleanup.push(...rangeElements(listId, before, family));
    return;
  }
  const [old, current] = [before.networks[family], now.networks[family]];
  change.remove.push(...networkElements(listId, rangesNotIn(old, current), family));
  change.add.push(...networkElements(listId, rangesNotIn(current, old), family));
}

function* rangeElements(
  list: ListId,
  { networks, ports }: ListRanges,
  family: IpFamily,
): Iterable<PolicyElement> {
  for (const { protocol, from, to } of ports) {
    yield { set: 'ports', list, protocol: protocolNumbers[protocol], first: from, last: to };
  }
  yield* networkElements(list, networks[family], family);
}

function* networkElements(
  list: ListId,
  ranges: readonly AddressRange[],
  family: IpFamily,
): Iterable<PolicyElement> {
  for (const { first, last } of ranges) {
    yield {
      set: 'networks',
      list,
      first: addressText(first, family),
      last: addressText(last, family),
    };
  }
}

/** The VIPs of a family, except others. */
function vipElement(address: string): PolicyElement {
  return { set: 'owned-vips', address };
}

function noChange(family: IpFamily): Mutable<PolicyChange> {
  return { family, prepare: [], remove: [], add: [], chains: [], cleanup: [], cleanupChains: [] };
}

function isChange({ family: _, ...parts }: PolicyChange): boolean {
  return Object.values(parts).some((part) => part.length > 0);
}
