/** Ports owned by pods as resources of the status API. Pure. */
import { type OwnedPorts, sliceCount } from '../../api/owned-ports.ts';
import { type PortRange, rangeText } from '../../api/ports.ts';
import type { EndpointWithoutSlice, SliceOwner } from '../../endpoints/slice-owners.ts';
import type { InspectedService } from '../../proxier/route-table.ts';
import { ownersOf } from '../../services/resolve-route.ts';
import { type OwnedSlices, type Route, vipsOf } from '../../services/route.ts';
import type { ServedPort } from '../../services/served-ports.ts';
import { vipFields } from '../../services/vip-requests.ts';
import type { VipPlan } from '../../traffic/plan.ts';
import type { OwnedPortsStatus, OwnedSliceStatus, RouteStatus } from '../api/services.ts';
import type { NodeFacts } from './services.ts';

/** Rows of slices in one answer, for each family. */
const MAX_ROWS = 500;

/** The owned ports of a Service, one entry for each family in which they are served. */
export function ownedPorts(inspected: InspectedService, node: NodeFacts): OwnedPortsStatus[] {
  const { routes, served, refusals } = inspected;
  return routes.flatMap((route): OwnedPortsStatus[] => {
    const port = served.ports.find(({ id }) => id === route.id);
    if (route.owned === undefined || port === undefined) return [];
    const { owned, family } = route;
    const rows = sliceRows(owned);
    const others = endpointsWithoutSlice(inspected, route, node);
    return [
      {
        family,
        ports: owned.ranges.map(rangeText),
        portsPerPod: owned.portsPerPod,
        udpVip: owned.udpVip ?? null,
        slices: rows.slice(0, MAX_ROWS),
        omittedSlices: Math.max(0, rows.length - MAX_ROWS),
        withoutSlice: others
          .slice(0, MAX_ROWS)
          .map(({ address, ordinal, reason }) => ({ address, ordinal: ordinal ?? null, reason })),
        portsOfOtherServices: [...owned.taken].map(([vip, ranges]) => ({
          vip,
          ports: ranges.map(rangeText),
        })),
        refusedVips: refusedVips(route, port, refusals),
      },
    ];
  });
}

/** The endpoints of a Route with owned ports that own nothing. */
export function endpointsWithoutSlice(
  { service, served, slices }: InspectedService,
  route: Route,
  { topology, pods }: NodeFacts,
): readonly EndpointWithoutSlice[] {
  const port = served.ports.find(({ id }) => id === route.id);
  if (port?.ownership === undefined) return [];
  return ownersOf(service, port, port.ownership.ports, slices, topology, pods).others;
}

function refusedVips(
  route: Route,
  port: ServedPort,
  refusals: InspectedService['refusals'],
): OwnedPortsStatus['refusedVips'] {
  const granted = vipsOf(route);
  const requested = new Set(vipFields(port).map(([, vip]) => vip));
  return [...requested]
    .filter((vip) => !granted.includes(vip))
    .map((vip) => {
      const lost = refusals.find(({ lostVip }) => lostVip?.ownsPorts && lostVip.vip === vip);
      return { vip, service: lost?.lostVip?.to ?? null };
    });
}

/** One row for each owner, and one for each run of ordinals without owner. */
function sliceRows(owned: OwnedSlices): OwnedSliceStatus[] {
  const { owners, ranges, portsPerPod } = owned;
  const end = Math.max(...ranges.map((range) => sliceCount(range, portsPerPod)));
  const rows: OwnedSliceStatus[] = [];
  let next = 0;
  const addVacant = (to: number) => {
    if (next < to) rows.push(sliceRow(owned, next, to - 1, undefined));
  };
  for (const owner of owners) {
    addVacant(owner.ordinal);
    rows.push(sliceRow(owned, owner.ordinal, owner.ordinal, owner));
    next = owner.ordinal + 1;
  }
  addVacant(end);
  return rows;
}

function sliceRow(
  owned: OwnedSlices,
  first: number,
  last: number,
  owner: SliceOwner | undefined,
): OwnedSliceStatus {
  const isReached = ({ protocol }: PortRange) => protocol !== 'UDP' || owned.udpVip !== undefined;
  const isRefused = !slicesOf(owned, first, last).some(isReached);
  const stateOfServing = isRefused ? 'refused' : 'served';
  const stateOfOwner = owner?.serves === true ? stateOfServing : 'notServing';
  return {
    firstOrdinal: first,
    lastOrdinal: last,
    ports: slicesText(owned, first, last),
    owner: owner?.address ?? null,
    state: owner === undefined ? 'vacant' : stateOfOwner,
  };
}

/** The ports of the slices `first` to `last` of each range: `20100-20199/UDP,30100-30199/TCP`. */
export function slicesText(owned: OwnedPorts, first: number, last = first): string {
  return slicesOf(owned, first, last).map(rangeText).join();
}

function slicesOf({ ranges, portsPerPod }: OwnedPorts, first: number, last: number): PortRange[] {
  return ranges.flatMap((range): PortRange[] => {
    const slices = Math.min(last + 1, sliceCount(range, portsPerPod));
    if (first >= slices) return [];
    const { protocol, from } = range;
    return [{ protocol, from: from + first * portsPerPod, to: from + slices * portsPerPod - 1 }];
  });
}

/** How ranges of owned ports read in lists: `20000-29999/UDP (100 per pod)`. */
export function ownedPortTexts({ ranges, portsPerPod }: OwnedPorts): string[] {
  return ranges.map((range) => `${rangeText(range)} (${portsPerPod} per pod)`);
}

type OwnedRouteFields = Pick<RouteStatus, 'ports' | 'endpoints' | 'masquerade' | 'portsPerPod'>;

/** The rows of one VIP: its UDP ports, which only one VIP of a family serves, and its TCP and SCTP ports. */
export function ownedRouteRows(
  { servingEndpoints }: Route,
  { ranges, portsPerPod, udpVip }: OwnedSlices,
  { vip }: Pick<VipPlan, 'vip'>,
): OwnedRouteFields[] {
  const row = (
    ofRow: readonly PortRange[],
    masquerade: RouteStatus['masquerade'],
    isServed: boolean,
  ): OwnedRouteFields[] => {
    if (ofRow.length === 0) return [];
    const endpoints = isServed ? servingEndpoints.map(({ address }) => address) : [];
    return [{ ports: ofRow.map(rangeText).join(), endpoints, masquerade, portsPerPod }];
  };
  const isUdp = ({ protocol }: PortRange) => protocol === 'UDP';
  return [
    ...row(ranges.filter(isUdp), 'none', vip === udpVip),
    ...row(
      ranges.filter((range) => !isUdp(range)),
      'remote owners',
      true,
    ),
  ];
}
