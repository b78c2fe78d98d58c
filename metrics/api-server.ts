/** Metrics of requests to the API server. */
import type { SourceObserver } from '../sources/kubernetes/source.ts';
import type { MetricDefiner } from './define.ts';

/** client-go's buckets, the same for all Kubernetes components. */
const REQUEST_BUCKETS = [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60];

/**
 * Turns the events of a source into metrics. `rest_client_*` are client-go's metrics
 * (component-base/metrics/prometheus/restclient).
 */
export function apiServerMetrics({ counter, gauge, histogram }: MetricDefiner): SourceObserver {
  const requests = counter(
    'rest_client_requests_total',
    'Number of HTTP requests, partitioned by status code, method, and host.',
    ['code', 'method', 'host'],
  );
  const requestSeconds = histogram(
    'rest_client_request_duration_seconds',
    'Request latency in seconds, until the API server began to respond. Broken down by verb, and host.',
    REQUEST_BUCKETS,
    ['verb', 'host'],
  );
  const watches = gauge(
    'portwide_api_watch_state',
    '1 while a watch is open, otherwise 0. Also 0 if the watch is silent and cannot be renewed.',
    ['kind'],
  );
  const lastEvent = gauge(
    'portwide_api_last_event_timestamp_seconds',
    'Unix time of the last event of a watch, or of the last list that found no changes.',
    ['kind'],
  );
  const staleWatches = counter(
    'portwide_api_stalled_watches_total',
    'Total number of times that a list found changes which an open watch had not delivered.',
    ['kind'],
  );
  return {
    request({ method, host, code, seconds }) {
      // client-go's label value for a request without a response.
      requests.inc({ code: code ?? '<error>', method, host });
      requestSeconds.observe({ verb: method, host }, seconds);
    },
    watchOpen(kind, isOpen) {
      watches.set({ kind }, isOpen ? 1 : 0);
      // Start at 0: Prometheus does not see an increase if the first sample is 1.
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
