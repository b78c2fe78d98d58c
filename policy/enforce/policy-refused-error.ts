/** The kernel refused a part of a policy, and with it all that was to be written at the time. */
import type { IpFamily } from '../../api/objects.ts';
import type { NftRefusedError } from '../../netlink/nftables/tables.ts';
import { type KernelRule, kernelChains } from '../compile/chains.ts';
import type { CompiledRule, PolicySetChain } from '../compile/change.ts';
import type { KernelElement } from '../compile/element.ts';

export class PolicyRefusedError extends Error {
  override readonly name = 'PolicyRefusedError';
  readonly family: IpFamily;
  /** Of which set it was; undefined when it was none, or is not known. */
  readonly set: string | undefined;
  readonly element: KernelElement['origin'] | undefined;
  /** The profile whose chain was refused. */
  readonly profile: PolicySetChain | undefined;
  /** The rule that was; its comment tells the policy. */
  readonly rule: CompiledRule | undefined;
  declare readonly cause: NftRefusedError;

  /** @param chains among which the refused one is, if it was one. */
  constructor(family: IpFamily, cause: NftRefusedError, chains: readonly PolicySetChain[]) {
    const element = (cause.element as KernelElement | undefined)?.origin;
    const found = cause.chain === undefined ? undefined : findChain(cause.chain, chains, family);
    const rule = cause.rule === undefined ? undefined : found?.lines[cause.rule]?.origin;
    const what = [rule?.comment, element && JSON.stringify(element)].filter((text) => text);
    super([family, ...what, cause.message].join(': '), { cause });
    this.family = family;
    this.set = cause.set;
    this.element = element;
    this.profile = found?.profile;
    this.rule = rule;
  }
}

function findChain(
  name: string,
  chains: readonly PolicySetChain[],
  family: IpFamily,
): { readonly profile: PolicySetChain; readonly lines: readonly KernelRule[] } | undefined {
  for (const profile of chains) {
    const part = kernelChains(profile, family).find((each) => each.name === name);
    if (part !== undefined) return { profile, lines: [...part.lines] };
  }
  return undefined;
}
