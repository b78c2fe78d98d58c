/** Tables of Services, endpoints, Routes and policies. Pure. */
import { socketAddress } from '../../api/addresses.ts';
import type { EndpointDecision } from '../../endpoints/explain.ts';
import type { PolicySummary } from '../api/policies.ts';
import type {
  EndpointCounts,
  EndpointStatus,
  RouteStatus,
  ServiceSummary,
} from '../api/services.ts';
import type { Column } from './table.ts';
import { age, humanDuration, listText, NONE, shortList } from './units.ts';

const DELETED = 'deleted';

export const SERVICE_COLUMNS: readonly Column<ServiceSummary>[] = [
  { header: 'NAMESPACE', cell: ({ namespace }) => namespace, ofAllNamespaces: true },
  { header: 'NAME', cell: ({ name }) => name },
  { header: 'TYPE', cell: ({ type }) => type },
  { header: 'STATE', cell: ({ state }) => state, isState: true, deleted: DELETED },
  {
    header: 'VIPS',
    cell: (row) => listText(row.state === 'refused' ? row.refusedVips : markedVips(row)),
  },
  { header: 'PORTS', cell: ({ ports }) => listText(ports) },
  {
    header: 'READY',
    ...podCount(
      ({ ready }) => ready,
      ({ ready, terminating, notReady }) => `${ready}/${ready + terminating + notReady}`,
    ),
  },
  { header: 'LOCAL', ...podCount(({ local }) => local) },
  { header: 'TERMINATING', wide: true, ...podCount(({ terminating }) => terminating) },
  {
    header: 'AFFINITY',
    wide: true,
    cell: ({ affinitySeconds }) => affinityText(affinitySeconds),
    sortKey: ({ affinitySeconds }) => affinitySeconds,
  },
  {
    header: 'INTERNAL-POLICY',
    wide: true,
    cell: ({ internalTrafficPolicy }) => internalTrafficPolicy,
  },
  {
    header: 'EXTERNAL-POLICY',
    wide: true,
    cell: ({ externalTrafficPolicy }) => externalTrafficPolicy,
  },
  {
    header: 'AGE',
    cell: ({ created }, now) => age(created, now),
    // The youngest first, as an age sorts.
    sortKey: ({ created }) => (created === null ? Number.POSITIVE_INFINITY : -Date.parse(created)),
  },
];

/** VIPs, the refused ones marked. */
export function markedVips({ vips, refusedVips }: ServiceSummary): string[] {
  return [...vips, ...refusedVips.map((vip) => `${vip} (refused)`)];
}

/** Counts a pod with addresses of both families once, as kubectl does. Names the families if they differ. */
function podCount(
  value: (counts: EndpointCounts) => number,
  text: (counts: EndpointCounts) => string = (counts) => `${value(counts)}`,
): Pick<Column<ServiceSummary>, 'cell' | 'sortKey'> {
  return {
    cell: ({ endpoints, familyEndpoints: both }) => {
      // An older agent does not report it.
      if (both == null) return text(endpoints);
      const [four, six] = [text(both.IPv4), text(both.IPv6)];
      return four === six ? four : `IPv4:${four},IPv6:${six}`;
    },
    sortKey: ({ endpoints, familyEndpoints: both }) =>
      both == null ? value(endpoints) : Math.max(value(both.IPv4), value(both.IPv6)),
  };
}

/** The timeout of session affinity. @param seconds 0 without session affinity. */
export function affinityText(seconds: number): string {
  return seconds === 0 ? NONE : humanDuration(seconds);
}

/** Columns of the endpoints of one Service. */
export const ENDPOINT_COLUMNS: readonly Column<EndpointStatus>[] = [
  { header: 'ENDPOINT', cell: endpointAddress },
  { header: 'PORT', cell: ({ portName }) => portName || NONE, wide: true },
  { header: 'STATE', cell: endpointState, isState: true, deleted: DELETED },
  { header: 'USED', cell: usedText, isState: true },
  { header: 'REASON', cell: reasonText },
  { header: 'OWNED-PORTS', cell: ({ ownedPorts }) => ownedPorts ?? NONE, wide: true },
  { header: 'NODE', cell: ({ node, local }) => (local ? `${node} (this)` : (node ?? NONE)) },
  { header: 'ZONE', cell: ({ zone }) => zone ?? NONE, wide: true },
  {
    header: 'HINTS',
    cell: ({ zoneHints, nodeHints }) => listText([...zoneHints, ...nodeHints]),
    wide: true,
  },
];

export const LISTED_ENDPOINT_COLUMNS = ofServices(ENDPOINT_COLUMNS);

