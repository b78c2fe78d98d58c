/** VIPs of Services with ports that Services of other namespaces request. */
import type { ServiceRefusal } from '../api/all-ports.ts';
import { getOrCreate, setList } from '../api/collections.ts';
import { isSameNamespace, namespaceOf, type ObjectKey } from '../api/objects.ts';

/** A VIP, and another namespace with Services that lost it. */
export interface ContestedVip {
  readonly vip: string;
  readonly namespace: string;
}

/** Counts the losers by owner, so that an owner gets one warning per namespace, however many Services it creates. */
export class ContestedVips {
  readonly #lost = new Map<ObjectKey, readonly Loss[]>();
  /** By owner, then by VIP and namespace. */
  readonly #contested = new Map<ObjectKey, Map<string, ContestedVip & { losers: number }>>();

  /** The contested VIPs of a Service. */
  of(owner: ObjectKey): readonly ContestedVip[] {
    return [...(this.#contested.get(owner)?.values() ?? [])];
  }

  /** Sets the refusals of a Service. @returns the Services with other contested VIPs now. */
  setRefusals(loser: ObjectKey, refusals: readonly ServiceRefusal[]): Set<ObjectKey> {
    const owners = new Set<ObjectKey>();
    const losses = refusals.flatMap(({ lostVip }): Loss[] => {
      if (lostVip === undefined || isSameNamespace(loser, lostVip.to)) return [];
      return [{ owner: lostVip.to, vip: lostVip.vip }];
    });
    const before = this.#lost.get(loser) ?? [];
    setList(this.#lost, loser, losses);
    for (const loss of losses) if (this.#count(loser, loss, 1) === 1) owners.add(loss.owner);
    for (const loss of before) if (this.#count(loser, loss, -1) === 0) owners.add(loss.owner);
    return owners;
  }

  /** @returns the number of losers now. */
  #count(loser: ObjectKey, { owner, vip }: Loss, change: 1 | -1): number {
    const namespace = namespaceOf(loser);
    const vips = getOrCreate(this.#contested, owner, () => new Map());
    const key = `${vip} ${namespace}`;
    const contested = getOrCreate(vips, key, () => ({ vip, namespace, losers: 0 }));
    contested.losers += change;
    if (contested.losers === 0) vips.delete(key);
    if (vips.size === 0) this.#contested.delete(owner);
    return contested.losers;
  }
}

interface Loss {
  readonly owner: ObjectKey;
  readonly vip: string;
}
