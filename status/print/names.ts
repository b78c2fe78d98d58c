/** Names of rows for `-o name`, in the form `kind/namespace/name`. Pure. */
import { socketAddress } from '../../api/addresses.ts';
import type { PolicySummary } from '../api/policies.ts';
import type { EndpointStatus, RouteStatus } from '../api/services.ts';

/** `service/shop/web` */
export function nameOfService(row: { readonly namespace: string; readonly name: string }): string {
  return `service/${row.namespace}/${row.name}`;
}

/** `endpoint/shop/web/10.244.1.5:8080`; without a port for all-ports Services. */
export function nameOfEndpoint({ service, address, port }: EndpointStatus): string {
  return `endpoint/${service}/${socketAddress(address, port ?? undefined)}`;
}

/** `route/shop/web/10.96.0.10/80/TCP`, `route/voice/sip/10.96.0.20/all`, `route/shop/web/nodePort/30080/TCP`. */
export function nameOfRoute({ service, vip, ports }: RouteStatus): string {
  return `route/${service}/${vip ?? 'nodePort'}/${ports}`;
}

/** `networkpolicy/shop/web`; `adminnetworkpolicy/cluster` for kinds without a namespace. */
export function nameOfPolicy({ kind, namespace, name }: PolicySummary): string {
  return [kind.toLowerCase(), namespace, name].filter((part) => part !== '').join('/');
}

/** A policy's `NAMESPACE/NAME` or `NAME`, without the kind that `nameOfPolicy` puts before it. */
export function withoutPolicyKind(given: string): string {
  // A namespace may have the name of a kind.
  return given.replace(
    /^(?:networkpolicy\/(?=.+\/)|(?:adminnetworkpolicy|baselineadminnetworkpolicy|clusternetworkpolicy)\/(?=[^/]+$))/,
    '',
  );
}