/** Columns of the Routes of one Service. */
export const ROUTE_COLUMNS: readonly Column<RouteStatus>[] = [
  { header: 'KIND', cell: ({ kind }) => kind },
  { header: 'VIP', cell: ({ vip }) => vip ?? '<node>' },
  {
    header: 'PORTS',
    cell: ({ ports, portsPerPod }) =>
      portsPerPod === null ? ports : `${ports} (${portsPerPod} per pod)`,
  },
  {
    header: 'ENDPOINTS',
    cell: ({ endpoints }) => shortList(endpoints),
    deleted: DELETED,
    sortKey: ({ endpoints }) => endpoints.length,
  },
  { header: 'OTHERWISE', cell: ({ otherwise }) => otherwise ?? NONE },
  {
    header: 'FROM-PODS-AND-NODE',
    cell: ({ podAndNodeEndpoints }) =>
      podAndNodeEndpoints === null ? '<same>' : shortList(podAndNodeEndpoints),
    wide: true,
  },
  { header: 'MASQUERADE', cell: ({ masquerade }) => masquerade, wide: true },
  {
    header: 'SOURCES',
    cell: ({ sourceRanges }) => (sourceRanges === null ? '<all>' : listText(sourceRanges)),
    wide: true,
  },
  {
    header: 'AFFINITY',
    // An older agent reports no hash.
    cell: ({ affinitySeconds, consistentHash }) =>
      consistentHash == null ? affinityText(affinitySeconds) : `hash of ${consistentHash}`,
    sortKey: ({ affinitySeconds }) => affinitySeconds,
    wide: true,
  },
];

export const LISTED_ROUTE_COLUMNS = ofServices(ROUTE_COLUMNS);

/** Network policies in order of evaluation. A direction without a number is not restricted by the policy. */
export const POLICY_COLUMNS: readonly Column<PolicySummary>[] = [
  { header: 'NAMESPACE', cell: ({ namespace }) => namespace || NONE, ofAllNamespaces: true },
  { header: 'NAME', cell: ({ name }) => name },
  { header: 'KIND', cell: ({ kind }) => kind },
  { header: 'TIER', cell: ({ tier }) => tier, wide: true },
  {
    header: 'PRIORITY',
    cell: ({ priority }) => `${priority}`,
    sortKey: ({ priority }) => priority,
    wide: true,
  },
  { header: 'INGRESS', ...rules(({ ingressRules }) => ingressRules) },
  { header: 'EGRESS', ...rules(({ egressRules }) => egressRules) },
  {
    header: 'PODS',
    cell: ({ localPods }) => `${localPods}`,
    sortKey: ({ localPods }) => localPods,
  },
  { header: 'STATE', cell: ({ state }) => state, isState: true, deleted: DELETED },
  {
    header: 'FAULTS',
    cell: ({ faults }) =>
      faults.length === 0
        ? NONE
        : faults.map(({ field, reason }) => `${field}: ${reason}`).join('; '),
  },
];

function rules(count: (row: PolicySummary) => number | null) {
  return {
    cell: (row: PolicySummary) => `${count(row) ?? NONE}`,
    sortKey: (row: PolicySummary) => count(row) ?? -1,
  };
}

/** Adds columns for the Service of each row. */
export function ofServices<Row extends { readonly service: string }>(
  columns: readonly Column<Row>[],
): readonly Column<Row>[] {
  const part = (row: Row, index: 0 | 1) => row.service.split('/')[index] ?? '';
  return [
    { header: 'NAMESPACE', cell: (row) => part(row, 0), ofAllNamespaces: true },
    { header: 'SERVICE', cell: (row) => part(row, 1) },
    ...columns,
  ];
}

/** `10.244.0.5:8080`, or `10.244.0.5` for all-ports Services. */
function endpointAddress({ address, port }: EndpointStatus): string {
  return port === null ? address : socketAddress(address, port);
}

function endpointState({ ready, serving, terminating }: EndpointStatus): string {
  if (ready) return 'ready';
  return terminating && serving ? 'terminating' : 'notReady';
}

/** The decisions for the traffic policies that the Service uses, by name. */
function decisions({ cluster, localPolicy }: EndpointStatus): [string, EndpointDecision][] {
  const all: [string, EndpointDecision][] = [
    ['Cluster', cluster],
    ['Local', localPolicy],
  ];
  return all.filter(([, { reason }]) => reason !== 'traffic policy not in use');
}

function usedText(endpoint: EndpointStatus): string {
  const all = decisions(endpoint);
  const used = all.filter(([, decision]) => decision.used);
  if (used.length === 0) return 'no';
  return used.length === all.length ? 'yes' : `${used[0]?.[0]} only`;
}

function reasonText(endpoint: EndpointStatus): string {
  const all = decisions(endpoint);
  const reasons = new Set(all.map(([, { reason }]) => reason));
  if (reasons.size <= 1) return [...reasons].join() || NONE;
  return all.map(([policy, { reason }]) => `${policy}: ${reason}`).join('; ');
}
