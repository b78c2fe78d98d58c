/** Reads networks in policy peers (`networks` of NPEP-133) and CIDRGroups (NPEP-182). */
import { trimmedCopy } from './collections.ts';
import type { CidrGroup, PolicyPeer } from './policy-objects.ts';
import { readCidr } from './read-address.ts';
import {
  child,
  fail,
  isMissing,
  isRecord,
  knownFields,
  type ObjectField,
  oneOfField,
  readNonEmptyList,
} from './read-field.ts';
import { readMetadata } from './read-metadata.ts';
import { readLabels, readSelector } from './read-selector.ts';

/** Maximum number of CIDRs in one list. */
const MAX_CIDRS = 25;
/** Maximum number of NPEP-182 structs in one list. */
const MAX_STRUCTS = 100;

/**
 * Reads `networks` of a peer in each published form:
 * - a list of CIDRs (upstream, NPEP-133),
 * - a list of structs with `cidrs` or `cidrGroups` (NPEP-182's type), or
 * - one such struct (NPEP-182's example).
 * @throws InvalidObject
 */
export function readNetworks(field: ObjectField): PolicyPeer[] {
  if (isRecord(field.value)) return readStruct(field);
  const list = readNonEmptyList(field, MAX_STRUCTS);
  const cidrs = list.filter(({ value }) => !isRecord(value)).length;
  if (cidrs > MAX_CIDRS) fail(field, `must have at most ${MAX_CIDRS} CIDRs, not ${cidrs}`);
  return list.flatMap((item) => (isRecord(item.value) ? readStruct(item) : [networkPeer(item)]));
}

function readStruct(field: ObjectField): PolicyPeer[] {
  const member = oneOfField(field, ['cidrs', 'cidrGroups']);
  const value = child(field, member);
  if (member === 'cidrGroups') return [{ kind: 'cidrGroups', selector: readSelector(value) }];
  return readNonEmptyList(value, MAX_CIDRS).map(networkPeer);
}

function networkPeer(field: ObjectField): PolicyPeer {
  return { kind: 'network', cidr: readCidr(field), except: [] };
}

/**
 * Reads a CIDRGroup of `policy.networking.k8s.io/v1alpha1` (NPEP-182). At least one CIDR is
 * required, under `spec` (NPEP-182's example) or at the top level (its Go type).
 * @throws InvalidObject for the first field that cannot be read. Skipping only an unreadable CIDR
 * would allow less traffic, but also deny less, so the last readable version stays in force.
 */
export function readCidrGroup(raw: unknown): CidrGroup {
  const { root, metadata, key, name } = readMetadata('CIDRGroup', raw);
  const spec = child(root, 'spec');
  knownFields(spec, ['cidrs']);
  const own = child(spec, 'cidrs');
  const flat = child(root, 'cidrs');
  if (!isMissing(own) && !isMissing(flat)) fail(flat, 'must not be set together with spec.cidrs');
  const cidrs = readNonEmptyList(isMissing(flat) ? own : flat, MAX_CIDRS);
  return {
    kind: 'CIDRGroup',
    key,
    name,
    labels: readLabels(metadata),
    cidrs: trimmedCopy([...new Set(cidrs.map(readCidr))]),
  };
}
