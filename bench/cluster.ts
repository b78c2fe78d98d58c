/** Services and their EndpointSlices as a large cluster has them; all IPv4, one TCP port, no node ports. */
import type { EndpointSlice, Service } from '../api/objects.ts';
import { endpoint, service, slice } from '../test/fixtures.ts';

/** Every endpoint is in it. */
export const POD_CIDR = '10.128.0.0/9';
export const SERVICE_PORT = 80;
export const TARGET_PORT = 8080;
export const ENDPOINTS = 10;
/** Where the agent runs: one endpoint of so many is there. */
export const NODE = 'node-a';
const NODES = 100;

const FIRST_VIP = 10 * 2 ** 24 + 96 * 2 ** 16 + 1;
const FIRST_ENDPOINT = 10 * 2 ** 24 + 128 * 2 ** 16 + 1;
const FIRST_SPARE_ENDPOINT = 10 * 2 ** 24 + 192 * 2 ** 16;

/** A Service with its endpoints. */
export interface ServiceObjects {
  readonly service: Service;
  readonly slice: EndpointSlice;
}

/** VIP of Service number `index`. VIPs follow each other, so that their last bytes are used evenly. */
export function vip(index: number): string {
  return address(FIRST_VIP + index);
}

/**
 * Service number `index` with ten endpoints.
 * @param spare when given, its last endpoint is this one of the spare addresses.
 */
export function serviceObjects(index: number, spare?: number): ServiceObjects {
  const addresses = endpointAddresses(index);
  if (spare !== undefined) addresses[ENDPOINTS - 1] = spareAddress(spare);
  return withEndpoints(index, addresses);
}

/** As `member`, with the first so many of the spare addresses besides its own. */
export function serviceObjectsWithSpares(index: number, spares: number): ServiceObjects {
  const more = Array.from({ length: spares }, (_, spare) => spareAddress(spare));
  return withEndpoints(index, [...endpointAddresses(index), ...more]);
}

function withEndpoints(index: number, addresses: readonly string[]): ServiceObjects {
  return {
    service: service({ namespace: 'default', name: serviceName(index), clusterIPs: [vip(index)] }),
    slice: slice(
      addresses.map((each, number) => endpoint(each, { nodeName: nodeOf(index, number) })),
      { name: `${serviceName(index)}-1`, serviceKey: serviceKey(index) },
    ),
  };
}

/** As `member`, on every port. */
export function allPortsObjects(index: number): ServiceObjects {
  const { service: listed, slice: endpoints } = serviceObjects(index);
  return { service: { ...listed, portsAnnotation: 'all' }, slice: endpoints };
}

/** `count` ordinary Services and, after them, one on every port. */
export function cluster(count: number): ServiceObjects[] {
  return [
    ...Array.from({ length: count }, (_, index) => serviceObjects(index)),
    allPortsObjects(count),
  ];
}

/** `ns/name`, as chains are named after it. */
export function serviceKey(index: number): string {
  return `default/${serviceName(index)}`;
}

export function serviceName(index: number): string {
  return `service-${index}`;
}

export function endpointAddresses(index: number): string[] {
  return Array.from({ length: ENDPOINTS }, (_, number) =>
    address(FIRST_ENDPOINT + index * ENDPOINTS + number),
  );
}

export function spareAddress(spare: number): string {
  return address(FIRST_SPARE_ENDPOINT + spare);
}

/** The node of an endpoint of Service number `index`. */
function nodeOf(index: number, number: number): string {
  return (index * ENDPOINTS + number) % NODES === 0 ? NODE : 'node-b';
}

function address(number: number): string {
  return [24, 16, 8, 0].map((shift) => (number >>> shift) & 255).join('.');
}
