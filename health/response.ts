/** Responses of the health servers, compatible with kube-proxy's. */
import type { RequestListener, ServerResponse } from 'node:http';
import type { ServiceHealth } from '../services/service-health.ts';
import type { HealthReport, ProxyHealth } from './proxy-health.ts';

/** One response of a health server. */
export interface HealthResponse {
  readonly code: 200 | 503;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

type ProxyPath = '/healthz' | '/livez';

const HEADERS = { 'Content-Type': 'application/json', 'X-Content-Type-Options': 'nosniff' };
/** Go's zero time. */
const GO_ZERO_TIME = '0001-01-01T00:00:00Z';

/**
 * Response to `/healthz` or `/livez`. Equals kube-proxy's byte for byte, except for fractions of
 * seconds (Go writes nanoseconds) and the field `waitingFor`. While the agent waits for its inputs or
 * its first syncs, `/healthz` fails and `waitingFor` lists what is missing. `/livez` does not fail
 * then, because a restart would not help.
 */
export function proxyResponse(path: ProxyPath, health: ProxyHealth): HealthResponse {
  const report = health.report();
  if (path === '/livez') return healthResponse(report, {}, report.healthy);
  const { nodeEligible, hasSynced, waitingFor } = health;
  const fields = { nodeEligible, ...(waitingFor.length > 0 && { waitingFor }) };
  return healthResponse(report, fields, report.healthy && nodeEligible && hasSynced);
}

/** Fields of `/healthz` only. */
interface HealthzFields {
  readonly nodeEligible?: boolean;
  readonly waitingFor?: readonly string[];
}

function healthResponse(
  report: HealthReport,
  { nodeEligible, waitingFor }: HealthzFields,
  isGood: boolean,
): HealthResponse {
  // `healthy` describes the proxy only. An ineligible node, or a missing first sync, shows in the
  // status code. A good response has the current time as lastUpdated, as in kube-proxy: older
  // clients take an old time for a hung proxy.
  const lastUpdated = isGood ? report.currentTime : report.lastUpdated;
  const body = JSON.stringify({
    lastUpdated: lastUpdated ?? GO_ZERO_TIME,
    currentTime: report.currentTime,
    nodeEligible,
    healthy: report.healthy,
    status: report.status.size === 0 ? undefined : Object.fromEntries(report.status),
    waitingFor,
  });
  return { code: isGood ? 200 : 503, headers: HEADERS, body };
}

/** Response of a healthCheckNodePort, byte for byte as kube-proxy's. */
export function serviceResponse(
  { serviceKey, localEndpoints }: ServiceHealth,
  serviceProxyHealthy: boolean,
): HealthResponse {
  const [namespace, name] = serviceKey.split('/');
  return {
    code: localEndpoints > 0 && serviceProxyHealthy ? 200 : 503,
    headers: { ...HEADERS, 'X-Load-Balancing-Endpoint-Weight': String(localEndpoints) },
    body: JSON.stringify(
      { service: { namespace, name }, localEndpoints, serviceProxyHealthy },
      undefined,
      '\t',
    ),
  };
}

/**
 * Serves `/healthz` and `/livez`; other paths get 404.
 * @param onResponse called for each response, for metrics.
 */
export function proxyHandler(
  health: ProxyHealth,
  onResponse: (path: ProxyPath, code: number) => void,
): RequestListener {
  return (request, response) => {
    const path = request.url?.split('?')[0];
    if (path !== '/healthz' && path !== '/livez') {
      response.writeHead(404, { ...HEADERS, 'Content-Type': 'text/plain; charset=utf-8' });
      response.end('404 page not found\n');
      return;
    }
    const found = proxyResponse(path, health);
    onResponse(path, found.code);
    sendResponse(response, found);
  };
}

export function sendResponse(
  response: ServerResponse,
  { code, headers, body }: HealthResponse,
): void {
  response.writeHead(code, headers).end(body);
}
