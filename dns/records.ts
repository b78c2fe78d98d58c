/** From Services and EndpointSlices to the records of the Kubernetes DNS specification. Pure. */
import { familyOf } from '../api/addresses.ts';
import { portScheme } from '../api/all-ports.ts';
import { compareText, getOrCreate, trimmedCopy } from '../api/collections.ts';
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

/** One resource record. Names are lower-case and without the final dot. */
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

/** Of the Kubernetes DNS-based service discovery specification; sections below are its. */
export const SCHEMA_VERSION = '1.1.0';

/** What DNS has to say of one Service. */
export interface ServiceRecords {
  /** By name; each list sorted, without duplicates, never empty. */
  readonly records: ReadonlyMap<string, readonly DnsRecord[]>;
  /** Fields that would make records which no message can carry, and why; those are left out. */
  readonly problems: readonly InvalidObject[];
}

interface Draft {
  readonly records: Map<string, DnsRecord[]>;
  readonly problems: InvalidObject[];
}

interface NamedPort {
  readonly name: string;
  readonly protocol: Protocol;
  readonly port: number | undefined;
}

/**
 * The records of one Service (sections 2.3 to 2.5). A Service without any, such as a headless one
 * without a ready endpoint, has no name either: the answer is NXDOMAIN, as 2.4.1 wants.
 *
 * All-ports Services have no SRV records, by the field or by the annotation: there is no port to
 * name, and the placeholder in `spec.ports` is none. That holds for refused ones too, also while the
 * feature gate is off, and they keep their other records. A refusal is a node's: it says what that
 * node does not serve, may differ from node to node and from VIP to VIP (one of the node's own
 * addresses, an older Service's), and DNS answers for all nodes. An address record says whose an
 * address is, which the API server decided; the specification wants it for every cluster IP,
 * with endpoints or without, and CoreDNS gives it. Taken away, it would hide the Service also from
 * nodes that serve it, and the NXDOMAIN would stay in caches after it is served again.
 *
 * Selectors of kube-proxy do not count here: `service-proxy-name` says who serves an address, not
 * whose it is, and whether a Service is headless is told by `clusterIP: None`, not by the label.
 *
 * Unlike CoreDNS, there is no SRV record at the Service's own name and none for unnamed ports, no
 * name and no PTR record for endpoints of Services that have a cluster IP, and an address that several
 * Services claim has a PTR record for each.
 * @param clusterDomain `cluster.local`: lower-case, without the final dot.
 */
export function serviceRecords(
  service: Service,
  slices: Iterable<EndpointSlice>,
  clusterDomain: string,
): ServiceRecords {
  const draft: Draft = { records: new Map(), problems: [] };
  const object = `Service ${service.key}`;
  const name = `${service.name}.${service.namespace}.svc.${clusterDomain}`;
  if (fitsInMessage(draft, name, object, 'metadata.name')) {
    // The feature gate decides on refusals, and so on no record.
    const isListed = portScheme(service, true).kind === 'listed';
    if (service.type === 'ExternalName') addExternalName(draft, service, object, name);
    else if (service.headless) addEndpoints(draft, service, slices, name, isListed);
    else addClusterIPs(draft, service, object, name, isListed);
  }
  const records = new Map<string, readonly DnsRecord[]>();
  for (const [each, list] of draft.records) records.set(each, sortedUnique(list));
  return { records, problems: trimmedCopy(draft.problems) };
}

/** Section 2.3. */
function addClusterIPs(
  draft: Draft,
  service: Service,
  object: string,
  name: string,
  isListed: boolean,
): void {
  for (const address of service.clusterIPs) {
    addAddress(draft, name, address);
    add(draft, { name: reverseName(address), type: 'PTR', data: name });
  }
  if (!isListed || service.clusterIPs.length === 0) return;
  for (const { srvName, port } of srvNames(draft, service.ports, name, object, 'spec.ports')) {
    addSrv(draft, srvName, port, name);
  }
}

