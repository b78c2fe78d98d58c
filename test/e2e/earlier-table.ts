/** Table portwide as an agent wrote it before its maps and chains were renamed. */
import { readFileSync } from 'node:fs';

/** With words in capitals that `earlierTable` replaces. */
const EARLIER_TABLE = readFileSync(new URL('nftables-earlier-names.nft', import.meta.url), 'utf8');

/** A script for nft. @param values of the words. */
export function earlierTable(family: 4 | 6, values: Readonly<Record<string, string>>): string {
  const all: typeof values = { FAMILY: family === 4 ? 'ip' : 'ip6', ...values };
  return (
    EARLIER_TABLE.replace(/\b[A-Z]+(?:_\d)?\b/g, (word) => all[word] ?? word)
      .split('\n')
      // nft 1.0.6 aborts on rules that update an affinity map with IPv6 keys.
      .filter((line) => family === 4 || !line.includes(' update @'))
      .join('\n')
  );
}
