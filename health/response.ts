/** What the health servers answer, to the byte as kube-proxy does. */
import type { RequestListener, ServerResponse } from 'node:http';
import type { ServiceHealth } from '../services/service-health.ts';
import type { HealthReport, ProxyHealth } from './proxy-health.ts';

/** One answer of a health server, before it goes over the wire. */
export interface HealthResponse {
  readonly code: 200 | 503;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

type ProxyPath = '/healthz' | '/livez';

const HEADERS = { 'Content-Type': 'application/json', 'X-Content-Type-Options': 'nosniff' };
/** How Go writes a time that was never set. */
const GO_ZERO_TIME = '0001-01-01T00:00:00Z';

/**
 * As kube-proxy answers, to the byte but for the fractions of seconds (Go writes nanoseconds), once every
 * family has synced. Until then `/healthz` is bad, with a field more that says what it waits for;
 * `/livez` is not, for a restart brings nothing closer.
 */
export function proxyResponse(path: ProxyPath, health: ProxyHealth): HealthResponse {
  const report = health.report();
  if (path === '/livez') return healthResponse(report, {}, report.healthy);
  const { nodeEligible, hasSynced, waitingFor } = health;
  const more = { nodeEligible, ...(waitingFor.length > 0 && { waitingFor }) };
  return healthResponse(report, more, report.healthy && nodeEligible && hasSynced);
}

/** What only `/healthz` tells. */
interface HealthzFields {
  readonly nodeEligible?: boolean;
  readonly waitingFor?: readonly string[];
}

function healthResponse(
  report: HealthReport,
  { nodeEligible, waitingFor }: HealthzFields,
  isGood: boolean,
): HealthResponse {
  // "healthy" is the proxy's alone; a node that is not eligible shows in the code, and so does one that
  // waits for its first sync. A good answer is as of now: readers of old took a time that stands still
  // for a proxy that hangs.
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

/** As kube-proxy's healthCheckNodePort answers, to the byte. */
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
 * `/healthz` and `/livez`; anything else is not found.
 * @param onAnswer hears of each answer, to count it.
 */
export function proxyHandler(
  health: ProxyHealth,
  onAnswer: (path: ProxyPath, code: number) => void,
): RequestListener {
  return (request, response) => {
    const path = request.url?.split('?')[0];
    if (path !== '/healthz' && path !== '/livez') {
      response.writeHead(404, { ...HEADERS, 'Content-Type': 'text/plain; charset=utf-8' });
      response.end('404 page not found\n');
      return;
    }
    const found = proxyResponse(path, health);
    onAnswer(path, found.code);
    sendResponse(response, found);
  };
}

export function sendResponse(
  response: ServerResponse,
  { code, headers, body }: HealthResponse,
): void {
  response.writeHead(code, headers).end(body);
}
