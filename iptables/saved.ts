import { isOwnChain } from './chains.ts';
import type { SavedTable } from './ruleset.ts';

/** Reads the lines of `iptables-save -t TABLE`. */
export async function parseSaved(
  lines: AsyncIterable<string> | Iterable<string>,
): Promise<SavedTable> {
  const chains = new Map<string, string[]>();
  const foreign = new Set<string>();
  for await (const line of lines) {
    const name = /^(?::|-A )(\S+)/.exec(line)?.[1];
    if (name === undefined) continue;
    const own = isOwnChain(name);
    if (line.startsWith(':')) {
      if (own) chains.set(name, []);
      else foreign.add(`:${name}`);
    } else if (own) {
      chains.get(name)?.push(line);
    } else {
      foreign.add(line);
    }
  }
  return {
    chains: new Map([...chains].map(([name, rules]) => [name, rules.join('\n')])),
    foreign,
  };
}
