/** Rules as kube-proxy 1.34 leaves them on a node, based on the expectations in its tests. */

/** The cluster as kube-proxy knew it. */
export interface KubeProxyCluster {
  readonly family: 4 | 6;
  readonly podCidr: string;
  readonly serviceCidr: string;
  readonly nodeIp: string;
  /** `default/web`, port 80 and node port 30080, to port 8080 of this pod. */
  readonly web: string;
  readonly pod: string;
  /** `default/late`, port 80, without endpoints. */
  readonly late: string;
  /** `default/gone`, port 80, a deleted Service with the same pod. */
  readonly gone: string;
}

/** Input for `iptables-restore` (IPv6: `ip6tables-restore`), mode iptables. */
export function kubeProxyIptables(cluster: KubeProxyCluster): string {
  const { family, podCidr, web, pod, late, gone } = cluster;
  const bits = family === 4 ? 32 : 128;
  const reject = family === 4 ? 'icmp-port-unreachable' : 'icmp6-port-unreachable';
  const to = family === 4 ? `${pod}:8080` : `[${pod}]:8080`;
  const tcp = (dport: number) => `-p tcp -m tcp --dport ${dport}`;
  return `*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-EXT-LOLE4ISW44XBNF3G - [0:0]
:KUBE-SVC-LOLE4ISW44XBNF3G - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SVC-BBBBBBBBBBBBBBBB - [0:0]
:KUBE-SEP-BBBBBBBBBBBBBBBB - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d ${web}/${bits} ${tcp(80)} -m comment --comment "default/web cluster IP" -j KUBE-SVC-LOLE4ISW44XBNF3G
-A KUBE-SERVICES -d ${gone}/${bits} ${tcp(80)} -m comment --comment "default/gone cluster IP" -j KUBE-SVC-BBBBBBBBBBBBBBBB
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS ${tcp(30_080)} -m comment --comment "default/web" -j KUBE-EXT-LOLE4ISW44XBNF3G
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-EXT-LOLE4ISW44XBNF3G -m comment --comment "masquerade traffic for default/web external destinations" -j KUBE-MARK-MASQ
-A KUBE-EXT-LOLE4ISW44XBNF3G -j KUBE-SVC-LOLE4ISW44XBNF3G
-A KUBE-SVC-LOLE4ISW44XBNF3G ! -s ${podCidr} -d ${web}/${bits} ${tcp(80)} -j KUBE-MARK-MASQ
-A KUBE-SVC-LOLE4ISW44XBNF3G -m comment --comment "default/web -> ${to}" -j KUBE-SEP-AAAAAAAAAAAAAAAA
-A KUBE-SEP-AAAAAAAAAAAAAAAA -s ${pod}/${bits} -j KUBE-MARK-MASQ
-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m tcp -j DNAT --to-destination ${to}
-A KUBE-SVC-BBBBBBBBBBBBBBBB -m comment --comment "default/gone -> ${to}" -j KUBE-SEP-BBBBBBBBBBBBBBBB
-A KUBE-SEP-BBBBBBBBBBBBBBBB -p tcp -m tcp -j DNAT --to-destination ${to}
COMMIT
*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-PROXY-CANARY - [0:0]
${family === 4 ? ':KUBE-FIREWALL - [0:0]' : ''}
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -d ${late}/${bits} ${tcp(80)} -m comment --comment "default/late has no endpoints" -j REJECT --reject-with ${reject}
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
${
  family === 4
    ? `-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP`
    : ''
}
COMMIT
`.replaceAll('\n\n', '\n');
}

/** Script for `nft -f`, mode nftables. */
export function kubeProxyNftables(cluster: KubeProxyCluster): string {
  const { family, podCidr, serviceCidr, nodeIp, web, pod, late, gone } = cluster;
  const ip = family === 4 ? 'ip' : 'ip6';
  const address = family === 4 ? 'ipv4_addr' : 'ipv6_addr';
  const to = family === 4 ? `${pod}:8080` : `[${pod}]:8080`;
  const port = `${address} . inet_proto . inet_service`;
  const names = {
    web: 'service-NWBZK7IH-default/web/tcp/',
    external: 'external-NWBZK7IH-default/web/tcp/',
    endpoint: `endpoint-AAAAAAAA-default/web/tcp/__${pod.replaceAll(':', '.')}/8080`,
    gone: 'service-BBBBBBBB-default/gone/tcp/',
  };
  return `table ${ip} kube-proxy {
  comment "rules for kube-proxy";
  set cluster-ips { type ${address}; comment "Active ClusterIPs"; elements = { ${web}, ${late}, ${gone} }; }
  set nodeport-ips { type ${address}; comment "IPs that accept NodePort traffic"; elements = { ${nodeIp} }; }
  map firewall-ips { type ${port} : verdict; }
  map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
  map no-endpoint-services { type ${port} : verdict; }
  map service-ips { type ${port} : verdict; }
  map service-nodeports { type inet_proto . inet_service : verdict; }
  chain reject-chain { reject; }
  chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
  chain masquerading {
    meta mark and 0x4000 == 0 return
    meta mark set meta mark xor 0x4000
    masquerade fully-random
  }
  chain ${names.endpoint} {
    ${ip} saddr ${pod} jump mark-for-masquerade
    meta l4proto tcp dnat to ${to}
  }
  chain ${names.web} {
    ${ip} daddr ${web} ${ip} saddr != ${podCidr} jump mark-for-masquerade
    numgen random mod 1 vmap { 0 : goto ${names.endpoint} }
  }
  chain ${names.external} {
    jump mark-for-masquerade
    goto ${names.web}
  }
  chain ${names.gone} { numgen random mod 1 vmap { 0 : goto ${names.endpoint} }; }
  chain services {
    ${ip} daddr . meta l4proto . th dport vmap @service-ips
    ${ip} daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
  }
  chain firewall-check { ${ip} daddr . meta l4proto . th dport vmap @firewall-ips; }
  chain service-endpoints-check { ${ip} daddr . meta l4proto . th dport vmap @no-endpoint-services; }
  chain nodeport-endpoints-check { ${ip} daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }
  chain cluster-ips-check {
    ${ip} daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"
    ${ip} daddr { ${serviceCidr} } drop comment "Drop traffic to unallocated ClusterIPs"
  }
  chain filter-prerouting-pre-dnat {
    type filter hook prerouting priority -110; policy accept;
    ct state new jump firewall-check
  }
  chain filter-output-pre-dnat {
    type filter hook output priority -110; policy accept;
    ct state new jump firewall-check
  }
  chain filter-input {
    type filter hook input priority 0; policy accept;
    ct state new jump nodeport-endpoints-check
    ct state new jump service-endpoints-check
  }
  chain filter-forward {
    type filter hook forward priority 0; policy accept;
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }
  chain filter-output {
    type filter hook output priority 0; policy accept;
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }
  chain nat-prerouting { type nat hook prerouting priority -100; policy accept; jump services; }
  chain nat-output { type nat hook output priority -100; policy accept; jump services; }
  chain nat-postrouting { type nat hook postrouting priority 100; policy accept; jump masquerading; }
}
add element ${ip} kube-proxy service-ips { ${web} . tcp . 80 : goto ${names.web}, ${gone} . tcp . 80 : goto ${names.gone} }
add element ${ip} kube-proxy no-endpoint-services { ${late} . tcp . 80 : goto reject-chain }
add element ${ip} kube-proxy service-nodeports { tcp . 30080 : goto ${names.external} }
`;
}
