/** What decides on traffic besides Routes, from the flags: who is a pod of this node, where node ports are served. */
import { familyOf, isLoopback } from '../api/addresses.ts';
import type { IpFamily } from '../api/objects.ts';
import type { NodeOptions } from '../config/settings.ts';
import {
  type NodeAddresses,
  type NodePortSelection,
  selectedAddresses,
} from '../services/node-port-addresses.ts';

/** How traffic of this node's pods is told from other traffic (kube-proxy's detectLocal). */
export type LocalDetector =
  | { readonly kind: 'cidr'; readonly cidr: string }
  /** A trailing plus matches any end, as in iptables. */
  | { readonly kind: 'interface'; readonly name: string };

/** Who is masqueraded, and how connections end. */
export interface TrafficOptions {
  readonly family: IpFamily;
  readonly masqueradeAll: boolean;
  /** undefined: pods cannot be told from others. */
  readonly localDetector: LocalDetector | undefined;
  /** TCP packets in the middle of a connection are reset where they would be rejected or dropped for want of an endpoint. */
  readonly resetsTcp: boolean;
}

/** Where node ports are served. */
export interface NodePortOptions {
  readonly family: IpFamily;
  readonly nodePortSelection: NodePortSelection;
}

/** What every mode takes from the flags, for one family. @param podCidrs of this node's Node object. */
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

/** By `--detect-local-mode`. */
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

/** Clients that count as no pods (`Treatment.masquerade`): everybody, nobody, or all but those that are detected. */
export function nonPodClients({
  masqueradeAll,
  localDetector,
}: Pick<TrafficOptions, 'masqueradeAll' | 'localDetector'>):
  | 'everybody'
  | 'nobody'
  | LocalDetector {
  return masqueradeAll ? 'everybody' : (localDetector ?? 'nobody');
}

/**
 * The addresses on which node ports are served.
 * @param servesLoopback whether IPv4 loopback addresses are among them where they are selected one by one.
 * @returns `all` for every local address, whatever comes.
 */
export function nodePortAddresses(
  { nodePortSelection, family }: NodePortOptions,
  own: NodeAddresses,
  servesLoopback: boolean,
): 'all' | readonly string[] {
  const selected = selectedAddresses(nodePortSelection, family, own);
  // The kernel routes nothing from [::1] to elsewhere.
  if (selected === 'all' || (servesLoopback && family === 'IPv4')) return selected;
  return selected.filter((address) => !isLoopback(address));
}

/** The same in modes that name each address, none of loopback: the kernel routes no replies from there to elsewhere. */
export function listedNodePortAddresses(
  options: NodePortOptions,
  own: NodeAddresses,
): readonly string[] {
  const served = nodePortAddresses(options, own, false);
  return served === 'all' ? own.addresses.filter((address) => !isLoopback(address)) : served;
}
