/** Ports owned by pods: annotations `portwide.dev/owned-ports` and `portwide.dev/ports-per-pod`. */
import { familyOf } from './addresses.ts';
import type { IpFamily, Service } from './objects.ts';
import {
  isTooLong,
  MAX_RANGES,
  MAX_VALUE_LENGTH,
  type PortRange,
  parsePortItem,
  rangesOverlap,
  rangeText,
} from './ports.ts';

export const OWNED_PORTS_ANNOTATION = 'portwide.dev/owned-ports';
export const PORTS_PER_POD_ANNOTATION = 'portwide.dev/ports-per-pod';

/** Upper bound on the slices of a Service, over all ranges: each slice is an element in the kernel. */
const MAX_SLICES = 65_535;

/** Port ranges that are cut into slices of `portsPerPod` ports, one for each pod in each range. */
export interface OwnedPorts {
  /** As written: not sorted, not merged. */
  readonly ranges: readonly PortRange[];
  readonly portsPerPod: number;
}

/** A problem with the value of an annotation. */
export interface OwnedPortsProblem {
  readonly annotation: typeof OWNED_PORTS_ANNOTATION | typeof PORTS_PER_POD_ANNOTATION;
  readonly message: string;
}

/** The number behind the last hyphen of a name, as StatefulSets give it; undefined if there is none. */
export function ordinalOf(name: string): number | undefined {
  const digits = /-(\d+)$/.exec(name)?.[1];
  return digits === undefined ? undefined : Number(digits);
}

/**
 * The one VIP of the family with owned UDP ports: the first served load balancer IP in the order of the status, else the
 * cluster IP. Owners speak as this VIP, so on another VIP the answer could not come from the address that was asked.
 */
export function ownedVip(
  { type, loadBalancerIngress, clusterIPs }: Service,
  family: IpFamily,
): string | undefined {
  const ingress = loadBalancerIngress.find(
    ({ ip, ipMode }) => ipMode === 'VIP' && familyOf(ip) === family,
  );
  if (type === 'LoadBalancer' && ingress !== undefined) return ingress.ip;
  return clusterIPs.find((address) => familyOf(address) === family);
}

/** Number of whole slices of a range; ports left over at its end belong to no pod. */
export function sliceCount({ from, to }: PortRange, portsPerPod: number): number {
  return Math.floor((to - from + 1) / portsPerPod);
}

/** The slice of the pod with this ordinal; undefined past the last slice of the range. */
export function sliceOf(
  range: PortRange,
  portsPerPod: number,
  ordinal: number,
): PortRange | undefined {
  if (ordinal >= sliceCount(range, portsPerPod)) return undefined;
  const from = range.from + ordinal * portsPerPod;
  return { protocol: range.protocol, from, to: from + portsPerPod - 1 };
}

/**
 * Parses both annotations. `owned-ports` lists ports and ranges with their protocol, separated by commas, such as
 * `20000-29999/UDP`.
 * @returns every problem, if there is one.
 */
export function parseOwnedPorts(
  ownedPorts: string,
  portsPerPod: string | undefined,
): OwnedPorts | readonly OwnedPortsProblem[] {
  const problems: OwnedPortsProblem[] = [];
  const ranges: PortRange[] = [];
  const refuse = (annotation: OwnedPortsProblem['annotation'], message: string) =>
    problems.push({ annotation, message });
  const size = parsePortsPerPod(portsPerPod);
  if (typeof size === 'string') refuse(PORTS_PER_POD_ANNOTATION, size);
  if (isTooLong(ownedPorts)) {
    refuse(OWNED_PORTS_ANNOTATION, `longer than ${MAX_VALUE_LENGTH} characters`);
    return problems;
  }
  const items = ownedPorts.split(',');
  if (items.length > MAX_RANGES) {
    refuse(OWNED_PORTS_ANNOTATION, `more than ${MAX_RANGES} ranges`);
    return problems;
  }
  for (const item of items) {
    const parsed = parsePortItem(item.trim());
    const range = typeof parsed === 'string' ? parsed : withProtocol(item, parsed);
    if (typeof range === 'string') {
      // One message: a value that is something else altogether has many items that cannot be read.
      refuse(OWNED_PORTS_ANNOTATION, range);
      return problems;
    }
    ranges.push(range);
  }
  const overlap = ranges.findIndex((range, at) => rangesOverlap([range], ranges.slice(0, at)));
  if (overlap >= 0) {
    const message = `${rangeText(ranges[overlap] as PortRange)} overlaps another range`;
    refuse(OWNED_PORTS_ANNOTATION, message);
  }
  if (typeof size === 'string') return problems;
  for (const range of ranges) {
    if (sliceCount(range, size) > 0) continue;
    const message = `${rangeText(range)} has fewer ports than a pod gets (${PORTS_PER_POD_ANNOTATION}: ${size})`;
    refuse(OWNED_PORTS_ANNOTATION, message);
  }
  const slices = ranges.reduce((sum, range) => sum + sliceCount(range, size), 0);
  if (slices > MAX_SLICES) {
    refuse(OWNED_PORTS_ANNOTATION, `${slices} slices, but at most ${MAX_SLICES} are possible`);
  }
  return problems.length > 0 ? problems : { ranges, portsPerPod: size };
}

function parsePortsPerPod(value: string | undefined): number | string {
  if (value === undefined) return `is required with ${OWNED_PORTS_ANNOTATION}`;
  const text = value.trim();
  const size = /^\d{1,5}$/.test(text) ? Number(text) : 0;
  if (size >= 1 && size <= 65535) return size;
  return `${JSON.stringify(text)} is not a number of ports, 1 to 65535`;
}

function withProtocol(
  item: string,
  { protocol, from, to }: Exclude<ReturnType<typeof parsePortItem>, string>,
): PortRange | string {
  if (protocol !== undefined) return { protocol, from, to };
  return `${JSON.stringify(item.trim())} has no protocol; write for example ${item.trim()}/UDP`;
}
