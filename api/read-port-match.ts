/** Ports as AdminNetworkPolicies and ClusterNetworkPolicies write them; NetworkPolicies have their own way. */
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

/** TCP where there is none. */
export function readPolicyProtocol(field: ObjectField): Protocol {
  return isMissing(field) ? 'TCP' : readEnum(field, PROTOCOLS);
}

/** An AdminNetworkPolicyPort. */
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
 * A ClusterNetworkPolicyProtocol. A protocol has to say something of its own: one that looks empty
 * has a field of a version to come.
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

/** A range of one port is that port, though ClusterNetworkPolicy's CRD takes none. */
function range(field: ObjectField): { first: number; last: number } {
  const first = readInteger(child(field, 'start'), 1, 65535);
  const last = readInteger(child(field, 'end'), 1, 65535);
  if (last < first) fail(child(field, 'end'), `must not be below start, ${first}`);
  return { first, last };
}

/** A name that no pod gives to a port is one that matches nothing. */
function namedPort(field: ObjectField): PortMatch {
  const name = readString(field);
  if (name === '') fail(field, 'must not be empty');
  return { protocol: undefined, name };
}
