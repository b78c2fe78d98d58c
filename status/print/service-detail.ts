/** The output of `portwide describe service`. Pure. */

import { socketAddress } from '../../api/addresses.ts';
import type { HashInput } from '../../api/load-balancing.ts';
import type { KernelObject } from '../api/kernel.ts';
import type { ServiceDetail, ServiceEvent } from '../api/services.ts';
import type { FlowEntry } from '../api/traffic.ts';
import { markedLines, objectText } from './kernel-diff.ts';
import { affinityText, ENDPOINT_COLUMNS, markedVips, ROUTE_COLUMNS } from './lists.ts';
import { problemLines } from './node-status.ts';
import { ownedPortSections } from './owned-ports.ts';
import { linesOf, type Section, sectionsText } from './sections.ts';
import { type Style, safe } from './style.ts';
import { type Column, tableText } from './table.ts';
import { age, counted, listText, NONE } from './units.ts';

const SLICE_COLUMNS: readonly Column<ServiceDetail['objects']['slices'][number]>[] = [
  { header: 'ENDPOINTSLICE', cell: ({ name }) => name },
  { header: 'FAMILY', cell: ({ family }) => family },
  { header: 'ENDPOINTS', cell: ({ endpoints }) => `${endpoints}` },
  { header: 'PORTS', cell: ({ ports }) => listText(ports) },
];

const EVENT_COLUMNS: readonly Column<ServiceEvent>[] = [
  { header: 'TYPE', cell: ({ type }) => type, isState: true },
  { header: 'REASON', cell: ({ reason }) => reason },
  { header: 'AGE', cell: ({ at }, now) => age(at, now) },
  { header: 'MESSAGE', cell: ({ message }) => message },
];

const CONNECTION_COLUMNS: readonly Column<FlowEntry>[] = [
  { header: 'PROTOCOL', cell: ({ protocol }) => protocol },
  { header: 'SOURCE', cell: ({ source, sourcePort }) => socketAddress(source, sourcePort) },
  {
    header: 'DESTINATION',
    cell: ({ destination, destinationPort }) => socketAddress(destination, destinationPort),
  },
  {
    header: 'ENDPOINT',
    cell: ({ endpoint, endpointPort }) => socketAddress(endpoint, endpointPort),
  },
  { header: 'STATE', cell: ({ state }) => state ?? NONE },
  { header: 'STALE', cell: ({ stale }) => (stale ? 'yes, not an endpoint any longer' : 'no') },
];

/** Connections of a busy Service would hide the rest. */
const MAX_CONNECTIONS = 10;

/**
 * @param now milliseconds since 1970.
 * @param isWide prints all connections of the answer.
 */
export function serviceDetailText(
  detail: ServiceDetail,
  now: number,
  style: Style,
  isWide = false,
): string {
  const { summary, objects, problems, endpoints, routes, healthCheck, events } = detail;
  const table = <Row>(columns: readonly Column<Row>[], rows: readonly Row[]) =>
    rows.length === 0 ? [] : linesOf(tableText(columns, rows, now, { style }));
  const sections: Section[] = [
    ['Name', safe(summary.name)],
    ['Namespace', safe(summary.namespace)],
    ['State', style(summary.state)],
    ['Problems', problemLines(problems.map((problem) => ({ ...problem, object: null })))],
    ['Type', summary.type],
    ['UID', safe(objects.uid)],
    ['Age', age(summary.created, now)],
    ...annotations(objects).map((text) => ['Annotation', text] as const),
    ...(objects.allPorts === null ? [] : [['All ports', `${objects.allPorts}`] as const]),
    ['Ports', safe(listText(summary.ports))],
    ['VIPs', safe(listText(markedVips(summary)))],
    ['Internal traffic policy', summary.internalTrafficPolicy],
    ['External traffic policy', summary.externalTrafficPolicy],
    ['Session affinity', affinityText(summary.affinitySeconds)],
    ...hashSection(routes),
    ['Health check', healthCheckText(healthCheck)],
    ['EndpointSlices', table(SLICE_COLUMNS, objects.slices)],
    ['Endpoints', withRest(table(ENDPOINT_COLUMNS, endpoints), endpoints.length, total(detail))],
    ['Routes', table(ROUTE_COLUMNS, routes)],
    ...ownedPortSections(detail.ownedPorts, table),
    ['Kernel objects', kernelLines(detail, style)],
    ['Connections', connectionLines(detail, isWide, table)],
    ['Events', table(EVENT_COLUMNS, events)],
  ];
  return sectionsText(sections);
}

