/** The flags that decide about traffic in every mode: detection of local pods, masquerade, node port addresses. */
import { familyOf, isLoopback } from '../api/addresses.ts';
import type { IpFamily } from '../api/objects.ts';
import type { NodeOptions } from '../config/settings.ts';
import {
  type NodeAddresses,
  type NodePortSelection,
  selectedAddresses,
} from '../services/node-port-addresses.ts';

/** How traffic of this node's pods is detected (kube-proxy's detectLocal). */
export type LocalDetector =
  | { readonly kind: 'cidr'; readonly cidr: string }
  /** A name that ends in a plus is a prefix, as in iptables. */
  | { readonly kind: 'interface'; readonly name: string };

/** Flags for masquerade and for TCP resets. */
export interface TrafficOptions {
  readonly family: IpFamily;
  readonly masqueradeAll: boolean;
  /** undefined: local pods cannot be detected. */
  readonly localDetector: LocalDetector | undefined;
  /**
   * Whether packets of established TCP connections get a reset where a verdict would reject or drop them
   * (`--reset-deleted-endpoint-connections`).
   */
  readonly resetsTcp: boolean;
}

/** The flags that select node port addresses. */
export interface NodePortOptions {
  readonly family: IpFamily;
  readonly nodePortSelection: NodePortSelection;
}

/** The traffic and node port options of one family, from the flags. @param podCidrs `spec.podCIDRs` of this node. */
export function trafficOptions(
  options: NodeOptions,
  family: IpFamily,
  podCidrs: readonly string[],
): TrafficOptions & NodePortOptions {
  return {
    family,
    masqueradeAll: options.masqueradeAll,
    localDetector: localDetector(options, family, podCidrs),
    nodePortSelection: options.nodeportAddresses,
    resetsTcp: options.resetDeletedEndpointConnections,
  };
}

/** The detector that `--detect-local-mode` selects; undefined if it needs a CIDR and the family has none. */
function localDetector(
  options: NodeOptions,
  family: IpFamily,
  podCidrs: readonly string[],
): LocalDetector | undefined {
  const byCidr = (cidrs: readonly string[]): LocalDetector | undefined => {
    const cidr = cidrs.find((each) => familyOf(each) === family);
    return cidr === undefined ? undefined : { kind: 'cidr', cidr };
  };
  switch (options.detectLocalMode) {
    case 'ClusterCIDR':
      return byCidr(options.clusterCidr);
    case 'NodeCIDR':
      return byCidr(podCidrs);
    case 'BridgeInterface':
      return { kind: 'interface', name: options.podBridgeInterface ?? '' };
    case 'InterfaceNamePrefix':
      return { kind: 'interface', name: `${options.podInterfaceNamePrefix ?? ''}+` };
  }
}

/**
 * The clients that `Dispatch.masquerade` means by `non-pods`: all, none, or every source that the detector does
 * not match.
 */
export function nonPodClients({
  masqueradeAll,
  localDetector,
}: Pick<TrafficOptions, 'masqueradeAll' | 'localDetector'>): 'all' | 'none' | LocalDetector {
  return masqueradeAll ? 'all' : (localDetector ?? 'none');
}

/**
 * The addresses on which node ports are served.
 * @param servesLoopback whether to include IPv4 loopback addresses that the flag selects.
 * @returns `all` for every local address, including addresses added later.
 */
export function nodePortAddresses(
  { nodePortSelection, family }: NodePortOptions,
  own: NodeAddresses,
  servesLoopback: boolean,
): 'all' | readonly string[] {
  const selected = selectedAddresses(nodePortSelection, family, own);
  // Never serve [::1]: the kernel does not forward packets from [::1] to another host.
  if (selected === 'all' || (servesLoopback && family === 'IPv4')) return selected;
  return selected.filter((address) => !isLoopback(address));
}

/**
 * The node port addresses for modes whose rules list each address. Loopback addresses are left out, because the
 * kernel does not route packets between a loopback address and another host.
 */
export function listedNodePortAddresses(
  options: NodePortOptions,
  own: NodeAddresses,
): readonly string[] {
  const served = nodePortAddresses(options, own, false);
  return served === 'all' ? own.addresses.filter((address) => !isLoopback(address)) : served;
}
