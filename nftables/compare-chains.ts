/** Compares chains of table `portwide` with the kernel: their hooks and their rules. */
import type { IpFamily } from '../api/objects.ts';
import { encodedRuleText } from '../netlink/nftables/rule-text.ts';
import type { NftExistingChain } from '../netlink/nftables/types.ts';
import { baseChainText } from '../nft/declaration.ts';
import { nftFamily, nftRuleBytes, nftRuleText } from '../nft/rule.ts';
import type { NftReader } from '../nft/table.ts';
import { type ComparedRule, type ComparisonBuilder, compareRules } from '../proxier/comparison.ts';
import { BackgroundSlice } from '../sync/precedence.ts';
import type { TimeSlice } from '../sync/time-slice.ts';
import type { NftChain } from './chains.ts';
import { TABLE } from './static-chains.ts';

/**
 * Compares chains. The text of a rule that the agent does not write shows its netlink expressions.
 * @param isComplete whether `chains` are all chains of the table, so that others are unexpected.
 * @throws NetlinkError
 */
export async function compareChains(
  tables: Pick<NftReader, 'chainsWithHooks' | 'rules'>,
  chains: readonly NftChain[],
  family: IpFamily,
  result: ComparisonBuilder,
  isComplete: boolean,
  slice: TimeSlice = new BackgroundSlice(result.signal),
): Promise<void> {
  if (chains.length === 0) return;
  const existing = (await tables.chainsWithHooks()) ?? [];
  const kernelChains = new Map(existing.map((chain) => [chain.name, chain]));
  const desired = new Map<string, ComparedRule[]>();
  /** Texts of the agent's rules by their expressions. */
  const texts = new Map<string, string>();
  for (const { name, rules } of chains) {
    const compared = rules.map((rule) => ({
      id: encodedRuleText(nftRuleBytes(rule)),
      text: nftRuleText(rule),
    }));
    for (const { id, text } of compared) texts.set(id, text);
    desired.set(name, compared);
    if (slice.isOver()) await slice.yield();
  }
  const actual = await readRules(tables, isComplete ? undefined : chains, texts, slice);
  const inTable = `${nftFamily(family)} ${TABLE}`;
  const addChain = (chain: NftChain | undefined, found: NftExistingChain | undefined) => {
    const [wanted, has] = [chain && chainText(chain), found && chainText(found)];
    const isSame = wanted === has ? 'ok' : 'changed';
    const state = wanted === undefined ? 'unexpected' : has === undefined ? 'missing' : isSame;
    result.add(state, () => ({
      type: 'chain',
      in: inTable,
      desired: wanted ?? null,
      actual: has ?? null,
      service: null,
    }));
  };
  const addRules = (chain: string) => {
    const rules = compareRules(desired.get(chain) ?? [], actual.get(chain) ?? []);
    for (const { state, ...rule } of rules) {
      result.add(state, () => ({
        type: 'rule',
        in: chain,
        desired: rule.desired?.text ?? null,
        actual: rule.actual?.text ?? null,
        service: null,
      }));
    }
  };
  for (const chain of chains) {
    addChain(chain, kernelChains.get(chain.name));
    addRules(chain.name);
    if (slice.isOver()) await slice.yield();
  }
  for (const chain of isComplete ? existing : []) {
    if (desired.has(chain.name)) continue;
    addChain(undefined, chain);
    addRules(chain.name);
    if (slice.isOver()) await slice.yield();
  }
}

/** @param chains undefined: all chains. */
async function readRules(
  tables: Pick<NftReader, 'rules'>,
  chains: readonly NftChain[] | undefined,
  texts: ReadonlyMap<string, string>,
  slice: TimeSlice,
): Promise<Map<string, ComparedRule[]>> {
  const rules = new Map<string, ComparedRule[]>();
  for (const only of chains ?? [undefined]) {
    for (const { chain, expressions } of (await tables.rules(only?.name)) ?? []) {
      const id = encodedRuleText(expressions);
      const known = rules.get(chain) ?? [];
      rules.set(chain, known);
      known.push({ id, text: texts.get(id) ?? id });
      if (slice.isOver()) await slice.yield();
    }
  }
  return rules;
}

function chainText({ name, base }: Pick<NftChain, 'name' | 'base'> | NftExistingChain): string {
  return base === undefined ? `chain ${name}` : `chain ${name} { ${baseChainText(base)} }`;
}
