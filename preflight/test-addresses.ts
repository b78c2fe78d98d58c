/** Chooses addresses for test packets from the objects of the cluster. */
import ipaddr from 'ipaddr.js';
import { cidrContains, familyOf } from '../api/addresses.ts';
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import type { NodeOptions, RunOptions } from '../config/settings.ts';
import { healthCheckNodePort } from '../services/served-ports.ts';
import type { ClusterObjects } from './cluster.ts';
import type { TestAddresses, TestTarget } from './foreign-rules.ts';

/**
 * Addresses of each family in use. Endpoints outside of the pod CIDRs are not chosen: they may be on the host network,
 * and CNIs masquerade connections from pods to hosts.
 */
export function testAddresses(
  nodeName: string,
  { clusterCidr }: Pick<NodeOptions, 'clusterCidr'>,
  { node, services, slices }: ClusterObjects,
): TestAddresses[] {
  const endpoints = slices.flatMap((slice) => slice.endpoints);
  return IP_FAMILIES.map((family) => {
    const local = ofFamily(node?.podCIDRs ?? [], family);
    const cluster = ofFamily(clusterCidr, family);
    const pods = [...local, ...cluster];
    const isPod = (address: string) => pods.some((cidr) => cidrContains(cidr, address));
    const isLocal = (address: string) => local.some((cidr) => cidrContains(cidr, address));
    const ofPods = endpoints.filter(({ address }) => isPod(address));
    const here = ofPods.find((each) => each.nodeName === nodeName)?.address;
    const elsewhere = ofPods.find((each) => each.nodeName !== nodeName)?.address;
    const pod = here ?? addressesIn(local[0] ?? cluster[0])[0];
    const candidates = [elsewhere, ...addressesIn(cluster[0]), ...addressesIn(local[0])].filter(
      (address) => address !== undefined && address !== pod,
    );
    const endpoint = candidates.find((address) => address && !isLocal(address)) ?? candidates[0];
    const targets = endpointPorts(slices, isPod);
    return {
      pod,
      endpoint,
      node: ofFamily(node?.addresses ?? [], family)[0],
      targets: sampleOf(targets),
      targetCount: targets.length,
      vips: sampleOf(clusterIpPorts(services, family)),
    };
  });
}

/** The ports that load balancers probe: that of /healthz, and a sample of health check node ports. */
export function healthPorts(
  { healthzBindAddress }: Pick<RunOptions, 'healthzBindAddress'>,
  { services }: Pick<ClusterObjects, 'services'>,
): number[] {
  const ofServices = services.map(healthCheckNodePort).filter((port) => port > 0);
  return [...(healthzBindAddress ? [healthzBindAddress.port] : []), ...sampleOf(ofServices)];
}

/** Targets of each kind and family: each rule is evaluated for each of them. */
const MAX_TARGETS = 50;

/** Evenly from the whole list. */
function sampleOf<Target>(targets: readonly Target[]): Target[] {
  const step = Math.max(1, targets.length / MAX_TARGETS);
  const count = Math.min(targets.length, MAX_TARGETS);
  return Array.from({ length: count }, (_, index) => targets[Math.floor(index * step)]).filter(
    (target) => target !== undefined,
  );
}

function endpointPorts(
  slices: ClusterObjects['slices'],
  isPod: (address: string) => boolean,
): TestTarget[] {
  const all = slices.flatMap(({ ports, endpoints }) =>
    endpoints.flatMap(({ address }) =>
      ports.flatMap(({ port, protocol }) =>
        port === undefined || !isPod(address) ? [] : [{ address, port, protocol }],
      ),
    ),
  );
  return distinct(all);
}

function clusterIpPorts(services: ClusterObjects['services'], family: IpFamily): TestTarget[] {
  return services.flatMap(({ clusterIPs, ports }) =>
    ofFamily(clusterIPs, family).flatMap((address) =>
      ports.map(({ port, protocol }) => ({ address, port, protocol })),
    ),
  );
}

/** Several Services may have the same endpoints. */
function distinct(targets: readonly TestTarget[]): TestTarget[] {
  const byName = new Map(
    targets.map((each) => [`${each.address} ${each.port} ${each.protocol}`, each]),
  );
  return [...byName.values()];
}

function ofFamily(list: readonly string[], family: IpFamily): string[] {
  return list.filter((each) => familyOf(each) === family);
}

/** Two addresses of a network: one at its beginning and one at its end. */
function addressesIn(cidr: string | undefined): string[] {
  if (cidr === undefined) return [];
  const [network = '', length = ''] = cidr.split('/');
  const bytes = ipaddr.parse(network).toByteArray();
  const bits = Number(length);
  if (bits > 8 * bytes.length - 3) return [];
  const last = bytes.map(
    (byte, index) => byte | (0xff >> Math.min(Math.max(bits - 8 * index, 0), 8)),
  );
  const shift = (from: readonly number[], by: number) => {
    const shifted = [...from];
    shifted[shifted.length - 1] = (shifted.at(-1) ?? 0) + by;
    return ipaddr.fromByteArray(shifted).toString();
  };
  return [shift(bytes, 2), shift(last, -2)];
}
