import type { IpFamily } from '../../api/objects.ts';
import {
  allowedChain,
  type Chain,
  type Choice,
  drawChain,
  localChain,
  rememberChain,
  withNeeds,
} from '../../nftables/chains.ts';
import type { PlanOptions } from '../../nftables/plan.ts';
import { standingChains } from '../../nftables/skeleton.ts';
import { options as iptablesOptions } from '../iptables/options.ts';

export type ModeOptions = Partial<PlanOptions> & { readonly family: IpFamily };

/** What `portwide run --proxy-mode nftables --cluster-cidr … --service-cidrs …` compiles with. */
export function modeOptions(fields: Partial<PlanOptions> = {}): PlanOptions {
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
    ...fields,
  };
}

/** A choice among two endpoints of an ordinary VIP, unless it is said otherwise. */
export function choice(fields: Partial<Choice> = {}): Choice {
  return { kind: 'port', count: 2, isLocal: false, slot: 0, isSticky: false, ...fields };
}

/** Chains of all kinds, the standing ones first. @param sticky with session affinity. */
export function allChains(fields: ModeOptions, sticky: boolean): Chain[] {
  const options = modeOptions(fields);
  const some: Chain[] = [];
  for (const kind of ['port', 'ip', 'node-port'] as const) {
    for (const isSticky of sticky ? [false, true] : [false]) {
      for (const count of [1, 2, 300]) {
        const cluster = choice({ kind, count, isSticky });
        const local = choice({ kind, count: 1, isSticky, isLocal: true });
        some.push(drawChain(cluster, 'foreign', options), drawChain(cluster, 'everybody', options));
        some.push(drawChain(local, 'foreign', options), drawChain(cluster, 'node', options));
        some.push(localChain(cluster, local, options), localChain(cluster, undefined, options));
        some.push(localChain(undefined, local, options));
        for (const by of ['port', 'ranges', 'all'] as const) {
          some.push(allowedChain(drawChain(cluster, 'everybody', options), by, options));
        }
      }
      if (kind === 'ip') some.push(drawChain(choice({ kind, isSticky, slot: 3 }), 'node', options));
    }
    if (sticky) some.push(rememberChain(kind, kind === 'ip' ? 3 : 0, 86_400, options));
    if (sticky) some.push(rememberChain(kind, 0, 1, options));
  }
  const unique = new Map(
    [...standingChains(options), ...some].flatMap(withNeeds).map((chain) => [chain.name, chain]),
  );
  return [...unique.values()];
}
