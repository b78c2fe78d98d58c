/** Networks as peers of policies, and groups of them: `networks` of NPEP-133, CIDRGroups of NPEP-182. */
import { kept } from './collections.ts';
import type { CidrGroup, Peer } from './policy-objects.ts';
import { cidr } from './read-address.ts';
import {
  child,
  type Field,
  fail,
  isMissing,
  isRecord,
  members,
  onlyMember,
  someItems,
} from './read-field.ts';
import { readMetadata } from './read-metadata.ts';
import { readLabels, readSelector } from './read-selector.ts';

/** Of CIDRs that are written one beside the other. */
const MAX_CIDRS = 25;
/** Of NPEP-182's structs. */
const MAX_STRUCTS = 100;

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
  return { kind: 'network', cidr: cidr(field), except: [] };
}

/**
 * A CIDRGroup of `policy.networking.k8s.io/v1alpha1` (NPEP-182). Its CIDRs are under `spec`, as in
 * the document's example, or at the top, as in its Go type. There has to be one.
 * @throws InvalidObject for the first field that cannot be read. A group of which a part is left out
 * would allow less, but also deny less: it stays as it was.
 */
export function readCidrGroup(raw: unknown): CidrGroup {
  const { root, metadata, key, name } = readMetadata('CIDRGroup', raw);
  const spec = child(root, 'spec');
  members(spec, ['cidrs']);
  const own = child(spec, 'cidrs');
  const flat = child(root, 'cidrs');
  if (!isMissing(own) && !isMissing(flat)) fail(flat, 'must not be set beside spec.cidrs');
  const cidrs = someItems(isMissing(flat) ? own : flat, MAX_CIDRS);
  return {
    kind: 'CIDRGroup',
    key,
    name,
    labels: readLabels(metadata),
    cidrs: kept([...new Set(cidrs.map(cidr))]),
  };
}
