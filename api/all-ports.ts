/**
 * Which ports of a Service are served: `spec.allPorts` (KEP-2610), annotation `portwide.dev/ports`,
 * or ports owned by pods.
 */
import type { ObjectKey, Service } from './objects.ts';
import { PROTOCOLS } from './objects.ts';
import { OWNED_PORTS_ANNOTATION, type OwnedPorts, parseOwnedPorts } from './owned-ports.ts';
import {
  isTooLong,
  MAX_RANGES,
  MAX_VALUE_LENGTH,
  normalizeRanges,
  type PortRange,
  parsePortItem,
  withoutRanges,
} from './ports.ts';

/** Prefix of Portwide's own annotations. */
export const ANNOTATION_PREFIX = 'portwide.dev/';
export const PORTS_ANNOTATION = 'portwide.dev/ports';
const ANNOTATION_FIELD = annotationField(PORTS_ANNOTATION);
const OWNED_PORTS_FIELD = annotationField(OWNED_PORTS_ANNOTATION);

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
  'OwnedPorts',
  'LoadBalancing',
  'FeatureGate',
  'NodeAddress',
  'Overlap',
  'Budget',
] as const;
export type RefusalReason = (typeof REFUSAL_REASONS)[number];

/** Why a Service, or one of its VIPs, is not served. */
export interface ServiceRefusal {
  readonly serviceKey: ObjectKey;
  readonly reason: RefusalReason;
  readonly field: string;
  readonly message: string;
  /** Set if another Service has the VIP, or the requested ports of it. */
  readonly lostVip?: LostVip;
}

/** A VIP with ports that a Service requests and another Service has. */
export interface LostVip {
  readonly vip: string;
  /** The Service that has the VIP or the ports. */
  readonly to: ObjectKey;
  /** Whether pods of the loser would own the ports. */
  readonly ownsPorts: boolean;
}

/** The ports on which a Service is served. */
export type PortScheme =
  | { readonly kind: 'listed' }
  | {
      readonly kind: 'unlisted';
      /** Ports whose connections are spread over all endpoints; an owned port is never one of them. */
      readonly spread: 'all' | readonly PortRange[];
      readonly owned: OwnedPorts | undefined;
    }
  | { readonly kind: 'refused'; readonly refusals: readonly ServiceRefusal[] };

/** What this agent serves besides listed ports of cluster and load balancer IPs. */
export interface PortFeatures {
  /** The feature gate `AllPorts`. */
  readonly allPorts: boolean;
  /** The feature gate `AllowServiceExternalIPs` (KEP-5707). */
  readonly externalIPs: boolean;
  /** The proxy mode that cannot serve ports owned by pods; undefined if the mode can. */
  readonly modeWithoutOwnedPorts: string | undefined;
  /** Why endpoints cannot be selected by a hash of the client; undefined if they can. */
  readonly consistentHashProblem: string | undefined;
}

/** For readers of Services that serve no packets: DNS and environment variables. */
export const ALL_PORT_FEATURES: PortFeatures = {
  allPorts: true,
  externalIPs: true,
  modeWithoutOwnedPorts: undefined,
  consistentHashProblem: undefined,
};

type AnnotationValue =
  | { readonly kind: 'off' | 'all' }
  | { readonly kind: 'ranges'; readonly ranges: readonly PortRange[] }
  | { readonly kind: 'bad'; readonly message: string };

/**
 * Parses annotation `portwide.dev/ports`: `all`, `false`, or comma-separated ports and ranges with
 * an optional protocol, such as `5060/UDP,20000-50000/UDP,8000-8100`. White space around an item is
 * ignored. Without a protocol a range applies to TCP, UDP and SCTP, and counts as three. The returned ranges are
 * sorted and merged (see `normalizeRanges`).
 */
export function parsePortsAnnotation(value: string): AnnotationValue {
  const text = value.trim();
  if (text === 'all') return { kind: 'all' };
  if (text === 'false') return { kind: 'off' };
  if (isTooLong(value)) {
    return { kind: 'bad', message: `longer than ${MAX_VALUE_LENGTH} characters` };
  }
  const items = text.split(',');
  // As the admission policy counts: before items are parsed or joined.
  const count = items.reduce((sum, item) => sum + (item.includes('/') ? 1 : PROTOCOLS.length), 0);
  if (count > MAX_RANGES) return { kind: 'bad', message: `more than ${MAX_RANGES} ranges` };
  const ranges: PortRange[] = [];
  for (const item of items) {
    const parsed = parseItem(item.trim());
    if (typeof parsed === 'string') return { kind: 'bad', message: parsed };
    ranges.push(...parsed);
  }
  return { kind: 'ranges', ranges: normalizeRanges(ranges) };
}

