/**
 * Which ports of a Service are served: `spec.allPorts` (KEP-2610) or annotation
 * `portwide.dev/ports`.
 */
import type { ObjectKey, Service } from './objects.ts';
import { PROTOCOLS } from './objects.ts';
import { isPort, isProtocol, normalizeRanges, type PortRange } from './ports.ts';

/** Prefix of Portwide's own annotations. */
export const ANNOTATION_PREFIX = 'portwide.dev/';
export const PORTS_ANNOTATION = 'portwide.dev/ports';
const ANNOTATION_FIELD = `metadata.annotations["${PORTS_ANNOTATION}"]`;

/**
 * Upper bound on ranges per Service. In mode iptables each range is one rule for each VIP, so
 * without the bound a packet to the VIP could traverse thousands of rules.
 */
export const MAX_RANGES = 1024;

/**
 * Longest accepted annotation value: MAX_RANGES ranges in their longest form, each followed by a
 * comma and a space. In the admission policy, each character adds to the CEL cost.
 */
export const MAX_VALUE_LENGTH = MAX_RANGES * '10000-65535/SCTP, '.length;

/**
 * Causes of refusal, one word each: label values of the refused-Services metric and part of Event
 * reasons.
 */
export const REFUSAL_REASONS = [
  'NodePort',
  'ExternalName',
  'Headless',
  'ExternalIPs',
  'Ports',
  'Annotation',
  'FeatureGate',
  'NodeAddress',
  'Overlap',
] as const;
export type RefusalReason = (typeof REFUSAL_REASONS)[number];

/** Why a Service, or one of its VIPs, is not served. */
export interface ServiceRefusal {
  readonly serviceKey: ObjectKey;
  readonly reason: RefusalReason;
  readonly field: string;
  readonly message: string;
}

/** The ports on which a Service is served. */
export type PortScheme =
  | { readonly kind: 'listed' }
  | { readonly kind: 'all' }
  | { readonly kind: 'ranges'; readonly ranges: readonly PortRange[] }
  | { readonly kind: 'refused'; readonly refusals: readonly ServiceRefusal[] };

type AnnotationValue =
  | { readonly kind: 'off' | 'all' }
  | { readonly kind: 'ranges'; readonly ranges: readonly PortRange[] }
  | { readonly kind: 'bad'; readonly message: string };

/**
 * Parses annotation `portwide.dev/ports`: `all`, `false`, or comma-separated ports and ranges with
 * an optional protocol, such as `5060/UDP,20000-50000/UDP,8000-8100`. White space around an item is
 * ignored. Without a protocol a range applies to TCP, UDP and SCTP. The returned ranges are
 * sorted and merged (see `normalizeRanges`).
 */
export function parsePortsAnnotation(value: string): AnnotationValue {
  const text = value.trim();
  if (text === 'all') return { kind: 'all' };
  if (text === 'false') return { kind: 'off' };
  if (value.length > MAX_VALUE_LENGTH && [...value].length > MAX_VALUE_LENGTH) {
    return { kind: 'bad', message: `longer than ${MAX_VALUE_LENGTH} characters` };
  }
  const ranges: PortRange[] = [];
  for (const item of text.split(',')) {
    const parsed = parseItem(item.trim());
    if (typeof parsed === 'string') return { kind: 'bad', message: parsed };
    ranges.push(...parsed);
  }
  const joined = normalizeRanges(ranges);
  if (joined.length > MAX_RANGES) {
    return { kind: 'bad', message: `more than ${MAX_RANGES} separate ranges` };
  }
  return { kind: 'ranges', ranges: joined };
}

function parseItem(item: string): PortRange[] | string {
  const shown = JSON.stringify(item);
  const match = /^(\d{1,5})(?:-(\d{1,5}))?(?:\/(.*))?$/.exec(item);
  if (match === null) {
    return `${shown} is not a port or range such as 5060/UDP or 8000-8100; "all" and "false" must stand alone`;
  }
  const from = Number(match[1]);
  const to = Number(match[2] ?? match[1]);
  const protocol = match[3];
  if (!isPort(from) || !isPort(to)) return `${shown}: ports are 1 to 65535`;
  if (from > to) return `${shown}: the range ends before it begins`;
  if (protocol === undefined) return PROTOCOLS.map((each) => ({ protocol: each, from, to }));
  if (!isProtocol(protocol)) return `${shown}: the protocol must be TCP, UDP or SCTP`;
  return [{ protocol, from, to }];
}

/**
 * Decides on which ports a Service is served, from `spec.allPorts` (KEP-2610) or from the
 * annotation that replaces this field on stock API servers. Reports every reason for refusal, not
 * only the first.
 * @param allPortsEnabled the feature gate `AllPorts`.
 */
export function portScheme(service: Service, allPortsEnabled: boolean): PortScheme {
  const annotation: AnnotationValue =
    service.portsAnnotation === undefined
      ? { kind: 'off' }
      : parsePortsAnnotation(service.portsAnnotation);
  const byField = service.allPorts === true;
  if (!byField && annotation.kind === 'off') return { kind: 'listed' };

  const refusals: ServiceRefusal[] = [];
  const refuse = (reason: RefusalReason, field: string, message: string) =>
    refusals.push({ serviceKey: service.key, reason, field, message });

  if (!allPortsEnabled) {
    const field = byField ? 'spec.allPorts' : ANNOTATION_FIELD;
    refuse('FeatureGate', field, 'the feature gate AllPorts is off on this node');
  }
  if (annotation.kind === 'bad') refuse('Annotation', ANNOTATION_FIELD, annotation.message);
  if (byField && annotation.kind === 'ranges') {
    refuse('Annotation', ANNOTATION_FIELD, 'port ranges contradict spec.allPorts: true');
  }
  if (service.type === 'NodePort') {
    refuse('NodePort', 'spec.type', 'a NodePort Service cannot serve all ports of a node');
  } else if (service.type === 'ExternalName') {
    refuse(
      'ExternalName',
      'spec.type',
      'an ExternalName Service has no VIP, and an all-ports Service needs a VIP',
    );
  } else if (service.headless) {
    refuse(
      'Headless',
      'spec.clusterIP',
      'a headless Service has no VIP, and an all-ports Service needs a VIP',
    );
  } else if (service.clusterIPs.length === 0) {
    refuse(
      'Headless',
      'spec.clusterIP',
      'no cluster IP is set, and an all-ports Service needs a VIP; in a manifest, set spec.clusterIP',
    );
  }
  if (service.externalIPs.length > 0) {
    refuse('ExternalIPs', 'spec.externalIPs', 'external IPs cannot be served on all ports');
  }
  if (byField && service.ports.length > 0) {
    refuse('Ports', 'spec.ports', 'must be empty when spec.allPorts is true');
  }

  if (refusals.length > 0) return { kind: 'refused', refusals };
  return !byField && annotation.kind === 'ranges' ? annotation : { kind: 'all' };
}
