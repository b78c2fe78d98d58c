/** How a Service spreads connections over its endpoints: annotation `portwide.dev/load-balancing`. */
import {
  annotationField,
  type PortFeatures,
  type PortScheme,
  type RefusalReason,
  type ServiceRefusal,
} from '../api/all-ports.ts';
import {
  type HashInput,
  LOAD_BALANCING_ANNOTATION,
  parseLoadBalancing,
} from '../api/load-balancing.ts';
import type { Service } from '../api/objects.ts';

const FIELD = annotationField(LOAD_BALANCING_ANNOTATION);

/** How connections are spread, and what keeps the Service from being served so. */
export interface LoadBalancing {
  /** undefined: at random. */
  readonly consistentHash: HashInput | undefined;
  readonly refusals: readonly ServiceRefusal[];
  /** As `field: message`. */
  readonly warnings: readonly string[];
}

const RANDOM: LoadBalancing = { consistentHash: undefined, refusals: [], warnings: [] };

/** Reads the annotation of a Service. @param scheme the ports of the Service. */
export function loadBalancing(
  { key: serviceKey, loadBalancingAnnotation: value, affinitySeconds }: Service,
  scheme: PortScheme,
  { consistentHashProblem }: PortFeatures,
): LoadBalancing {
  if (value === undefined) return RANDOM;
  const refused = (reason: RefusalReason, message: string): LoadBalancing => ({
    ...RANDOM,
    refusals: [{ serviceKey, reason, field: FIELD, message }],
  });
  const parsed = parseLoadBalancing(value);
  if (parsed === undefined) {
    return refused('Annotation', 'must be random, consistent-hash or consistent-hash-client-port');
  }
  if (parsed === 'random') return RANDOM;
  if (consistentHashProblem !== undefined) return refused('LoadBalancing', consistentHashProblem);
  if (scheme.kind === 'unlisted' && scheme.owned !== undefined) {
    return refused('LoadBalancing', 'connections to ports owned by pods are not spread');
  }
  if (affinitySeconds === 0) return { ...RANDOM, consistentHash: parsed };
  // Affinity entries of one node would send clients elsewhere than the hash of other nodes does.
  const warning =
    'spec.sessionAffinity: ClientIP is replaced by consistent hashing of the client address';
  return { ...RANDOM, consistentHash: 'client-address', warnings: [warning] };
}