const HASHES: Readonly<Record<HashInput, string>> = {
  'client-address': 'consistent hash of the client address',
  'client-address-and-port': 'consistent hash of the client address and port',
};

/** All Routes of a Service are alike. An older agent reports no hash. */
function hashSection([route]: ServiceDetail['routes']): Section[] {
  const hash = route?.consistentHash;
  return hash == null ? [] : [['Load balancing', HASHES[hash]]];
}

/** At least one text. */
function annotations(objects: ServiceDetail['objects']): string[] {
  const { annotation, ownedPortsAnnotation, portsPerPodAnnotation, loadBalancingAnnotation } =
    objects;
  const all = [
    ['portwide.dev/ports', annotation],
    ['portwide.dev/owned-ports', ownedPortsAnnotation],
    ['portwide.dev/ports-per-pod', portsPerPodAnnotation],
    ['portwide.dev/load-balancing', loadBalancingAnnotation],
  ] as const;
  // An older agent does not report every annotation.
  const texts = all.flatMap(([name, value]) => (value == null ? [] : [safe(`${name}: ${value}`)]));
  return texts.length === 0 ? [''] : texts;
}

/** A lower bound: Services with several ports have an endpoint in each. */
function total({ summary, endpoints }: ServiceDetail): number {
  const { ready, terminating, notReady } = summary.endpoints;
  return Math.max(endpoints.length, ready + terminating + notReady);
}

function withRest(lines: string[], shown: number, all: number, advice = ''): string[] {
  return shown < all && shown > 0 ? [...lines, `and ${all - shown} more${advice}`] : lines;
}

function healthCheckText(check: ServiceDetail['healthCheck']): string {
  if (check === null) return NONE;
  const effect = check.localEndpoints > 0 ? '' : ', so load balancers skip this node';
  return `node port ${check.port}: ${counted(check.localEndpoints, 'local endpoint')}${effect}`;
}

/** Objects that differ come first, with both values. */
function kernelLines(detail: ServiceDetail, style: Style): string[] {
  const { kernel, kernelTotal, kernelDifferent, kernelStable } = detail;
  const isOk = ({ state }: KernelObject) => state === 'ok';
  const wrong = kernel.filter((object) => !isOk(object));
  if (kernelTotal === 0) return [];
  const progress = kernelStable ? '' : '; syncs ran during the comparison';
  const title = (object: KernelObject) => objectText({ ...object, service: null }, style);
  const lines = [
    `${kernelTotal}, ${kernelDifferent === 0 ? 'all' : `${kernelDifferent} not`} as they should be${progress}`,
    ...wrong.flatMap((object) => [
      `! ${title(object)}`,
      ...markedLines('    kernel:  ', object.actual ?? NONE),
      ...markedLines('    desired: ', object.desired ?? NONE),
    ]),
    ...kernel
      .filter(isOk)
      .flatMap((object) => [`  ${title(object)}`, ...markedLines('    ', object.actual)]),
  ];
  return withRest(lines, kernel.length, kernelTotal);
}

/** Stale connections come first. */
function connectionLines(
  { connections, ownedPorts }: ServiceDetail,
  isWide: boolean,
  table: (columns: readonly Column<FlowEntry>[], rows: readonly FlowEntry[]) => string[],
): string | string[] {
  if (connections === null) return '<unknown>';
  const { total: all, entries } = connections;
  const hasOwnedUdp = ownedPorts.some(({ ports }) => ports.some((text) => text.endsWith('/UDP')));
  const untracked = hasOwnedUdp
    ? ['UDP of owned ports is not tracked: no entries, no counters']
    : [];
  const shown = entries
    .toSorted((a, b) => Number(b.stale) - Number(a.stale))
    .slice(0, isWide ? undefined : MAX_CONNECTIONS);
  const more = shown.length < entries.length ? ` (-o wide lists ${entries.length})` : '';
  return [...withRest(table(CONNECTION_COLUMNS, shown), shown.length, all, more), ...untracked];
}
