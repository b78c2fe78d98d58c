/** Names of objects and ports, as Kubernetes checks them. */
import { describeValue, fail, isMissing, type ObjectField, readString } from './read-field.ts';

const LABEL = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/;
const SUBDOMAIN = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/;

export function isDnsLabel(text: string): boolean {
  return text.length <= 63 && LABEL.test(text);
}

/** Its labels may be longer than DNS has them, which the API server lets pass. */
export function isDnsSubdomain(text: string): boolean {
  return text.length <= 253 && SUBDOMAIN.test(text);
}

/** A DNS-1123 label: what names of Services, namespaces and ports are. */
export function readDnsLabel(field: ObjectField): string {
  const value = readString(field);
  if (isDnsLabel(value)) return value;
  const form = "a DNS label (a-z, 0-9 and '-', at most 63 characters)";
  return fail(field, `must be ${form}, not ${describeValue(value)}`);
}

/** A DNS-1123 subdomain: what names of most other objects are. */
export function readDnsSubdomain(field: ObjectField): string {
  const value = readString(field);
  if (isDnsSubdomain(value)) return value;
  const form = "a DNS subdomain (a-z, 0-9, '-' and '.', at most 253 characters)";
  return fail(field, `must be ${form}, not ${describeValue(value)}`);
}

/** The name of a port: a DNS label, or empty (Kubernetes' ValidateServicePort, validatePorts). */
export function readPortName(field: ObjectField): string {
  return isMissing(field) || field.value === '' ? '' : readDnsLabel(field);
}
