/** Metrics of the requests to the API server. */
import type { SourceObserver } from '../sources/kubernetes/source.ts';
import type { MetricDefiner } from './define.ts';

/** client-go's, for all Kubernetes components. */
const REQUEST_BUCKETS = [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60];

/** Turns what a source hears of the API server into metrics. `rest_client_*` are client-go's (component-base/metrics/prometheus/restclient). */
export function apiServerMetrics({ counter, gauge, histogram }: MetricDefiner): SourceObserver {
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
  const staleWatches = counter(
    'portwide_api_deaf_watches_total',
    'Times that objects had changed on the API server and an open watch did not tell',
    ['kind'],
  );
  return {
    request({ method, host, code, seconds }) {
      // client-go's word for a request that got no answer.
      requests.inc({ code: code ?? '<error>', method, host });
      requestSeconds.observe({ verb: method, host }, seconds);
    },
    watchOpen(kind, isOpen) {
      watches.set({ kind }, isOpen ? 1 : 0);
      // A counter that begins with 1 has not increased, as Prometheus sees it.
      staleWatches.inc({ kind }, 0);
    },
    upToDate(kind) {
      lastEvent.setToCurrentTime({ kind });
    },
    notInstalled(kind) {
      for (const metric of [watches, lastEvent]) metric.remove({ kind });
    },
    watchStalled(kind) {
      staleWatches.inc({ kind });
    },
  };
}
