import { canonicalCidr } from './addresses.ts';
import type { Peer } from './policy-objects.ts';
import {
  child,
  type Field,
  fail,
  isRecord,
  onlyMember,
  shown,
  someItems,
  text,
} from './read-field.ts';
import { readSelector } from './read-selector.ts';

/** Of CIDRs that are written one beside the other. */
const MAX_CIDRS = 25;
/** Of NPEP-182's structs. */
const MAX_STRUCTS = 100;

/**
 * A CIDR without its host bits. As API servers that are strict (KEP-4858), and as isCIDR of
 * their CEL, it takes no IPv4 in IPv6 and no leading zeros: these are other hosts to other readers.
 */
export function network(field: Field): string {
  const value = text(field);
  const canonical = canonicalCidr(value);
  return canonical ?? fail(field, `must be a CIDR such as 10.0.0.0/8, not ${shown(value)}`);
}

/**
 * `networks` of a peer in each form that it is written in: a list of CIDRs (upstream, NPEP-133), a list of
 * structs with `cidrs` or `cidrGroups` (NPEP-182's type), and one such struct (NPEP-182's example).
 */
export function readNetworks(field: Field): Peer[] {
  if (isRecord(field.value)) return readStruct(field);
  const list = someItems(field, MAX_STRUCTS);
  const cidrs = list.filter(({ value }) => !isRecord(value)).length;
  if (cidrs > MAX_CIDRS) fail(field, `must have at most ${MAX_CIDRS} CIDRs, not ${cidrs}`);
  return list.flatMap((item) => (isRecord(item.value) ? readStruct(item) : [networkPeer(item)]));
}

function readStruct(field: Field): Peer[] {
  const member = onlyMember(field, ['cidrs', 'cidrGroups']);
  const value = child(field, member);
  if (member === 'cidrGroups') return [{ kind: 'cidrGroups', selector: readSelector(value) }];
  return someItems(value, MAX_CIDRS).map(networkPeer);
}

function networkPeer(field: Field): Peer {
  return { kind: 'network', cidr: network(field), except: [] };
}
