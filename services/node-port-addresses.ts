/** Which addresses of the node serve node ports: `--nodeport-addresses`, as kube-proxy 1.37 reads it. */
import { cidrContains, familyOf, isLoopback } from '../api/addresses.ts';
import type { IpFamily } from '../api/objects.ts';

/** Any of `primary`, `localhost`, `all` and canonical CIDRs; none: every address. */
export type NodePortSelection = readonly string[];

/** The addresses of this node in one IP family. */
export interface NodeAddresses {
  /** All, sorted. */
  readonly addresses: readonly string[];
  /** The first address of the Node object in this family; without a Node object, every address but loopback ones. */
  readonly primary: readonly string[];
}

/** The loopback addresses. */
export const LOOPBACK_CIDRS: Readonly<Record<IpFamily, string>> = {
  IPv4: '127.0.0.0/8',
  IPv6: '::1/128',
};

/**
 * The addresses that are selected in one family. Loopback addresses are among them where they are selected.
 * @returns `all` where every address is, also those that the node does not have yet.
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

/** Whether anything is said of a family; one of which nothing is said is not restricted. */
export function mentionsFamily(selection: NodePortSelection, family: IpFamily): boolean {
  return selection.includes('primary') || cidrsOf(selection, family).length > 0;
}

/** Whether node ports are selected on the loopback address, by name or as one of many. */
export function selectsLoopback(selection: NodePortSelection, family: IpFamily): boolean {
  if (!mentionsFamily(selection, family)) return true;
  return cidrsOf(selection, family).some((cidr) => cidrContains(cidr, loopbackAddress(family)));
}

/**
 * Whether the loopback address is asked for by name: `localhost`, or a CIDR of loopback addresses. `all` and zero CIDRs do
 * not ask for it (KEP-6032).
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
