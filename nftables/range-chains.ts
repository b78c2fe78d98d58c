/**
 * Chains that find the Service of a VIP with port ranges. A VIP leads to a chain, which looks up the packet's port in the
 * ranges of one slot after the other. Nearly all VIPs have one slot. All chains end like the chain that leads to them, with
 * the lookup of an all-ports Service.
 */
import { PROTOCOLS } from '../api/objects.ts';
import { goTo, type KeyField, protocolIs, type RuleParts, rulePartsFor } from '../nft/rule.ts';
import { type ChainOptions, memoized, type NftChain, REJECT_CHAIN } from './chains.ts';
import { RANGE_PARTS, rangeSet } from './maps.ts';

/** The part of the sets of ranges that has a VIP. @param address In network order. */
export function rangePartOf(address: Buffer): number {
  return (address.at(-1) ?? 0) % RANGE_PARTS;
}

/** The chains of a VIP in hooks of translation, of packets that were not translated, and of session affinity. */
export interface RangeChains {
  readonly services: NftChain;
  readonly untranslated: NftChain;
  readonly affinity: NftChain;
}

/** @param slots the last slot of the VIP. */
export function rangeChains(part: number, slots: number, options: ChainOptions): RangeChains {
  const parts = rulePartsFor(options.family);
  const { destination, protocol, port, originalVip, originalPort, randomIndex } = parts;
  const { inSet, verdictMap } = parts;
  const set = rangeSet(part);
  const numbers = Array.from({ length: slots }, (_, at) => at + 1);
  const lookup = (vip: KeyField, toPort: KeyField, slot: number, services: string): RuleParts => {
    // A number among one is a constant, which nft cannot write in a key.
    const index = randomIndex(1, slot);
    return [inSet([vip, index, protocol, toPort], set), verdictMap([vip, index], services)];
  };
  const chain = (name: string, rules: () => RuleParts[], jumpTargets: NftChain[] = []) =>
    memoized(`${name}-${part}-${slots}`, options, () => ({
      rules: rules(),
      jumpTargets,
      maps: [set],
    }));
  return {
    services: chain('ranges', () => [
      ...numbers.map((slot) => lookup(destination, port, slot, 'range-services')),
      [verdictMap([destination], 'service-ips')],
    ]),
    untranslated: chain('no-endpoint-ranges', () => [
      ...numbers.map((slot) => lookup(destination, port, slot, 'no-endpoint-range-services')),
      [verdictMap([destination], 'no-endpoint-ips')],
      [goTo(REJECT_CHAIN)],
    ]),
    affinity: chain('affinity-ranges', () => [
      // nft accepts a port field only after a match on the protocol.
      ...numbers.flatMap((slot) =>
        PROTOCOLS.map((each) => [
          protocolIs(each),
          ...lookup(originalVip, originalPort, slot, 'affinity-update-range-services'),
        ]),
      ),
      [verdictMap([originalVip], 'affinity-update-ips')],
    ]),
  };
}
