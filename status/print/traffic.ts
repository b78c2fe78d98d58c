/** Tables of traffic: connections, rates and live flows. Pure. */
import { socketAddress } from '../../api/addresses.ts';
import type {
  FlowEntry,
  FlowEvent,
  FlowNotice,
  TopRow,
  TrafficRates,
  TrafficSample,
} from '../api/traffic.ts';
import { ofServices } from './lists.ts';
import { safe } from './style.ts';
import type { Column } from './table.ts';
import { counted, humanBytes, humanNumber, NONE, UNKNOWN } from './units.ts';

/** Columns of rates, of anything that has them. @param ratesOf undefined if the agent sent none. */
function rateColumns<Row>(ratesOf: (row: Row) => TrafficRates | undefined): readonly Column<Row>[] {
  const column = (
    header: string,
    field: keyof TrafficRates,
    text: (value: number | null) => string,
  ): Column<Row> => ({
    header,
    cell: (row) => text(ratesOf(row)?.[field] ?? null),
    sortKey: (row) => ratesOf(row)?.[field] ?? -1,
  });
  return [
    column('CONNECTIONS', 'connections', (value) => `${value ?? UNKNOWN}`),
    column('NEW/S', 'connectionsPerSecond', humanNumber),
    column('PACKETS/S', 'packetsPerSecond', humanNumber),
    column('BYTES/S', 'bytesPerSecond', humanBytes),
  ];
}

/** Columns that `--traffic` adds to Services and endpoints. */
export const TRAFFIC_COLUMNS = rateColumns<{ readonly traffic?: TrafficRates }>(
  ({ traffic }) => traffic,
);

const ENDPOINT: Column<TopRow> = { header: 'ENDPOINT', cell: ({ endpoint }) => endpoint ?? NONE };
const PORT: Column<TopRow> = {
  header: 'PORT',
  cell: ({ protocol, port, otherPorts }) => (otherPorts ? 'others' : `${port}/${protocol}`),
};
const MEASURED: readonly Column<TopRow>[] = [
  ...rateColumns<TopRow>((row) => row),
  { header: 'TOTAL', cell: ({ total }) => humanNumber(total.connections), wide: true },
  { header: 'PACKETS', cell: ({ total }) => humanNumber(total.packets), wide: true },
  { header: 'BYTES', cell: ({ total }) => humanBytes(total.bytes), wide: true },
];

/** Columns of the busiest, by what is measured. Wide: totals since the agent counts. */
export const TOP_COLUMNS = {
  service: ofServices(MEASURED),
  endpoint: ofServices([ENDPOINT, ...MEASURED]),
  port: ofServices([PORT, ...MEASURED]),
} as const;

/** What the user should know about a sample. */
export function sampleNotes({ intervalSeconds, notes }: TrafficSample): string[] {
  const waiting = intervalSeconds === null ? ['no rates yet: the agent has one sample'] : [];
  return [...waiting, ...notes].map(safe);
}

/** Columns of live flows. */
export const FLOW_COLUMNS: readonly Column<FlowEvent>[] = [
  { header: 'TIME', cell: ({ at }) => at, width: 24 },
  { header: 'EVENT', cell: ({ event }) => event, isState: true, width: 8 },
  { header: 'SERVICE', cell: ({ service }) => service ?? NONE, width: 20 },
  { header: 'PROTOCOL', cell: ({ flow }) => flow.protocol },
  { header: 'SOURCE', cell: ({ flow }) => address(flow.source, flow.sourcePort), width: 21 },
  {
    header: 'DESTINATION',
    cell: ({ flow }) => address(flow.destination, flow.destinationPort),
    width: 21,
  },
  {
    header: 'ENDPOINT',
    width: 21,
    cell: ({ flow }) => (isTranslated(flow) ? address(flow.endpoint, flow.endpointPort) : NONE),
  },
  { header: 'DETAIL', cell: detailText },
];

/** @param port 0 for protocols without ports. */
function address(ip: string, port: number): string {
  return socketAddress(ip, port === 0 ? undefined : port);
}

function isTranslated({ destination, destinationPort, endpoint, endpointPort }: FlowEntry) {
  return destination !== endpoint || destinationPort !== endpointPort;
}

/** The reason; for a connection, what is special about it and what it has transferred. */
function detailText({ event, reason, flow }: FlowEvent): string {
  const { packets, bytes, masqueraded, stale } = flow;
  const parts = [
    ...(reason === '' ? [] : [reason]),
    ...(masqueraded ? ['masqueraded'] : []),
    ...(stale ? ['stale endpoint'] : []),
    ...(event !== 'closed' || packets === null ? [] : [counted(packets, 'packet')]),
    ...(event !== 'closed' || bytes === null ? [] : [humanBytes(bytes)]),
  ];
  return parts.join(', ') || NONE;
}

/** The line before flows whose times may be late. */
export function lateText({ at, seconds = 0 }: Pick<FlowNotice, 'at' | 'seconds'>): string {
  return `${safe(at)}   the agent was stopped or busy for ${seconds} s: the next times may be as much too late\n`;
}

/** The line that stands where flows are missing. */
export function lostText({ at, lost }: Pick<FlowNotice, 'at' | 'lost'>): string {
  return `${safe(at)}   ${counted(lost, 'flow')} not shown: the kernel or this command was too slow\n`;
}
