/**
 * Chains for UDP slices of one of `EXACT_SIZES` ports that start at a multiple of their size. The first port of the slice is
 * the port without its last bits, so one lookup in a hash table finds the slice. Slices of other sizes are ranges, see
 * `owned-chains.ts`: a search among ranges takes three times as long, and Linux 6.18 copies the map with each change. The
 * paths of packets are the same.
 */
import type { NftBaseChain } from '../netlink/nftables/types.ts';
import {
  ACCEPT,
  IS_UNTRACKED,
  jumpTo,
  NOTRACK,
  protocolIs,
  type RuleParts,
  rulePartsFor,
} from '../nft/rule.ts';
import { type ChainOptions, memoized, type NftChain } from './chains.ts';
import { type ExactSize, exactMap, type MapName } from './maps.ts';
import { baseChain, errorRules, SPEAKER_HOOKS, translationHooks } from './owned-chains.ts';

/** The chains for slices of one size. */
export function exactSliceChains(size: ExactSize, options: ChainOptions): NftChain[] {
  const { source, destination, sourcePort, port, firstOfSlice, inSet, rewrite } = rulePartsFor(
    options.family,
  );
  const owners = exactMap('udp-owners', size);
  const vips = exactMap('udp-owner-vips', size);
  const ownerPorts = exactMap('udp-owner-ports', size);
  const udp = protocolIs('UDP');
  const chain = (name: string, rules: RuleParts[], maps: MapName[]) =>
    memoized(`${name}-of-${size}`, options, () => ({ rules, jumpTargets: [], maps }));

  const to = [destination, firstOfSlice(port, size)];
  const destinations = chain(
    'owned-destinations',
    [
      // nft accepts a port field only after a match on the protocol.
      [udp, rewrite('destination', to, owners), NOTRACK, ACCEPT],
      [udp, inSet(to, ownerPorts), NOTRACK, ACCEPT],
      // Packets to a slice without owner, or to a VIP that does not let the sender in, are rejected or dropped. Here, and not
      // in `sources`, so that what an owner sends to a client takes one lookup less.
      [inSet([destination], 'owned-vips'), ACCEPT],
    ],
    [owners, ownerPorts, 'owned-vips'],
  );
  const from = [source, firstOfSlice(sourcePort, size)];
  const sources = chain(
    'owned-sources',
    [
      [udp, inSet(from, ownerPorts), NOTRACK, ACCEPT],
      [udp, inSet([source, sourcePort], 'udp-vip-ports'), NOTRACK, ACCEPT],
    ],
    [ownerPorts, 'udp-vip-ports'],
  );
  const packets: RuleParts[] = [
    [udp, inSet([destination], 'owned-addresses'), jumpTo(destinations.name)],
    [udp, inSet([source], 'owned-addresses'), jumpTo(sources.name)],
  ];
  const answers: RuleParts[] = [
    [IS_UNTRACKED, udp, rewrite('source', from, vips), ACCEPT],
    ...errorRules(options.family),
  ];
  const { inbound, outbound } = translationHooks();
  const { input, postrouting } = SPEAKER_HOOKS;
  const early = (name: string, base: NftBaseChain) =>
    baseChain(`${name}-of-${size}`, base, packets, ['owned-addresses'], options, [
      destinations,
      sources,
    ]);
  const late = (name: string, base: NftBaseChain) =>
    baseChain(`${name}-of-${size}`, base, answers, ['owned-addresses', vips], options);
  return [
    early('owned-prerouting', inbound),
    early('owned-output', outbound),
    late('owned-input', input),
    late('owned-postrouting', postrouting),
  ];
}
