/** Ports as AdminNetworkPolicies and ClusterNetworkPolicies write them; NetworkPolicies have their own way. */
import { PROTOCOLS, type Protocol } from './objects.ts';
import type { PortMatch } from './policy-objects.ts';
import {
  child,
  type Field,
  fail,
  integer,
  isMissing,
  members,
  onlyMember,
  text,
  word,
} from './read-field.ts';

/** TCP where there is none. */
export function protocol(field: Field): Protocol {
  return isMissing(field) ? 'TCP' : word(field, PROTOCOLS);
}

/** An AdminNetworkPolicyPort. */
export function adminPort(field: Field): PortMatch {
  const form = onlyMember(field, ['portNumber', 'portRange', 'namedPort']);
  const value = child(field, form);
  if (form === 'namedPort') return namedPort(value);
  members(value, form === 'portNumber' ? ['protocol', 'port'] : ['protocol', 'start', 'end']);
  const ofProtocol = protocol(child(value, 'protocol'));
  if (form === 'portRange') return { protocol: ofProtocol, ...range(value) };
  const port = integer(child(value, 'port'), 1, 65535);
  return { protocol: ofProtocol, first: port, last: port };
}

/**
 * A ClusterNetworkPolicyProtocol. A protocol has to say something of its own: one that looks empty
 * has a field of a version to come.
 */
export function clusterPort(field: Field): PortMatch {
  const form = onlyMember(field, ['tcp', 'udp', 'sctp', 'destinationNamedPort']);
  const value = child(field, form);
  if (form === 'destinationNamedPort') return namedPort(value);
  const ofProtocol = { tcp: 'TCP', udp: 'UDP', sctp: 'SCTP' } as const;
  const port = child(value, onlyMember(value, ['destinationPort']));
  const kind = onlyMember(port, ['number', 'range']);
  if (kind === 'range') {
    members(child(port, 'range'), ['start', 'end']);
    return { protocol: ofProtocol[form], ...range(child(port, 'range')) };
  }
  const number = integer(child(port, 'number'), 1, 65535);
  return { protocol: ofProtocol[form], first: number, last: number };
}

/** A range of one port is that port, though ClusterNetworkPolicy's CRD takes none. */
function range(field: Field): { first: number; last: number } {
  const first = integer(child(field, 'start'), 1, 65535);
  const last = integer(child(field, 'end'), 1, 65535);
  if (last < first) fail(child(field, 'end'), `must not be below start, ${first}`);
  return { first, last };
}

/** A name that no pod gives to a port is one that matches nothing. */
function namedPort(field: Field): PortMatch {
  const name = text(field);
  if (name === '') fail(field, 'must not be empty');
  return { protocol: undefined, name };
}
