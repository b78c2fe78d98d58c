/** Answers of the status API about traffic, for tests of clients and of printing. */
import type { ServiceSummary } from '../../status/api/services.ts';
import type {
  FlowEntry,
  FlowEvent,
  TopList,
  TopRow,
  TrafficRates,
} from '../../status/api/traffic.ts';
import { FLOW, NOW, service } from './answers.ts';

const RATES: TrafficRates = {
  connections: 1234,
  connectionsPerSecond: 12.3,
  packetsPerSecond: 3400,
  bytesPerSecond: 2_500_000,
};
/** The first sample has no rates. */
const NO_RATES: TrafficRates = {
  connections: 3,
  connectionsPerSecond: null,
  packetsPerSecond: null,
  bytesPerSecond: null,
};

export const BUSY_SERVICES: readonly ServiceSummary[] = [
  service({ traffic: RATES }),
  service({ name: 'quiet', traffic: NO_RATES }),
];

function topRow(fields: Partial<TopRow>): TopRow {
  return {
    service: 'voice/sip',
    endpoint: null,
    protocol: null,
    port: null,
    otherPorts: false,
    ...RATES,
    total: { connections: 15_000, packets: 98_765, bytes: 7_654_321 },
    ...fields,
  };
}

const SILENT = { ...NO_RATES, total: { connections: 3, packets: null, bytes: null } };

export const TOP_ROWS: Readonly<Record<'service' | 'endpoint' | 'port', readonly TopRow[]>> = {
  service: [topRow({}), topRow({ service: 'shop/web', ...SILENT })],
  endpoint: [topRow({ endpoint: '10.244.1.5' }), topRow({ endpoint: '[fd00:10:244:2::5]:80' })],
  port: [topRow({ protocol: 'UDP', port: 20_104 }), topRow({ otherPorts: true, ...SILENT })],
};

/** @param intervalSeconds null: the first sample. */
export function topList(items: readonly TopRow[], intervalSeconds: number | null = 1): TopList {
  const sample = {
    since: '2026-03-01T11:59:58.000Z',
    sampledAt: NOW,
    intervalSeconds,
    countsBytes: true,
    notes: [],
  };
  return { items, total: items.length, continue: null, sample };
}

function flowEvent({
  flow,
  ...fields
}: Partial<Omit<FlowEvent, 'flow'>> & { flow?: Partial<FlowEntry> }): FlowEvent {
  const own = { at: NOW, event: 'opened', service: 'shop/web', reason: '', policies: [] } as const;
  return { ...own, ...fields, flow: { ...FLOW, ...flow } };
}

export const FLOWS: readonly FlowEvent[] = [
  flowEvent({}),
  flowEvent({ event: 'closed', flow: { packets: 1, bytes: 4096, masqueraded: true, stale: true } }),
  flowEvent({
    event: 'rejected',
    reason: 'no endpoint',
    flow: {
      family: 'IPv6',
      source: 'fd00:10:244::1',
      destination: 'fd00:10:96::a',
      endpoint: 'fd00:10:96::a',
      endpointPort: 80,
    },
  }),
  flowEvent({
    event: 'denied',
    service: null,
    reason: 'network policy (tier NetworkPolicy, ingress)',
    flow: {
      protocol: 'ICMP',
      sourcePort: 0,
      destinationPort: 0,
      endpoint: '10.96.0.11',
      endpointPort: 0,
    },
  }),
];
