/** Conntrack entries as flows of Services. Pure. */
import { socketAddress } from '../../api/addresses.ts';
import type { DetailedEntry } from '../../netlink/conntrack/conntrack.ts';
import { protocolOf } from '../../netlink/core/protocol.ts';
import type { Route } from '../../services/route.ts';
import type { FlowEntry } from '../api/traffic.ts';
import type { PacketHeader } from './packet.ts';
import type { ServiceIndex } from './service-index.ts';

/** Finds Services for the original destination of entries. */
export interface Destinations {
  readonly index: ServiceIndex;
  /** Whether node ports are served on an address. */
  readonly isNodeAddress: (address: string) => boolean;
}

/** The Route of an entry; undefined for an entry that no Service translated. */
export function routeOfEntry(
  entry: Omit<DetailedEntry, 'details'>,
  { index, isNodeAddress }: Destinations,
): Route | undefined {
  const { zone, origDst, origDstPort, replySrc, replySrcPort } = entry;
  // Other zones belong to other programs (OVS, CNI plug-ins).
  if (zone !== 0 || (replySrc === origDst && replySrcPort === origDstPort)) return undefined;
  const protocol = protocolOf(entry.protocol);
  if (protocol === undefined) return undefined;
  return index.find({ protocol, address: origDst, port: origDstPort }, isNodeAddress);
}

/** The endpoint of an entry: `address:port`, or `address` where packets keep their port. */
export function endpointOfEntry(
  { replySrc, replySrcPort }: Pick<DetailedEntry, 'replySrc' | 'replySrcPort'>,
  { match }: Route,
): string {
  return match.kind === 'port' ? socketAddress(replySrc, replySrcPort) : replySrc;
}

/** An entry as the status API shows it. @param route see `routeOfEntry`. */
export function flowEntry(entry: DetailedEntry, route: Route | undefined): FlowEntry {
  const { counters, tcpState } = entry.details;
  return {
    family: entry.family,
    protocol: protocolName(entry.protocol),
    source: entry.origSrc,
    sourcePort: entry.origSrcPort,
    destination: entry.origDst,
    destinationPort: entry.origDstPort,
    endpoint: entry.replySrc,
    endpointPort: entry.replySrcPort,
    masqueraded: entry.replyDst !== entry.origSrc,
    state: tcpState ?? null,
    packets: counters?.packets ?? null,
    bytes: counters?.bytes ?? null,
    stale: route !== undefined && !isClosed(tcpState) && !isServing(route, entry),
  };
}

/** A packet without a conntrack entry. */
export function packetFlow(packet: PacketHeader): FlowEntry {
  return {
    family: packet.family,
    protocol: protocolName(packet.protocol),
    source: packet.source,
    sourcePort: packet.sourcePort,
    destination: packet.destination,
    destinationPort: packet.destinationPort,
    endpoint: packet.destination,
    endpointPort: packet.destinationPort,
    masqueraded: false,
    state: null,
    packets: null,
    bytes: null,
    stale: false,
  };
}

/** Conntrack keeps a closed connection for some time. No client waits for it. */
function isClosed(tcpState: string | undefined): boolean {
  return tcpState === 'TIME_WAIT' || tcpState === 'CLOSE';
}

function isServing({ servingEndpoints }: Route, entry: DetailedEntry): boolean {
  return servingEndpoints.some(
    ({ address, port }) =>
      address === entry.replySrc && (port ?? entry.origDstPort) === entry.replySrcPort,
  );
}

/** Names of protocols that a Service cannot have. */
const OTHER_PROTOCOLS = new Map([
  [1, 'ICMP'],
  [58, 'ICMPv6'],
]);

/** @param number IP protocol number. */
export function protocolName(number: number): string {
  return protocolOf(number) ?? OTHER_PROTOCOLS.get(number) ?? String(number);
}
