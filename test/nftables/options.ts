import type { IpFamily } from '../../api/objects.ts';
import {
  affinityUpdateChain,
  type EndpointSelection,
  localPolicyChain,
  type NftChain,
  selectionChain,
  sourceRangesChain,
  withJumpTargets,
} from '../../nftables/chains.ts';
import { exactSliceChains } from '../../nftables/exact-slice-chains.ts';
import { EXACT_SIZES } from '../../nftables/maps.ts';
import {
  ownedBaseChains,
  partChains,
  rejectAllowedChain,
  trackedChain,
} from '../../nftables/owned-chains.ts';
import type { NftPlanOptions } from '../../nftables/plan.ts';
import { rangeChains } from '../../nftables/range-chains.ts';
import { staticServiceChains } from '../../nftables/static-chains.ts';
import { options as iptablesOptions } from '../iptables/options.ts';

export type ModeOptions = Partial<NftPlanOptions> & { readonly family: IpFamily };

/** The options of `portwide run --proxy-mode nftables --cluster-cidr … --service-cidrs …`. */
export function modeOptions(fields: Partial<NftPlanOptions> = {}): NftPlanOptions {
  const { masqueradeAll, masqueradeBit, localDetector, family } = iptablesOptions(fields);
  return {
    family,
    masqueradeAll,
    masqueradeBit,
    localDetector,
    resetsTcp: false,
    rejectsOnLocalhost: false,
    serviceCidrs: [family === 'IPv4' ? '10.96.0.0/16' : 'fd00:10:96::/112'],
    nodePortSelection: ['primary'],
    usesFlowtable: false,
    ...fields,
  };
}

/** A selection from two endpoints of an ordinary VIP. */
function selection(fields: Partial<EndpointSelection> = {}): EndpointSelection {
  return {
    kind: 'port',
    count: 2,
    isLocal: false,
    slot: 0,
    hasAffinity: false,
    hash: undefined,
    ...fields,
  };
}

/** Chains of all kinds, static chains first. @param withAffinity whether to include chains for session affinity. */
export function allChains(fields: ModeOptions, withAffinity: boolean): NftChain[] {
  const options = modeOptions(fields);
  const some: NftChain[] = [];
  for (const kind of ['port', 'ip', 'node-port'] as const) {
    for (const hasAffinity of withAffinity ? [false, true] : [false]) {
      for (const count of [1, 2, 300]) {
        const cluster = selection({ kind, count, hasAffinity });
        const local = selection({ kind, count: 1, hasAffinity, isLocal: true });
        some.push(
          selectionChain(cluster, 'non-pods', options),
          selectionChain(cluster, 'all', options),
        );
        some.push(
          selectionChain(local, 'non-pods', options),
          selectionChain(cluster, 'node', options),
        );
        some.push(
          localPolicyChain(cluster, local, options),
          localPolicyChain(cluster, undefined, options),
        );
        some.push(localPolicyChain(undefined, local, options));
        for (const by of ['port', 'ranges', 'slices', 'all'] as const) {
          some.push(sourceRangesChain(selectionChain(cluster, 'all', options), by, 2, options));
        }
      }
      for (const hash of ['client-address', 'client-address-and-port'] as const) {
        const [cluster, local] = [false, true].map((isLocal) => selection({ kind, hash, isLocal }));
        some.push(localPolicyChain(cluster, local, options));
      }
      if (kind === 'ip')
        some.push(selectionChain(selection({ kind, hasAffinity, slot: 3 }), 'node', options));
    }
    if (withAffinity) some.push(affinityUpdateChain(kind, kind === 'ip' ? 3 : 0, 86_400, options));
    if (withAffinity) some.push(affinityUpdateChain(kind, 0, 1, options));
  }
  const { destinations, restricted, sources, speakers } = partChains(20, options);
  some.push(...ownedBaseChains(options), destinations, restricted, sources, speakers);
  some.push(...EXACT_SIZES.flatMap((size) => exactSliceChains(size, options)));
  some.push(trackedChain(20, options), rejectAllowedChain(options));
  const ranges = rangeChains(4, 2, options);
  some.push(ranges.services, ranges.untranslated, ranges.affinity);
  const unique = new Map(
    [...staticServiceChains(options), ...some]
      .flatMap(withJumpTargets)
      .map((chain) => [chain.name, chain]),
  );
  return [...unique.values()];
}
