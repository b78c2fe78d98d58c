import { type Field, fail, isMissing, shown, text } from './read-field.ts';

const LABEL = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/;
const SUBDOMAIN = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/;

/** Whether text is a DNS-1123 label, which Kubernetes writes in lower case. */
export function isDnsLabel(value: string): boolean {
  return value.length <= 63 && LABEL.test(value);
}

/** Whether text is a DNS-1123 subdomain; its labels may be longer than DNS has them. */
export function isDnsSubdomain(value: string): boolean {
  return value.length <= 253 && SUBDOMAIN.test(value);
}

/** A DNS-1123 label: what names of Services, namespaces and ports are. */
export function dnsLabel(field: Field): string {
  const value = text(field);
  if (!isDnsLabel(value)) {
    fail(
      field,
      `must be a DNS label (a-z, 0-9 and '-', at most 63 characters), not ${shown(value)}`,
    );
  }
  return value;
}

/** A DNS-1123 subdomain: what names of most other objects are. */
export function dnsSubdomain(field: Field): string {
  const value = text(field);
  if (!isDnsSubdomain(value)) {
    fail(
      field,
      `must be a DNS subdomain (a-z, 0-9, '-' and '.', at most 253 characters), not ${shown(value)}`,
    );
  }
  return value;
}

/** The name of a port: a DNS label, or empty (Kubernetes' ValidateServicePort, validatePorts). */
export function portName(field: Field): string {
  return isMissing(field) || field.value === '' ? '' : dnsLabel(field);
}