/**
 * Section 2.4. Port numbers are those of the slices, as CoreDNS has it: the client connects to the
 * endpoint itself, which listens there and not on the Service's port.
 */
function addEndpoints(
  draft: Draft,
  service: Service,
  slices: Iterable<EndpointSlice>,
  name: string,
  isListed: boolean,
): void {
  for (const slice of slices) {
    const object = `EndpointSlice ${slice.key}`;
    const ports = isListed ? srvNames(draft, slice.ports, name, object, 'ports') : [];
    for (const [index, { address, ready, hostname }] of slice.endpoints.entries()) {
      // The EndpointSlice controller writes such endpoints as ready; nobody does in a manifest.
      if (!ready && !service.publishNotReadyAddresses) continue;
      addAddress(draft, name, address);
      const host = `${hostname ?? addressLabel(address)}.${name}`;
      if (!fitsInMessage(draft, host, object, `endpoints[${index}].hostname`)) continue;
      addAddress(draft, host, address);
      add(draft, { name: reverseName(address), type: 'PTR', data: host });
      for (const { srvName, port } of ports) addSrv(draft, srvName, port, host);
    }
  }
}

/** Section 2.5. The API server lets a final dot stand. */
function addExternalName(draft: Draft, service: Service, object: string, name: string): void {
  const given = service.externalName;
  const target = given?.toLowerCase().replace(/\.$/, '') ?? '';
  const problem = given === undefined ? 'is required' : domainProblem(target);
  if (problem === undefined) add(draft, { name, type: 'CNAME', data: target });
  else draft.problems.push(new InvalidObject(object, 'spec.externalName', problem));
}

/** Names of the SRV records of ports; those without a name or a number have none. */
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
    // A port may be named with 63 characters; the underscore is one too many.
    const writable = fitsInMessage(draft, srvName, object, `${field}[${index}].name`);
    return writable ? [{ srvName, port }] : [];
  });
}

/** Priority and weight are CoreDNS's for a single target; all targets of a name are equals. */
function addSrv(draft: Draft, name: string, port: number, target: string): void {
  add(draft, { name, type: 'SRV', data: { priority: 0, weight: 100, port, target } });
}

function addAddress(draft: Draft, name: string, address: string): void {
  add(draft, addressRecord(name, address));
}

/** Names of addresses have a record of the type of their family. */
export function addressRecord(name: string, address: string): DnsRecord {
  return { name, type: familyOf(address) === 'IPv4' ? 'A' : 'AAAA', data: address };
}

function add(draft: Draft, record: DnsRecord): void {
  getOrCreate(draft.records, record.name, () => []).push(record);
}

function fitsInMessage(draft: Draft, name: string, object: string, field: string): boolean {
  const problem = lengthProblem(name);
  if (problem !== undefined) draft.problems.push(new InvalidObject(object, field, problem));
  return problem === undefined;
}

/** One endpoint may stand in several slices while the controller moves it. */
function sortedUnique(list: readonly DnsRecord[]): readonly DnsRecord[] {
  if (list.length === 1) return trimmedCopy(list);
  const sorted = list.toSorted(compareRecords);
  const once = sorted.filter((record, index) => {
    const before = sorted[index - 1];
    return before === undefined || compareRecords(before, record) !== 0;
  });
  return trimmedCopy(once);
}

/** Orders the records of one name by what they say; 0 for records that say the same. */
export function compareRecords(a: DnsRecord, b: DnsRecord): number {
  if (a.type === 'SRV' && b.type === 'SRV') {
    return compareText(a.data.target, b.data.target) || a.data.port - b.data.port;
  }
  if (a.type === 'SRV' || b.type === 'SRV') return compareText(a.type, b.type);
  return compareText(a.type, b.type) || compareText(a.data, b.data);
}

/** Whether two lists of one name's records say the same in the same order. */
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
 * Section 2.6: names of addresses, `10-3-0-1.default.pod.cluster.local`, deprecated and required. As
 * with `pods insecure` of CoreDNS nobody looks whether there is such a pod; nor is the namespace
 * looked up, for Services tell of some namespaces only.
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
