/** Keeps the recorded answers to untracked UDP packets while the policy table is replaced. */
import { ENOENT, hasErrno } from '../../netlink/core/error.ts';
import type { NftElement } from '../../netlink/nftables/tables.ts';
import type { RuleTable } from '../../nft/table.ts';
import { ANSWER_SETS, type NftSetName } from '../compile/policy-table.ts';

export function isAnswerSet(set: NftSetName): set is (typeof ANSWER_SETS)[number] {
  return (ANSWER_SETS as readonly NftSetName[]).includes(set);
}

/**
 * The elements of sets with recorded answers, with their remaining timeouts; none without a table, or in a table of an
 * earlier release. Without them, calls of pods that may not speak first would stop until the next packet of the other end.
 * @throws NetlinkError
 */
export async function readAnswers(table: RuleTable): Promise<Map<NftSetName, NftElement[]>> {
  const bySet = new Map<NftSetName, NftElement[]>();
  for (const set of ANSWER_SETS) bySet.set(set, await readSet(table, set));
  return bySet;
}

async function readSet(table: RuleTable, set: NftSetName): Promise<NftElement[]> {
  let answers: NftElement[] = [];
  try {
    await table.visitElements(
      set,
      ({ key, timeoutMs = 0 }) => {
        // An element without remaining time would be added for the full timeout.
        if (timeoutMs > 0) answers.push({ key, timeoutMs });
      },
      () => {
        answers = [];
      },
    );
  } catch (error) {
    if (hasErrno(error, ENOENT)) return [];
    throw error;
  }
  return answers;
}
