/**
 * Computes the records of the Kubernetes DNS specification from Services and EndpointSlices. Pure.
 */
import { familyOf } from '../api/addresses.ts';
import { ALL_PORT_FEATURES, portScheme } from '../api/all-ports.ts';
import { compareText, getOrCreate } from '../api/collections.ts';
import { InvalidObject } from '../api/errors.ts';
import type { EndpointSlice, Protocol, Service } from '../api/objects.ts';
import { isDnsLabel } from '../api/read-name.ts';
import {
  addressLabel,
  domainProblem,
  labelledAddress,
  lengthProblem,
  reverseName,
} from './names.ts';

/** A resource record. Names are lower-case, without the final dot. */
export type DnsRecord =
  | {
      readonly name: string;
      readonly type: 'A' | 'AAAA' | 'PTR' | 'CNAME' | 'TXT';
      readonly data: string;
    }
  | {
      readonly name: string;
      readonly type: 'SRV';
      readonly data: {
        readonly priority: number;
        readonly weight: number;
        readonly port: number;
        readonly target: string;
      };
    };

/**
 * Version of the Kubernetes DNS-based service discovery specification. Section numbers in this file
 * refer to this specification.
 */
export const SCHEMA_VERSION = '1.1.0';

/**
 * SRV records of one EndpointSlice: under each name, one for each of its ports and each target. 1,000
 * endpoints with 100 ports have 100,000 records, so the records are made when a query asks for them.
 */
export interface SrvGroup {
  /** Port numbers by name of the records. */
  readonly ports: ReadonlyMap<string, readonly number[]>;
  readonly targets: readonly string[];
}

/** DNS records of one Service, or of a part of it. */
export interface ServiceRecords {
  /** May have duplicates: an endpoint may be in two slices while its controller moves it. */
  readonly records: readonly DnsRecord[];
  /** SRV records that are not in `records`. May have duplicates. */
  readonly srvGroup?: SrvGroup;
  /**
   * Fields from which no record could be made, with the reason: a name is too long or invalid.
   */
  readonly problems: readonly InvalidObject[];
}

interface Draft {
  readonly records: DnsRecord[];
  readonly problems: InvalidObject[];
}

interface NamedPort {
  readonly name: string;
  readonly protocol: Protocol;
  readonly port: number | undefined;
}

/**
 * Computes the records of one Service (sections 2.3 and 2.5), without records of its slices
 * (`sliceRecords`). A Service without any record, such as a headless one without a ready endpoint, has
 * no name: the answer is NXDOMAIN, as 2.4.1 requires.
 *
 * All-ports Services have no SRV records, whether the field or the annotation declares them: there is
 * no port to name, and the placeholder in `spec.ports` does not count. This also holds for refused
 * all-ports Services and with the feature gate off; they keep their other records. A refusal is
 * local to a node and may differ between nodes and VIPs: a VIP may be one node's address, or also
 * belong to an older Service. DNS answers for all nodes. The API server decides which Service owns
 * a cluster IP, and the address record states the owner. The specification requires the record for
 * every cluster IP, with or without endpoints, and CoreDNS has it. Without the record, clients on
 * nodes that serve the Service would not find it, and caches would keep NXDOMAIN after the refusal.
 *
 * kube-proxy's label selectors do not apply here. Label `service-proxy-name` selects the proxy that
 * serves an address, not the owner. A Service is headless by `clusterIP: None`, not by a label.
 *
 * Differences from CoreDNS: the Service's own name has no SRV record, and unnamed ports have none.
 * Endpoints of Services with a cluster IP have no name and no PTR record. An address of
 * several Services has a PTR record for each Service.
 * @param clusterDomain such as `cluster.local`: lower-case, without the final dot.
 */
export function serviceRecords(service: Service, clusterDomain: string): ServiceRecords {
  const draft: Draft = { records: [], problems: [] };
  const object = `Service ${service.key}`;
  const name = nameOf(service, clusterDomain);
  if (fitsInMessage(draft, name, object, 'metadata.name')) {
    if (service.type === 'ExternalName') addExternalName(draft, service, object, name);
    else if (!hasEndpointRecords(service)) addClusterIPs(draft, service, object, name);
  }
  return draft;
}

/** The records of a Service that come from one of its slices (section 2.4). */
export function sliceRecords(
  service: Service,
  slice: EndpointSlice,
  clusterDomain: string,
): ServiceRecords {
  const draft: Draft = { records: [], problems: [] };
  const name = nameOf(service, clusterDomain);
  // A name that is too long is a problem of the Service, not of each slice.
  if (!hasEndpointRecords(service) || lengthProblem(name) !== undefined) return draft;
  const srvGroup = addEndpoints(draft, service, slice, name);
  return { ...draft, srvGroup };
}

/** The fields of a Service that its records depend on, together with its slices. */
export function fieldsOfRecords(service: Service) {
  const { type, clusterIPs, headless, externalName, publishNotReadyAddresses, ports } = service;
  const isListed = hasListedPorts(service);
  return { type, clusterIPs, headless, externalName, publishNotReadyAddresses, ports, isListed };
}

function nameOf({ name, namespace }: Service, clusterDomain: string): string {
  return `${name}.${namespace}.svc.${clusterDomain}`;
}

/** Whether the slices of a Service have records. If so, the Service itself has none. */
export function hasEndpointRecords(service: Service | undefined): boolean {
  return service?.headless === true && service.type !== 'ExternalName';
}

/** The feature gate affects refusals only, and refusals do not affect records. */
function hasListedPorts(service: Service): boolean {
  return portScheme(service, ALL_PORT_FEATURES).kind === 'listed';
}

