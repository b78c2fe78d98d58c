import type { IpFamily, ObjectKey } from '../api/objects.ts';
import type { Route } from './route.ts';

/** A TCP node port as it is served on the loopback address in one family, for modes whose rules cannot (KEP-6032). */
export interface LocalhostNodePort {
  /** Of the Route. */
  readonly id: string;
  readonly serviceKey: ObjectKey;
  readonly family: IpFamily;
  /** 0: it is not to be served any more. */
  readonly port: number;
  /** Those of the external traffic policy. */
  readonly endpoints: readonly { readonly address: string; readonly port: number }[];
  /** Seconds; 0 for no session affinity. */
  readonly affinitySeconds: number;
}

/**
 * What of a Route is to be served on the loopback address, as KEP-6032 has it: TCP alone, and with external traffic
 * policy Local only while this node has endpoints.
 * @returns undefined when there is nothing to listen for, so that the kernel refuses connections.
 */
export function localhostNodePort(route: Route): LocalhostNodePort | undefined {
  const { id, serviceKey, family, match, nodePort, affinitySeconds } = route;
  if (nodePort === 0 || match.kind !== 'port' || match.protocol !== 'TCP') return undefined;
  const usable = route.externalLocal ? route.localEndpoints : route.clusterEndpoints;
  const endpoints = usable.flatMap(({ address, port }) =>
    port === undefined ? [] : [{ address, port }],
  );
  if (endpoints.length === 0) return undefined;
  return { id, serviceKey, family, port: nodePort, endpoints, affinitySeconds };
}
