/**
 * Reads ports in the form of AdminNetworkPolicy and ClusterNetworkPolicy. See
 * `read-network-policy.ts` for NetworkPolicy.
 */
import { PROTOCOLS, type Protocol } from './objects.ts';
import type { PortMatch } from './policy-objects.ts';
import {
  child,
  fail,
  isMissing,
  knownFields,
  type ObjectField,
  oneOfField,
  readEnum,
  readInteger,
  readString,
} from './read-field.ts';

/** Reads a protocol; TCP when missing. */
export function readPolicyProtocol(field: ObjectField): Protocol {
  return isMissing(field) ? 'TCP' : readEnum(field, PROTOCOLS);
}

/** Reads an AdminNetworkPolicyPort. */
export function readAdminPort(field: ObjectField): PortMatch {
  const form = oneOfField(field, ['portNumber', 'portRange', 'namedPort']);
  const value = child(field, form);
  if (form === 'namedPort') return namedPort(value);
  knownFields(value, form === 'portNumber' ? ['protocol', 'port'] : ['protocol', 'start', 'end']);
  const ofProtocol = readPolicyProtocol(child(value, 'protocol'));
  if (form === 'portRange') return { protocol: ofProtocol, ...range(value) };
  const port = readInteger(child(value, 'port'), 1, 65535);
  return { protocol: ofProtocol, first: port, last: port };
}

/**
 * Reads a ClusterNetworkPolicyProtocol. A protocol without any known field is rejected, because it
 * probably has a field of a later API version.
 */
export function readClusterPort(field: ObjectField): PortMatch {
  const form = oneOfField(field, ['tcp', 'udp', 'sctp', 'destinationNamedPort']);
  const value = child(field, form);
  if (form === 'destinationNamedPort') return namedPort(value);
  const ofProtocol = { tcp: 'TCP', udp: 'UDP', sctp: 'SCTP' } as const;
  const port = child(value, oneOfField(value, ['destinationPort']));
  const kind = oneOfField(port, ['number', 'range']);
  if (kind === 'range') {
    knownFields(child(port, 'range'), ['start', 'end']);
    return { protocol: ofProtocol[form], ...range(child(port, 'range')) };
  }
  const number = readInteger(child(port, 'number'), 1, 65535);
  return { protocol: ofProtocol[form], first: number, last: number };
}

/**
 * Reads a port range. Accepts a range of one port, although ClusterNetworkPolicy's CRD rejects it.
 */
function range(field: ObjectField): { first: number; last: number } {
  const first = readInteger(child(field, 'start'), 1, 65535);
  const last = readInteger(child(field, 'end'), 1, 65535);
  if (last < first)
    fail(child(field, 'end'), `must not be less than start (${first}), but is ${last}`);
  return { first, last };
}

/**
 * Reads a port name. Accepts any text except the empty string: a name that no pod uses matches
 * nothing.
 */
function namedPort(field: ObjectField): PortMatch {
  const name = readString(field);
  if (name === '') fail(field, 'must not be empty');
  return { protocol: undefined, name };
}
