/** The dummy device of the IPVS mode that holds VIPs, named as kube-proxy names it. Its addresses are not the node's own. */
export const IPVS_DEVICE = 'kube-ipvs0';
