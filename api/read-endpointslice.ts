/** EndpointSlices of `discovery.k8s.io/v1`. */
import { familyOf } from './addresses.ts';
import { kept } from './collections.ts';
import {
  type EndpointSlice,
  type IpFamily,
  PROTOCOLS,
  type SliceEndpoint,
  type SlicePort,
} from './objects.ts';
import { ALL_SPECIAL, address } from './read-address.ts';
import {
  child,
  choice,
  type Field,
  fail,
  isRecord,
  items,
  optionalBoolean,
  optionalInteger,
  optionalText,
  shown,
  text,
} from './read-field.ts';
import { parseTime, readMetadata } from './read-metadata.ts';
import { dnsLabel, dnsSubdomain, portName } from './read-name.ts';
import { shared } from './shared-text.ts';

const SERVICE_NAME_LABEL = 'kubernetes.io/service-name';
export const SERVICE_NAME_FIELD = `metadata.labels["${SERVICE_NAME_LABEL}"]`;
const TRIGGER_TIME_ANNOTATION = 'endpoints.kubernetes.io/last-change-trigger-time';

/**
 * An EndpointSlice of `discovery.k8s.io/v1`. Held against the rules of Kubernetes'
 * ValidateEndpointSlice, conditions as kube-proxy takes them.
 * @returns undefined for a slice that says nothing here: of the address type FQDN, or without the
 * label `kubernetes.io/service-name`.
 * @throws InvalidObject for the first field that cannot be read.
 */
export function readEndpointSlice(raw: unknown): EndpointSlice | undefined {
  const { root, metadata, key, namespace, name } = readMetadata('EndpointSlice', raw);
  const labels = child(metadata, 'labels');
  const serviceName = child(labels, SERVICE_NAME_LABEL);
  if (optionalText(serviceName) === undefined) return undefined;
  const addressType = child(root, 'addressType');
  if (optionalText(addressType) === undefined) fail(addressType, 'is required');
  const family = choice(addressType, ['IPv4', 'IPv6', 'FQDN'], 'FQDN');
  if (family === 'FQDN') return undefined;
  return {
    kind: 'EndpointSlice',
    key,
    namespace,
    name,
    serviceKey: `${namespace}/${dnsLabel(serviceName)}`,
    headlessLabel: child(labels, 'service.kubernetes.io/headless').value !== undefined,
    family,
    triggerTime: readTriggerTime(child(metadata, 'annotations').value),
    ports: kept(readPorts(child(root, 'ports'))),
    endpoints: items(child(root, 'endpoints')).map((field) => readEndpoint(field, family)),
  };
}

/** Why `readEndpointSlice` gave undefined for a slice, for those who wrote it by hand. */
export function whySliceIsUnused(raw: unknown): { object: string; field: string; reason: string } {
  const { root, key, metadata } = readMetadata('EndpointSlice', raw);
  const object = `EndpointSlice ${key}`;
  const label = child(child(metadata, 'labels'), SERVICE_NAME_LABEL);
  if (optionalText(label) === undefined) {
    const reason = 'is missing, so the slice belongs to no Service; set it to the name of one';
    return { object, field: SERVICE_NAME_FIELD, reason };
  }
  const { value } = child(root, 'addressType');
  const reason = `${shown(value)} is not served; use IPv4 or IPv6`;
  return { object, field: 'addressType', reason };
}

/** It serves a measurement only: what cannot be read is no reason not to serve the slice. */
function readTriggerTime(annotations: unknown): number | undefined {
  if (!isRecord(annotations) || !Object.hasOwn(annotations, TRIGGER_TIME_ANNOTATION)) {
    return undefined;
  }
  const given = annotations[TRIGGER_TIME_ANNOTATION];
  return typeof given === 'string' ? parseTime(given)?.getTime() : undefined;
}

function readPorts(list: Field): SlicePort[] {
  const names = new Set<string>();
  const ports: SlicePort[] = [];
  for (const field of items(list)) {
    const name = portName(child(field, 'name'));
    if (names.has(name)) fail(child(field, 'name'), `is the second port named "${name}"`);
    names.add(name);
    const protocol = choice(child(field, 'protocol'), PROTOCOLS, 'TCP');
    const port = optionalInteger(child(field, 'port'), 0, 65535);
    // The API does not check the number; kube-proxy leaves out a port 0.
    if (port !== 0) ports.push({ name, protocol, port });
  }
  return ports;
}

function readEndpoint(field: Field, family: IpFamily): SliceEndpoint {
  const addresses = items(child(field, 'addresses')).map((item) => {
    const canonical = address(item, ALL_SPECIAL);
    if (familyOf(canonical) !== family) fail(item, `must be an ${family} address`);
    return canonical;
  });
  const [first] = addresses;
  if (first === undefined) fail(child(field, 'addresses'), 'must hold an address');
  const conditions = child(field, 'conditions');
  const nodeName = child(field, 'nodeName');
  const zone = optionalText(child(field, 'zone'));
  const hostname = child(field, 'hostname');
  const hints = child(field, 'hints');
  return {
    address: first,
    ready: optionalBoolean(child(conditions, 'ready')) ?? true,
    serving: optionalBoolean(child(conditions, 'serving')) ?? true,
    terminating: optionalBoolean(child(conditions, 'terminating')) ?? false,
    nodeName: optionalText(nodeName) === undefined ? undefined : shared(dnsSubdomain(nodeName)),
    zone: zone === undefined ? undefined : shared(zone),
    hostname: optionalText(hostname) === undefined ? undefined : dnsLabel(hostname),
    hintedZones: readHints(child(hints, 'forZones')),
    hintedNodes: readHints(child(hints, 'forNodes')),
  };
}

/** An empty list is no hint (kube-proxy). */
function readHints(list: Field): string[] | undefined {
  const names = items(list).map((hint) => text(child(hint, 'name')));
  return names.length === 0 ? undefined : names;
}
