/** Services and EndpointSlices of a large cluster: IPv4, one TCP port each, no node ports. */
import type { EndpointSlice, Service } from '../api/objects.ts';
import { endpoint, service, slice } from '../test/fixtures.ts';

/** Contains every endpoint. */
export const POD_CIDR = '10.128.0.0/9';
export const SERVICE_PORT = 80;
export const TARGET_PORT = 8080;
export const ENDPOINTS = 10;
/** The agent's node. One in `NODES` endpoints is on it. */
export const NODE = 'node-a';
const NODES = 100;

/** Not 10.96.0.1, which an API server gives to the Service `kubernetes`. */
const FIRST_VIP = 10 * 2 ** 24 + 96 * 2 ** 16 + 2 ** 8;
const FIRST_ENDPOINT = 10 * 2 ** 24 + 128 * 2 ** 16 + 1;
const FIRST_SPARE_ENDPOINT = 10 * 2 ** 24 + 192 * 2 ** 16;

/** A Service with its EndpointSlice. */
export interface ServiceObjects {
  readonly service: Service;
  readonly slice: EndpointSlice;
}

/**
 * VIP of Service number `index`. VIPs are consecutive, so that all values of the last byte occur
 * equally often.
 */
export function vip(index: number): string {
  return address(FIRST_VIP + index);
}

/**
 * Service number `index` with ten endpoints.
 * @param spare replaces the last endpoint by this spare address
 */
export function serviceObjects(index: number, spare?: number): ServiceObjects {
  const addresses = endpointAddresses(index);
  if (spare !== undefined) addresses[ENDPOINTS - 1] = spareAddress(spare);
  return withEndpoints(index, addresses);
}

/** As `serviceObjects`, with the first `spares` spare addresses in addition. */
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

/** As `serviceObjects`, but for an all-ports Service. */
export function allPortsObjects(index: number): ServiceObjects {
  const { service: listed, slice: endpoints } = serviceObjects(index);
  return { service: { ...listed, portsAnnotation: 'all' }, slice: endpoints };
}

/** `count` ordinary Services followed by an all-ports Service. */
export function cluster(count: number): ServiceObjects[] {
  return [
    ...Array.from({ length: count }, (_, index) => serviceObjects(index)),
    allPortsObjects(count),
  ];
}

/** `namespace/name`, from which chain names are derived. */
export function serviceKey(index: number): string {
  return `default/${serviceName(index)}`;
}

export function serviceName(index: number): string {
  return `service-${index}`;
}

/** @param count endpoints of each Service */
export function endpointAddresses(index: number, count = ENDPOINTS): string[] {
  return Array.from({ length: count }, (_, number) =>
    address(FIRST_ENDPOINT + index * count + number),
  );
}

export function spareAddress(spare: number): string {
  return address(FIRST_SPARE_ENDPOINT + spare);
}

/** Node of an endpoint of Service number `index`. */
function nodeOf(index: number, number: number): string {
  return (index * ENDPOINTS + number) % NODES === 0 ? NODE : 'node-b';
}

function address(number: number): string {
  return [24, 16, 8, 0].map((shift) => (number >>> shift) & 255).join('.');
}
