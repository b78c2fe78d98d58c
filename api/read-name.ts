/** Reads names of objects and ports, with Kubernetes' rules. */
import { describeValue, fail, isMissing, type ObjectField, readString } from './read-field.ts';

const LABEL = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/;
const SUBDOMAIN = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/;

export function isDnsLabel(text: string): boolean {
  return text.length <= 63 && LABEL.test(text);
}

/** Unlike DNS, the API server allows labels longer than 63 characters in subdomains. */
export function isDnsSubdomain(text: string): boolean {
  return text.length <= 253 && SUBDOMAIN.test(text);
}

/**
 * Reads a DNS-1123 label, required for names of Services, namespaces and ports.
 * @throws InvalidObject
 */
export function readDnsLabel(field: ObjectField): string {
  const value = readString(field);
  if (isDnsLabel(value)) return value;
  const form = "a DNS label (a-z, 0-9 and '-', at most 63 characters)";
  return fail(field, `must be ${form}, not ${describeValue(value)}`);
}

/**
 * Reads a DNS-1123 subdomain, required for names of most other kinds.
 * @throws InvalidObject
 */
export function readDnsSubdomain(field: ObjectField): string {
  const value = readString(field);
  if (isDnsSubdomain(value)) return value;
  const form = "a DNS subdomain (a-z, 0-9, '-' and '.', at most 253 characters)";
  return fail(field, `must be ${form}, not ${describeValue(value)}`);
}

/**
 * Reads a port name: a DNS label, or empty (Kubernetes' ValidateServicePort, validatePorts).
 * @throws InvalidObject
 */
export function readPortName(field: ObjectField): string {
  return isMissing(field) || field.value === '' ? '' : readDnsLabel(field);
}
