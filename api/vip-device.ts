/**
 * Dummy device that holds the VIPs in IPVS mode, with kube-proxy's name. Its addresses do not count
 * as addresses of the node.
 */
export const IPVS_DEVICE = 'kube-ipvs0';
