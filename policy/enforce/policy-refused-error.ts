/** The kernel refused one part of a policy update and therefore the whole transaction. */
import type { IpFamily } from '../../api/objects.ts';
import type { NftRefusedError } from '../../netlink/nftables/tables.ts';
import { type KernelRule, kernelChains } from '../compile/chains.ts';
import type { CompiledRule, PolicySetChain } from '../compile/change.ts';
import type { KernelElement } from '../compile/element.ts';

export class PolicyRefusedError extends Error {
  override readonly name = 'PolicyRefusedError';
  readonly family: IpFamily;
  /**
   * The set whose element was refused; undefined if the refused part is not an element or is
   * unknown.
   */
  readonly set: string | undefined;
  readonly element: KernelElement['source'] | undefined;
  /** The policy set whose chain was refused. */
  readonly chain: PolicySetChain | undefined;
  /** The refused rule. Its comment names the policy, unless the rule is the default deny. */
  readonly rule: CompiledRule | undefined;
  declare readonly cause: NftRefusedError;

  /** @param chains The chains of the transaction, to find the refused chain. */
  constructor(family: IpFamily, cause: NftRefusedError, chains: readonly PolicySetChain[]) {
    const element = (cause.element as KernelElement | undefined)?.source;
    const found = cause.chain === undefined ? undefined : findChain(cause.chain, chains, family);
    const rule = cause.rule === undefined ? undefined : found?.rules[cause.rule]?.source;
    const what = [rule?.comment, element && JSON.stringify(element)].filter((text) => text);
    super([family, ...what, cause.message].join(': '), { cause });
    this.family = family;
    this.set = cause.set;
    this.element = element;
    this.chain = found?.chain;
    this.rule = rule;
  }
}

function findChain(
  name: string,
  chains: readonly PolicySetChain[],
  family: IpFamily,
): { readonly chain: PolicySetChain; readonly rules: readonly KernelRule[] } | undefined {
  for (const chain of chains) {
    const part = kernelChains(chain, family).find((each) => each.name === name);
    if (part !== undefined) return { chain, rules: [...part.rules] };
  }
  return undefined;
}