/** Section 2.3: Services with cluster IPs. */
function addClusterIPs(draft: Draft, service: Service, object: string, name: string): void {
  for (const address of service.clusterIPs) {
    addAddress(draft, name, address);
    add(draft, { name: reverseName(address), type: 'PTR', data: name });
  }
  if (service.clusterIPs.length === 0 || !hasListedPorts(service)) return;
  for (const { srvName, port } of srvNames(draft, service.ports, name, object, 'spec.ports')) {
    add(draft, srvRecord(srvName, port, name));
  }
}

/**
 * Section 2.4: headless Services. Port numbers come from the slices, as in CoreDNS: the client
 * connects to the endpoint itself, which listens on the target port.
 */
function addEndpoints(
  draft: Draft,
  service: Service,
  slice: EndpointSlice,
  name: string,
): SrvGroup {
  const object = `EndpointSlice ${slice.key}`;
  const ports = new Map<string, number[]>();
  const listed = hasListedPorts(service) ? slice.ports : [];
  for (const { srvName, port } of srvNames(draft, listed, name, object, 'ports'))
    getOrCreate(ports, srvName, () => []).push(port);
  const targets: string[] = [];
  for (const [index, { address, ready, hostname }] of slice.endpoints.entries()) {
    // With publishNotReadyAddresses, the EndpointSlice controller marks all endpoints ready;
    // hand-written manifests may not.
    if (!ready && !service.publishNotReadyAddresses) continue;
    addAddress(draft, name, address);
    const host = `${hostname ?? addressLabel(address)}.${name}`;
    if (!fitsInMessage(draft, host, object, `endpoints[${index}].hostname`)) continue;
    addAddress(draft, host, address);
    add(draft, { name: reverseName(address), type: 'PTR', data: host });
    targets.push(host);
  }
  return { ports, targets };
}

/** Section 2.5: ExternalName Services. The API server accepts a final dot in `externalName`. */
function addExternalName(draft: Draft, service: Service, object: string, name: string): void {
  const given = service.externalName;
  const target = given?.toLowerCase().replace(/\.$/, '') ?? '';
  const problem = given === undefined ? 'is required' : domainProblem(target);
  if (problem === undefined) add(draft, { name, type: 'CNAME', data: target });
  else draft.problems.push(new InvalidObject(object, 'spec.externalName', problem));
}

/** Names of the SRV records of ports. Ports without a name or a number have no SRV record. */
function srvNames(
  draft: Draft,
  ports: readonly NamedPort[],
  name: string,
  object: string,
  field: string,
): { readonly srvName: string; readonly port: number }[] {
  return ports.flatMap(({ name: portName, protocol, port }, index) => {
    if (portName === '' || port === undefined) return [];
    const srvName = `_${portName}._${protocol.toLowerCase()}.${name}`;
    // A port name may have 63 characters; the underscore would make the label too long.
    const writable = fitsInMessage(draft, srvName, object, `${field}[${index}].name`);
    return writable ? [{ srvName, port }] : [];
  });
}

/** All targets have the same priority and weight, which CoreDNS gives to a single target. */
export function srvRecord(name: string, port: number, target: string): DnsRecord {
  return { name, type: 'SRV', data: { priority: 0, weight: 100, port, target } };
}

function addAddress(draft: Draft, name: string, address: string): void {
  add(draft, addressRecord(name, address));
}

/** An A or AAAA record, by the family of the address. */
export function addressRecord(name: string, address: string): DnsRecord {
  return { name, type: familyOf(address) === 'IPv4' ? 'A' : 'AAAA', data: address };
}

function add(draft: Draft, record: DnsRecord): void {
  draft.records.push(record);
}

function fitsInMessage(draft: Draft, name: string, object: string, field: string): boolean {
  const problem = lengthProblem(name);
  if (problem !== undefined) draft.problems.push(new InvalidObject(object, field, problem));
  return problem === undefined;
}

/** Orders the records of one name by content; 0 means equal content. */
export function compareRecords(a: DnsRecord, b: DnsRecord): number {
  if (a.type === 'SRV' && b.type === 'SRV') {
    return compareText(a.data.target, b.data.target) || a.data.port - b.data.port;
  }
  if (a.type === 'SRV' || b.type === 'SRV') return compareText(a.type, b.type);
  return compareText(a.type, b.type) || compareText(a.data, b.data);
}

/** Whether two lists of records of one name have the same content in the same order. */
export function sameRecords(a: readonly DnsRecord[], b: readonly DnsRecord[]): boolean {
  return (
    a.length === b.length &&
    a.every((record, index) => {
      const other = b[index];
      return other !== undefined && compareRecords(record, other) === 0;
    })
  );
}

/**
 * Section 2.6: names of addresses, `10-3-0-1.default.pod.cluster.local`, deprecated but required.
 * As with CoreDNS's `pods insecure`, neither the pod nor the namespace needs to exist.
 * @param domain the cluster domain.
 * @returns as `Zone.lookup`.
 */
export function podRecords(name: string, domain: string): readonly DnsRecord[] | undefined {
  if (!name.endsWith(`.pod.${domain}`)) return undefined;
  const labels = name.slice(0, -`.pod.${domain}`.length).split('.');
  if (!isDnsLabel(labels.at(-1) ?? '') || labels.length > 2) return undefined;
  if (labels.length === 1) return [];
  const address = labelledAddress(labels[0] ?? '');
  return address === undefined ? undefined : [addressRecord(name, address)];
}
