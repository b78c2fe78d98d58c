/**
 * The set `dns-resolvers`: the kernel queues DNS packets of its elements. The elements expire unless the agent renews
 * them, so a stopped agent delays DNS for a moment only. nf_tables checks the expiry at each lookup; no process is needed.
 */
import type { NftElement, NftOperation } from '../../netlink/nftables/tables.ts';
import { resolverElement } from '../compile/element.ts';

/** Milliseconds until resolvers expire. The agent renews them four times as often. */
export const RESOLVER_TTL = 2000;

const SET = 'dns-resolvers';

export class QueuedResolvers {
  readonly #now: () => number;
  #resolvers: readonly string[] = [];
  #until = -Infinity;

  constructor(now: () => number) {
    this.#now = now;
  }

  /**
   * Operations that renew these resolvers and remove all others. Before Linux 6.12 an add does not change the timeout of an
   * existing element, so the element is deleted and added again. Deleting an expired element is an error, so an add
   * comes first.
   */
  renew(resolvers: readonly string[]): NftOperation[] {
    const all = new Set([...this.#resolvers, ...resolvers]);
    this.#resolvers = resolvers;
    this.#until = this.#now() + RESOLVER_TTL;
    const elements = [...all].map((address) => resolverElement(address, RESOLVER_TTL));
    return [
      { action: 'add', set: SET, elements },
      { action: 'delete', set: SET, elements },
      { action: 'add', set: SET, elements: this.elements() },
    ];
  }

  /** The elements of a table that replaces the current one, with their remaining timeouts. */
  elements(): NftElement[] {
    const left = Math.ceil(this.#until - this.#now());
    return left > 0 ? this.#resolvers.map((address) => resolverElement(address, left)) : [];
  }
}
