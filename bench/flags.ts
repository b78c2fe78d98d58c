import { parseArgs } from 'node:util';
import { VARIANTS, type Variant } from '../iptables/commands.ts';

export interface Flags {
  readonly services: readonly number[];
  readonly variants: readonly Variant[];
  /** Full syncs of each kind; undefined: by the number of Services. */
  readonly runs: number | undefined;
}

export const USAGE = `Usage: node bench/iptables.ts [--services 1000,10000] [--variants nft,legacy] [--runs N] [--quick]

  --services  how many Services, one or several numbers of at least 200
  --variants  which iptables
  --runs      full syncs of each kind (default 5 below 5,000 Services, 3 from there on)
  --quick     1,000 Services and 3 runs, unless the others say otherwise

Needs root. Works in network namespaces of its own.`;

/** @throws TypeError for flags that are no such. */
export function readFlags(args: readonly string[]): Flags {
  const { values } = parseArgs({
    args: [...args],
    options: {
      services: { type: 'string' },
      variants: { type: 'string', default: VARIANTS.join() },
      runs: { type: 'string' },
      quick: { type: 'boolean', default: false },
    },
  });
  const services = (values.services ?? (values.quick ? '1000' : '1000,10000')).split(',');
  const runs = values.runs ?? (values.quick ? '3' : undefined);
  return {
    // Fewer would not fill the dispatch trees.
    services: services.map((text) => wholeNumber('services', text, 200)),
    variants: values.variants.split(',').map(variant),
    runs: runs === undefined ? undefined : wholeNumber('runs', runs, 1),
  };
}

function wholeNumber(flag: string, text: string, least: number): number {
  const number = Number(text);
  if (Number.isInteger(number) && number >= least) return number;
  throw new TypeError(`--${flag}: expected a number of at least ${least}, got "${text}"`);
}

function variant(text: string): Variant {
  const found = VARIANTS.find((each) => each === text);
  if (found !== undefined) return found;
  throw new TypeError(`--variants: expected ${VARIANTS.join(' or ')}, got "${text}"`);
}
