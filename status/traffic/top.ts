/** Traffic counters as resources of the status API. Pure. */
import { compareText } from '../../api/collections.ts';
import type { TopRow, TrafficRates, TrafficSample, TrafficTotals } from '../api/traffic.ts';
import { OTHER_PORTS, type TrafficCounter } from './traffic-counters.ts';

/** The rates of a counter. @param countsBytes whether the kernel counts packets and bytes. */
export function trafficRates(counter: TrafficCounter, countsBytes: boolean): TrafficRates {
  const { connections, rates } = counter.sampled;
  return {
    connections,
    connectionsPerSecond: rates?.opened ?? null,
    packetsPerSecond: countsBytes ? (rates?.packets ?? null) : null,
    bytesPerSecond: countsBytes ? (rates?.bytes ?? null) : null,
  };
}

/** The rates of a Service or endpoint without traffic: zero where a counter has a number. */
export function idleRates({
  intervalSeconds,
  countsBytes,
}: Pick<TrafficSample, 'intervalSeconds' | 'countsBytes'>): TrafficRates {
  const rate = intervalSeconds === null ? null : 0;
  return {
    connections: 0,
    connectionsPerSecond: rate,
    packetsPerSecond: countsBytes ? rate : null,
    bytesPerSecond: countsBytes ? rate : null,
  };
}

function totals(counter: TrafficCounter, countsBytes: boolean): TrafficTotals {
  const { opened, packets, bytes } = counter.sampled;
  return {
    connections: opened,
    packets: countsBytes ? packets : null,
    bytes: countsBytes ? bytes : null,
  };
}

/**
 * The busiest counters as rows: by bytes, then by new connections, then by connections; the highest first. Orders only
 * the rows that are asked for, because ordering 30,000 would block the event loop.
 */
export function topRows(
  counters: readonly TrafficCounter[],
  countsBytes: boolean,
  count: number,
): TopRow[] {
  const scores = Float64Array.from(counters, scoreOf).sort();
  const lowest = scores[Math.max(scores.length - count, 0)] ?? 0;
  const higher = counters.filter((counter) => scoreOf(counter) > lowest);
  const equal = counters.filter((counter) => scoreOf(counter) === lowest);
  return [...higher, ...equal.slice(0, Math.max(count - higher.length, 0))]
    .sort((a, b) => scoreOf(b) - scoreOf(a) || compareText(a.key.service, b.key.service))
    .map((counter) => ({
      ...nameOf(counter),
      ...trafficRates(counter, countsBytes),
      total: totals(counter, countsBytes),
    }));
}

/** Bytes dominate, then new connections. */
function scoreOf({ sampled: { rates, connections } }: TrafficCounter): number {
  return (rates?.bytes ?? 0) + (rates?.opened ?? 0) / 1e3 + connections / 1e9;
}

function nameOf({ key }: TrafficCounter) {
  const { service, endpoint = null, port } = key;
  const otherPorts = port === OTHER_PORTS;
  const [protocol, number] = port === undefined || otherPorts ? [] : port.split('/');
  return {
    service,
    endpoint,
    protocol: protocol ?? null,
    port: number === undefined ? null : Number(number),
    otherPorts,
  };
}
