import { familyOf } from '../api/addresses.ts';
import type { IpFamily } from '../api/objects.ts';
import type { IptablesOptions } from '../iptables/backend.ts';
import type { LocalDetector } from '../iptables/compile.ts';
import type { NodeOptions } from './node-options.ts';

/** What only the running node can tell. */
export interface NodeTraits {
  readonly dropInvalid: boolean;
  readonly randomFully: boolean;
  readonly onWarning: (message: string) => void;
}

/** The iptables mode's options for one family, from the flags. */
export function iptablesOptions(
  options: NodeOptions,
  family: IpFamily,
  podCidrs: readonly string[],
  traits: NodeTraits,
): IptablesOptions {
  return {
    ...traits,
    family,
    masqueradeAll: options.masqueradeAll,
    masqueradeBit: options.iptablesMasqueradeBit,
    localDetector: localDetector(options, family, podCidrs),
    nodePortSelection: options.nodeportAddresses,
    localhostNodePorts: family === 'IPv4' && options.iptablesLocalhostNodeports,
  };
}

/** How pods of this node are told, by `--detect-local-mode`; undefined: they cannot be. */
export function localDetector(
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
      // iptables matches a prefix by a trailing plus.
      return { kind: 'interface', name: `${options.podInterfaceNamePrefix ?? ''}+` };
  }
}
