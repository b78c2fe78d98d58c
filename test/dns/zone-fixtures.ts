/** A Zone with objects, and its answers as lines of text. */
import type { InvalidObject } from '../../api/errors.ts';
import type { ApiObject, EndpointSlice, Service } from '../../api/objects.ts';
import {
  compareRecords,
  type DnsRecord,
  type ServiceRecords,
  serviceRecords,
  sliceRecords,
  srvRecord,
} from '../../dns/records.ts';
import { Zone } from '../../dns/zone.ts';

export function zoneWith(
  objects: readonly ApiObject[],
  onProblem: (problem: InvalidObject) => void = () => {},
): Zone {
  const zone = new Zone({ clusterDomain: 'cluster.local', onProblem });
  for (const object of objects) zone.upsert(object);
  return zone;
}

/** Records of a Service and its slices; may have duplicates. */
export function allRecords(
  service: Service,
  slices: readonly EndpointSlice[],
  clusterDomain: string,
): ServiceRecords {
  const parts = [
    serviceRecords(service, clusterDomain),
    ...slices.map((slice) => sliceRecords(service, slice, clusterDomain)),
  ];
  return {
    records: parts.flatMap((part) => [...part.records, ...srvRecordsOf(part)]),
    problems: parts.flatMap(({ problems }) => problems),
  };
}

function srvRecordsOf({ srvGroup }: ServiceRecords): readonly DnsRecord[] {
  const { ports = [], targets = [] } = srvGroup ?? {};
  return [...ports].flatMap(([name, numbers]) =>
    numbers.flatMap((port) => targets.map((target) => srvRecord(name, port, target))),
  );
}

/** Records by name, sorted, without duplicates. */
export function byName(records: readonly DnsRecord[]): ReadonlyMap<string, readonly DnsRecord[]> {
  const names = new Map<string, DnsRecord[]>();
  for (const record of records) {
    const list = names.get(record.name) ?? [];
    if (list.every((each) => compareRecords(each, record) !== 0)) list.push(record);
    names.set(record.name, list.sort(compareRecords));
  }
  return names;
}

/** `A 10.3.0.1`, `SRV 0 100 443 web.default.svc.cluster.local`. */
export function recordLine(record: DnsRecord): string {
  if (record.type !== 'SRV') return `${record.type} ${record.data}`;
  const { priority, weight, port, target } = record.data;
  return `SRV ${priority} ${weight} ${port} ${target}`;
}

/** Expected answer: NXDOMAIN, NODATA, the records of the type, or the CNAME instead. */
export function ask(zone: Zone, name: string, type: DnsRecord['type']): readonly string[] | string {
  const records = zone.lookup(name);
  if (records === undefined) return 'NXDOMAIN';
  const answer = records.filter((record) => record.type === type || record.type === 'CNAME');
  return answer.length === 0 ? 'NODATA' : answer.map(recordLine);
}

/** All records of a name as lines; undefined for a nonexistent name. */
export function linesOf(zone: Zone, name: string): readonly string[] | undefined {
  return zone.lookup(name)?.map(recordLine);
}
