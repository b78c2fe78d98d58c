/** Reads EndpointSlices. */
import { familyOf } from './addresses.ts';
import { trimmedCopy } from './collections.ts';
import { intern } from './intern.ts';
import {
  type EndpointSlice,
  type IpFamily,
  PROTOCOLS,
  type SliceEndpoint,
  type SlicePort,
} from './objects.ts';
import { ordinalOf } from './owned-ports.ts';
import { ALL_SPECIAL, readSloppyAddress } from './read-address.ts';
import {
  child,
  describeValue,
  fail,
  isRecord,
  type ObjectField,
  readList,
  readOptionalBoolean,
  readOptionalEnum,
  readOptionalInteger,
  readOptionalString,
  readString,
} from './read-field.ts';
import { parseTime, readMetadata } from './read-metadata.ts';
import { readDnsLabel, readDnsSubdomain, readPortName } from './read-name.ts';

const SERVICE_NAME_LABEL = 'kubernetes.io/service-name';
export const SERVICE_NAME_FIELD = `metadata.labels["${SERVICE_NAME_LABEL}"]`;
const TRIGGER_TIME_ANNOTATION = 'endpoints.kubernetes.io/last-change-trigger-time';

/**
 * Reads an EndpointSlice of `discovery.k8s.io/v1`. Checks the fields that it reads by the rules of
 * Kubernetes' ValidateEndpointSlice; missing conditions have kube-proxy's defaults.
 * @returns undefined for an unused slice: address type FQDN, or no label
 * `kubernetes.io/service-name`.
 * @throws InvalidObject for the first field that cannot be read.
 */
export function readEndpointSlice(raw: unknown): EndpointSlice | undefined {
  const { root, metadata, key, namespace, name } = readMetadata('EndpointSlice', raw);
  const labels = child(metadata, 'labels');
  const serviceName = child(labels, SERVICE_NAME_LABEL);
  if (readOptionalString(serviceName) === undefined) return undefined;
  const addressType = child(root, 'addressType');
  if (readOptionalString(addressType) === undefined) fail(addressType, 'is required');
  const family = readOptionalEnum(addressType, ['IPv4', 'IPv6', 'FQDN'], 'FQDN');
  if (family === 'FQDN') return undefined;
  return {
    kind: 'EndpointSlice',
    key,
    namespace,
    name,
    serviceKey: `${namespace}/${readDnsLabel(serviceName)}`,
    headlessLabel: child(labels, 'service.kubernetes.io/headless').value !== undefined,
    family,
    triggerTime: readTriggerTime(child(metadata, 'annotations').value),
    ports: trimmedCopy(readPorts(child(root, 'ports'))),
    endpoints: readList(child(root, 'endpoints')).map((field) => readEndpoint(field, family)),
  };
}

/**
 * Explains why `readEndpointSlice` returned undefined, as a warning to the author of the manifest.
 */
export function unusedSliceReason(raw: unknown): { object: string; field: string; reason: string } {
  const { root, key, metadata } = readMetadata('EndpointSlice', raw);
  const object = `EndpointSlice ${key}`;
  const label = child(child(metadata, 'labels'), SERVICE_NAME_LABEL);
  if (readOptionalString(label) === undefined) {
    const reason =
      'is missing, so the slice belongs to no Service; set the label to the name of a Service';
    return { object, field: SERVICE_NAME_FIELD, reason };
  }
  const { value } = child(root, 'addressType');
  const reason = `${describeValue(value)} is not supported; use IPv4 or IPv6`;
  return { object, field: 'addressType', reason };
}

/**
 * Reads the trigger time. Only a metric uses the time, so an unreadable annotation does not reject
 * the slice.
 */
function readTriggerTime(annotations: unknown): number | undefined {
  if (!isRecord(annotations) || !Object.hasOwn(annotations, TRIGGER_TIME_ANNOTATION)) {
    return undefined;
  }
  const given = annotations[TRIGGER_TIME_ANNOTATION];
  return typeof given === 'string' ? parseTime(given)?.getTime() : undefined;
}

function readPorts(list: ObjectField): SlicePort[] {
  const names = new Set<string>();
  const ports: SlicePort[] = [];
  for (const field of readList(list)) {
    const name = readPortName(child(field, 'name'));
    if (names.has(name)) fail(child(field, 'name'), `duplicates the port name "${name}"`);
    names.add(name);
    const protocol = readOptionalEnum(child(field, 'protocol'), PROTOCOLS, 'TCP');
    const port = readOptionalInteger(child(field, 'port'), 0, 65535);
    // The API server does not validate port numbers. kube-proxy skips port 0.
    if (port !== 0) ports.push({ name, protocol, port });
  }
  return ports;
}

function readEndpoint(field: ObjectField, family: IpFamily): SliceEndpoint {
  const addresses = readList(child(field, 'addresses')).map((item) => {
    const canonical = readSloppyAddress(item, ALL_SPECIAL);
    if (familyOf(canonical) !== family) fail(item, `must be an ${family} address`);
    return canonical;
  });
  const [first] = addresses;
  if (first === undefined) fail(child(field, 'addresses'), 'must have an address');
  const conditions = child(field, 'conditions');
  const nodeName = child(field, 'nodeName');
  const zone = readOptionalString(child(field, 'zone'));
  const hostname = child(field, 'hostname');
  const hints = child(field, 'hints');
  return {
    address: first,
    ready: readOptionalBoolean(child(conditions, 'ready')) ?? true,
    serving: readOptionalBoolean(child(conditions, 'serving')) ?? true,
    terminating: readOptionalBoolean(child(conditions, 'terminating')) ?? false,
    nodeName:
      readOptionalString(nodeName) === undefined ? undefined : intern(readDnsSubdomain(nodeName)),
    zone: zone === undefined ? undefined : intern(zone),
    hostname: readOptionalString(hostname) === undefined ? undefined : readDnsLabel(hostname),
    hintedZones: readHints(child(hints, 'forZones')),
    hintedNodes: readHints(child(hints, 'forNodes')),
    ...readOrdinal(field),
  };
}

/**
 * The ordinal of an endpoint: the number behind the last hyphen of the pod's name, or else of the hostname. A name that
 * is no text is no reason to refuse the slice: only owned ports need ordinals.
 */
function readOrdinal(
  endpoint: ObjectField,
): Required<Pick<SliceEndpoint, 'ordinal' | 'ordinalPrefix'>> | undefined {
  const target = child(endpoint, 'targetRef');
  const isPod = isRecord(target.value) && (target.value.kind ?? 'Pod') === 'Pod';
  const names = [
    isPod ? child(target, 'name').value : undefined,
    child(endpoint, 'hostname').value,
  ];
  for (const name of names) {
    if (typeof name !== 'string') continue;
    const ordinal = ordinalOf(name);
    if (ordinal === undefined) continue;
    return { ordinal, ordinalPrefix: intern(name.slice(0, name.lastIndexOf('-') + 1)) };
  }
  return undefined;
}

/** Reads hints. An empty list counts as no hints, as in kube-proxy. */
function readHints(list: ObjectField): string[] | undefined {
  const names = readList(list).map((hint) => readString(child(hint, 'name')));
  return names.length === 0 ? undefined : names;
}