function parseItem(item: string): PortRange[] | string {
  const parsed = parsePortItem(item, '; "all" and "false" must stand alone');
  if (typeof parsed === 'string') return parsed;
  const { from, to, protocol } = parsed;
  const protocols = protocol === undefined ? PROTOCOLS : [protocol];
  return protocols.map((each) => ({ protocol: each, from, to }));
}

/**
 * Decides on which ports a Service is served, from `spec.allPorts` (KEP-2610), from the annotation
 * that replaces this field on stock API servers, and from the annotations of owned ports. Reports
 * every reason for refusal, not only the first.
 */
export function portScheme(service: Service, features: PortFeatures): PortScheme {
  const annotation: AnnotationValue =
    service.portsAnnotation === undefined
      ? { kind: 'off' }
      : parsePortsAnnotation(service.portsAnnotation);
  const byField = service.allPorts === true;
  const { ownedPortsAnnotation } = service;
  const isOwned = ownedPortsAnnotation !== undefined;
  if (!byField && annotation.kind === 'off' && !isOwned) return { kind: 'listed' };

  const refusals: ServiceRefusal[] = [];
  const refuse = (reason: RefusalReason, field: string, message: string) =>
    refusals.push({ serviceKey: service.key, reason, field, message });

  const otherField = annotation.kind === 'off' ? OWNED_PORTS_FIELD : ANNOTATION_FIELD;
  if (!features.allPorts) {
    const field = byField ? 'spec.allPorts' : otherField;
    refuse('FeatureGate', field, 'the feature gate AllPorts is off on this node');
  }
  if (annotation.kind === 'bad') refuse('Annotation', ANNOTATION_FIELD, annotation.message);
  if (byField && annotation.kind === 'ranges') {
    refuse('Annotation', ANNOTATION_FIELD, 'port ranges contradict spec.allPorts: true');
  }
  const parsed = isOwned
    ? parseOwnedPorts(ownedPortsAnnotation, service.portsPerPodAnnotation)
    : [];
  if ('ranges' in parsed && features.modeWithoutOwnedPorts !== undefined) {
    const message = `mode ${features.modeWithoutOwnedPorts} cannot serve ports owned by pods; use mode nftables`;
    refuse('OwnedPorts', OWNED_PORTS_FIELD, message);
  }
  if (!('ranges' in parsed)) {
    for (const problem of parsed) {
      refuse('Annotation', annotationField(problem.annotation), problem.message);
    }
  }
  const needsVip = `${isOwned ? 'a Service with owned ports' : 'an all-ports Service'} needs a VIP`;
  if (service.type === 'NodePort') {
    refuse('NodePort', 'spec.type', 'a NodePort Service cannot serve all ports of a node');
  } else if (service.type === 'ExternalName') {
    refuse('ExternalName', 'spec.type', `an ExternalName Service has no VIP, and ${needsVip}`);
  } else if (service.headless) {
    refuse('Headless', 'spec.clusterIP', `a headless Service has no VIP, and ${needsVip}`);
  } else if (service.clusterIPs.length === 0) {
    refuse(
      'Headless',
      'spec.clusterIP',
      `no cluster IP is set, and ${needsVip}; in a manifest, set spec.clusterIP`,
    );
  }
  if (service.externalIPs.length > 0 || service.addressProblems?.hasUnreadableExternalIP) {
    refuse('ExternalIPs', 'spec.externalIPs', 'external IPs cannot be served on all ports');
  }
  if (byField && service.ports.length > 0) {
    refuse('Ports', 'spec.ports', 'must be empty when spec.allPorts is true');
  }

  if (refusals.length > 0) return { kind: 'refused', refusals };
  const owned = 'ranges' in parsed ? parsed : undefined;
  if (byField || annotation.kind === 'all') return { kind: 'unlisted', spread: 'all', owned };
  const ranges = annotation.kind === 'ranges' ? annotation.ranges : [];
  const spread = owned === undefined ? ranges : withoutRanges(ranges, owned.ranges);
  return { kind: 'unlisted', spread, owned };
}

/** The path of an annotation. */
export function annotationField(annotation: string): string {
  return `metadata.annotations["${annotation}"]`;
}
