/**
 * The dummy device that holds VIPs, named as kube-proxy names it. In a file of its own: the DNS server needs the name, and
 * must not load the rest of IPVS for it.
 */
export const IPVS_DEVICE = 'kube-ipvs0';
