/** The transactions that bring a difference into the kernel, in their order. */
import type { IpFamily } from '../api/objects.ts';
import { type Element, elementKey } from './element.ts';
import { isInterval, overlapping } from './intervals.ts';
import { isLead } from './maps.ts';
import type { Difference } from './plan.ts';

/** What is done in one transaction. */
export interface Step {
  readonly deletes: readonly Element[];
  readonly adds: readonly Element[];
}

/** The transactions that make a difference, in their order. */
export interface Steps {
  /** What new ways lead to, and has to be there first. */
  readonly ahead: Step;
  readonly swap: Step;
  /** Ways that nobody has to take any more, once the new ones are there. */
  readonly late: Step;
  /** What packets that are under way may still be looking for. */
  readonly afterwards: Step;
}

/**
 * A packet is looked up in one map after the other, and a transaction may come in between; and what
 * changes in maps of ranges (nft_set_pipapo) the kernel puts in force a moment after the rest of the
 * transaction. Such a packet would find neither the old way nor the new one. So new ways come before
 * old ones go; the precedence on a VIP holds between them meanwhile.
 */
export function stepsOf({ deletes, adds, afterwards }: Difference, family: IpFamily): Steps {
  const isAhead = ({ map }: Element) => isInterval(map) && !isLead(map);
  const isNotAhead = (element: Element) => !isAhead(element);
  const ahead = { deletes: deletes.filter(isAhead), adds: adds.filter(isAhead) };
  const added = adds.filter(isNotAhead);
  const addedKeys = new Set(added.map(elementKey));
  const ways = deletes.filter(isNotAhead);
  // The kernel cannot have these beside what is added.
  const displaced = new Set(overlapping(ways, added, family));
  const goesAtOnce = (way: Element) => displaced.has(way) || addedKeys.has(elementKey(way));
  return {
    ahead,
    swap: { deletes: ways.filter(goesAtOnce), adds: added },
    late: { deletes: ways.filter((way) => !goesAtOnce(way)), adds: [] },
    afterwards: { deletes: afterwards, adds: [] },
  };
}
