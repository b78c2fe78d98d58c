import assert from 'node:assert/strict';
import { sharedNetns } from '../netlink/namespace.ts';
import { endingsOf, POD, POD6 } from './endings.ts';
import { FOREIGN_RULESETS } from './foreign-rulesets.ts';

/** The elements of sets in one order: the kernel has them in another one in each run. */
function sortedSets(line: string): string {
  return line.replace(/\{ ([^}]*) \}/g, (_, elements: string) => {
    const sorted = elements.split(', ').toSorted();
    return `{ ${sorted.join(', ')} }`;
  });
}

describe('rules of other programs, as nft wrote them', () => {
  const netns = sharedNetns(({ helper }) => helper.call('hold', 'flush ruleset', 'nft', '-f', '-'));

  for (const { title, table, rules, words = {}, IPv4, IPv6 } of FOREIGN_RULESETS) {
    it(`${title}: ${IPv4}`, async () => {
      const { namespace, helper } = await netns();
      await helper.call('hold', `table ${table} {\n${rules}\n}`, 'nft', '-f', '-');
      const [base] = await helper.call('foreignChains');
      assert.deepEqual([endingsOf(base, POD), endingsOf(base, POD6)], [IPv4, IPv6]);

      const listed = await namespace.run('nft', 'list', 'ruleset');
      const lines = listed.split('\n').map((line) => sortedSets(line.trim()));
      for (const text of await helper.call('foreignTexts')) {
        const asNft = sortedSets(words[text] ?? text);
        assert.ok(lines.includes(asNft), `${asNft}\n${listed}`);
      }
    });
  }
});
