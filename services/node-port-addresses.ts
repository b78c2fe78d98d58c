/** Which addresses of the node serve node ports: `--nodeport-addresses`, as kube-proxy 1.37 reads it. */
import { cidrContains, familyOf, isLoopback } from '../api/addresses.ts';
import type { IpFamily } from '../api/objects.ts';

/** Any of `primary`, `localhost`, `all` and canonical CIDRs; an empty list selects every address. */
export type NodePortSelection = readonly string[];

/** The addresses of this node in one IP family. */
export interface NodeAddresses {
  /** All addresses of the node in this family, loopback addresses included. */
  readonly addresses: readonly string[];
  /**
   * At most one address: the node IP from the configuration, otherwise the first address of the Node object in this
   * family. If neither the configuration nor a Node object has addresses, all addresses except loopback addresses.
   */
  readonly primary: readonly string[];
}

/** CIDRs of all loopback addresses. */
export const LOOPBACK_CIDRS: Readonly<Record<IpFamily, string>> = {
  IPv4: '127.0.0.0/8',
  IPv6: '::1/128',
};

/**
 * The selected addresses of one family, which may include loopback addresses.
 * @returns `all` if every address is selected, including addresses added later.
 */
export function selectedAddresses(
  selection: NodePortSelection,
  family: IpFamily,
  { addresses, primary }: NodeAddresses,
): 'all' | readonly string[] {
  const cidrs = cidrsOf(selection, family);
  const isPrimary = selection.includes('primary');
  if (!mentionsFamily(selection, family)) return 'all';
  if (cidrs.some((cidr) => cidr.endsWith('/0'))) return 'all';
  const isSelected = (address: string) =>
    cidrs.some((cidr) => cidrContains(cidr, address)) || (isPrimary && primary.includes(address));
  return [
    ...addresses.filter(isSelected),
    ...(isPrimary ? primary.filter((address) => !addresses.includes(address)) : []),
  ];
}

/** Whether an entry of the selection applies to the family. Otherwise the family is not restricted. */
export function mentionsFamily(selection: NodePortSelection, family: IpFamily): boolean {
  return selection.includes('primary') || cidrsOf(selection, family).length > 0;
}

/** Whether the selection includes the loopback address. True if the family is not restricted. */
export function selectsLoopback(selection: NodePortSelection, family: IpFamily): boolean {
  if (!mentionsFamily(selection, family)) return true;
  return cidrsOf(selection, family).some((cidr) => cidrContains(cidr, loopbackAddress(family)));
}

/**
 * Whether the selection names loopback addresses explicitly: `localhost`, or a CIDR of loopback addresses. `all` and
 * CIDRs of length 0 do not (KEP-6032).
 */
export function namesLoopback(selection: NodePortSelection, family: IpFamily): boolean {
  return cidrsOf(selection, family).some((cidr) => isLoopback(cidr.split('/')[0] ?? ''));
}

/** `127.0.0.1` or `::1`. */
export function loopbackAddress(family: IpFamily): string {
  return family === 'IPv4' ? '127.0.0.1' : '::1';
}

function cidrsOf(selection: NodePortSelection, family: IpFamily): string[] {
  return selection.flatMap((entry) => {
    if (entry === 'primary') return [];
    if (entry === 'all') return family === 'IPv4' ? ['0.0.0.0/0'] : ['::/0'];
    if (entry === 'localhost') return [LOOPBACK_CIDRS[family]];
    return familyOf(entry) === family ? [entry] : [];
  });
}
