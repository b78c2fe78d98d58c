/** Metrics of the requests to the API server. */
import type { Define } from './define.ts';

/** What becomes of one request. */
interface ApiRequest {
  /** `GET`, `POST`, ... */
  readonly method: string;
  /** Name and port of the server. */
  readonly host: string;
  /** HTTP status; undefined when there was no answer. */
  readonly code: number | undefined;
  /** Until the answer began, or was given up. */
  readonly seconds: number;
}

/**
 * Hears what the session with the API server does. `resource` is the last part of a path:
 * `services`.
 */
export interface ApiObserver {
  request(request: ApiRequest): void;
  watching(resource: string, isOpen: boolean): void;
  /** A list was read, a watch brought something, or the server was asked and had nothing to bring. */
  current(resource: string): void;
  /** It is of a CRD that is not installed, so that nobody can watch it. */
  absent(resource: string): void;
  /** Objects of it had changed, and a watch that was open did not tell. */
  deaf(resource: string): void;
}

const KINDS: Readonly<Record<string, string>> = {
  services: 'Service',
  endpointslices: 'EndpointSlice',
  nodes: 'Node',
  pods: 'Pod',
  namespaces: 'Namespace',
  cidrgroups: 'CIDRGroup',
  networkpolicies: 'NetworkPolicy',
  adminnetworkpolicies: 'AdminNetworkPolicy',
  baselineadminnetworkpolicies: 'BaselineAdminNetworkPolicy',
  clusternetworkpolicies: 'ClusterNetworkPolicy',
};
/** client-go's, for all Kubernetes components. */
const REQUEST_BUCKETS = [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60];

/** `rest_client_*` are client-go's (component-base/metrics/prometheus/restclient). */
export function apiServerMetrics({ counter, gauge, histogram }: Define): ApiObserver {
  const requests = counter(
    'rest_client_requests_total',
    'Requests to the API server so far, by HTTP status, method and host',
    ['code', 'method', 'host'],
  );
  const requestSeconds = histogram(
    'rest_client_request_duration_seconds',
    'Seconds until the API server began to answer, by method and host',
    REQUEST_BUCKETS,
    ['verb', 'host'],
  );
  const watches = gauge(
    'portwide_api_watch_state',
    '1 while a watch is open, otherwise 0; also 0 if it is silent and cannot be renewed',
    ['kind'],
  );
  const lastEvent = gauge(
    'portwide_api_last_event_timestamp_seconds',
    'When a watch last brought something, or the API server was asked and had nothing to bring',
    ['kind'],
  );
  const deaf = counter(
    'portwide_api_deaf_watches_total',
    'Times that objects had changed on the API server and an open watch did not tell',
    ['kind'],
  );
  const kindOf = (resource: string) => KINDS[resource] ?? resource;
  return {
    request({ method, host, code, seconds }) {
      // client-go's word for a request that got no answer.
      requests.inc({ code: code ?? '<error>', method, host });
      requestSeconds.observe({ verb: method, host }, seconds);
    },
    watching(resource, isOpen) {
      const kind = kindOf(resource);
      watches.set({ kind }, isOpen ? 1 : 0);
      // A counter that begins with 1 has not increased, as Prometheus sees it.
      deaf.inc({ kind }, 0);
    },
    current(resource) {
      lastEvent.setToCurrentTime({ kind: kindOf(resource) });
    },
    absent(resource) {
      for (const metric of [watches, lastEvent]) metric.remove({ kind: kindOf(resource) });
    },
    deaf(resource) {
      deaf.inc({ kind: kindOf(resource) });
    },
  };
}
