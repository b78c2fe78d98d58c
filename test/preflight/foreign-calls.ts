/** Reads tables of other programs inside a network namespace. */
import { readNftChains } from '../../agent/preflight/rule-facts.ts';
import { readRuleset } from '../../netlink/nftables/rule-list.ts';
import { ruleText } from '../../netlink/nftables/statement-text.ts';
import { listTables } from '../../netlink/nftables/tables.ts';

export const foreignCalls = {
  foreignChains: (maxRules?: number) => readNftChains(new Set(), maxRules),

  /** The rules of all tables. */
  async foreignTexts(): Promise<string[]> {
    const texts: string[] = [];
    for (const table of await listTables()) {
      const listed = await readRuleset(table, (_, statements) => ruleText(statements), 1000);
      texts.push(...(listed?.rules ?? []));
    }
    return texts;
  },
};
