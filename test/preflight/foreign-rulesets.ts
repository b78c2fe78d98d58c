/** Tables as other programs write them. */
export interface ForeignRuleset {
  readonly title: string;
  readonly table: string;
  /** The possible endings of a connection from pod to pod at the base chain. */
  readonly IPv4: string;
  readonly IPv6: string;
  readonly rules: string;
  /** Where the words of a rule differ: how nft words it, by our words. */
  readonly words?: Readonly<Record<string, string>>;
}

const forward = (rules: string, policy = 'accept') =>
  `chain c { type filter hook forward priority 0; policy ${policy};\n${rules}\n}`;
const postrouting = (rules: string) =>
  `chain c { type nat hook postrouting priority 100;\n${rules}\n}`;

export const FOREIGN_RULESETS: readonly ForeignRuleset[] = [
  {
    title: 'firewalld: established, docker, zones, reject',
    table: 'inet firewalld',
    IPv4: 'accept',
    IPv6: 'accept',
    words: {
      'ip6 daddr { ::/96, ::ffff:0:0/96, 2002::/24 } reject with icmpv6 addr-unreachable':
        'ip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002::/24 } reject with icmpv6 addr-unreachable',
    },
    rules: `
      chain zones { jump zone; reject with icmpx admin-prohibited; }
      chain zone { tcp dport 22 ct state new,untracked accept; meta l4proto { icmp, ipv6-icmp } accept; }
      ${forward(`
        ct state { established, related } accept
        ct status dnat accept
        iifname "lo" accept
        ct state invalid drop
        ip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002::/24 } reject with icmpv6 addr-unreachable
        jump zones
      `)}`,
  },
  {
    title: 'firewalld: rpfilter of IPv6',
    table: 'inet firewalld',
    IPv4: 'accept by policy',
    IPv6: 'accept by policy',
    rules: forward(`
      icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
      meta nfproto ipv6 fib saddr . mark . iif oif missing drop`),
  },
  {
    title: 'firewalld: accepts a trusted zone, rejects the rest',
    table: 'inet firewalld',
    IPv4: 'accept',
    IPv6: 'accept',
    rules: forward(`
      ip saddr 10.244.0.0/16 accept
      ip6 saddr fd00:1::/64 accept
      reject with icmpx admin-prohibited`),
  },
  {
    title: 'firewalld: goto a zone by interface',
    table: 'inet firewalld',
    IPv4: 'drop, drop',
    IPv6: 'drop, drop',
    rules: `
      chain public { reject with icmpx host-unreachable; }
      ${forward('iifname "eth0" goto public; oifname "docker0" goto public; goto public;')}`,
  },
  {
    title: 'firewalld: logs denied packets with a limit',
    table: 'inet firewalld',
    IPv4: 'accept by policy',
    IPv6: 'accept by policy',
    rules: forward(`
      limit rate 10/minute log prefix "denied: "
      tcp dport != 8080 reject`),
  },
  {
    title: 'netavark: accepts networks',
    table: 'inet netavark',
    IPv4: 'drop, accept by policy',
    IPv6: 'drop, accept by policy',
    rules: `
      chain isolation { drop; }
      ${forward(`
        ct state invalid drop
        iifname "podman*" jump isolation
        ip daddr 10.88.0.0/16 ct state established,related accept
        ip saddr 10.88.0.0/16 accept`)}`,
  },
  {
    title: 'netavark: masquerades its network',
    table: 'inet netavark',
    IPv4: 'accept by policy',
    IPv6: 'accept by policy',
    rules: `
      chain net { ip daddr 10.88.0.0/16 accept; ip daddr != 224.0.0.0/4 masquerade; }
      ${postrouting(`
        meta mark & 0x00002000 == 0x00002000 masquerade
        ip saddr 10.88.0.0/16 jump net`)}`,
  },
  {
    title: 'masquerades pods to elsewhere',
    table: 'ip corp-nat',
    IPv4: 'accept by policy',
    IPv6: 'accept by policy',
    rules: postrouting('ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade fully-random'),
  },
  {
    title: 'masquerades all of the pods',
    table: 'ip corp-nat',
    IPv4: 'masquerade',
    IPv6: 'accept by policy',
    rules: postrouting('ip saddr 10.244.1.0/24 masquerade'),
  },
  {
    title: 'SNAT by interface',
    table: 'inet corp-nat',
    IPv4: 'masquerade, accept by policy',
    IPv6: 'accept by policy',
    rules: postrouting('oifname "eth0" ip saddr 10.0.0.0/8 snat ip to 192.0.2.1'),
  },
  {
    title: 'fail2ban: addresses and ports',
    table: 'inet f2b-table',
    IPv4: 'drop, accept by policy',
    IPv6: 'accept by policy',
    rules: `
      set addr-set-sshd { type ipv4_addr; elements = { 192.0.2.7, 10.244.1.5 } }
      ${forward(`
        tcp dport { 22 } ip saddr @addr-set-sshd reject
        tcp dport { 80, 443, 8000-9000 } ip saddr @addr-set-sshd drop`)}`,
  },
  {
    title: 'fail2ban: ports of another service',
    table: 'inet f2b-table',
    IPv4: 'accept by policy',
    IPv6: 'accept by policy',
    rules: `
      set addr-set-web { type ipv4_addr; }
      ${forward('meta l4proto tcp th dport { 80, 443 } ip saddr @addr-set-web drop')}`,
  },
  {
    title: 'docker: isolation of bridges',
    table: 'ip docker-bridges',
    IPv4: 'accept',
    IPv6: 'accept',
    rules: `
      chain isolate { oifname "docker0" drop; return; }
      ${forward(`
        iifname "docker0" oifname != "docker0" jump isolate
        oifname "docker0" ct state established,related accept
        oifname "docker0" drop
        counter accept`)}`,
  },
  {
    title: 'docker: drops what is not published',
    table: 'ip docker-bridges',
    IPv4: 'accept by policy',
    IPv6: 'accept by policy',
    rules: forward(`
      ip daddr 172.17.0.0/16 iifname != "docker0" drop
      ct state vmap { established : accept, related : accept, invalid : drop }`),
  },
  {
    title: 'ufw: policy drop, before and after',
    table: 'ip ufw',
    IPv4: 'accept',
    IPv6: 'drop by policy',
    rules: `
      chain before { ct state related,established accept; icmp type { destination-unreachable, time-exceeded, echo-request } accept; }
      chain user { tcp dport 8080 ip saddr 10.244.0.0/16 accept; }
      chain after { limit rate 3/minute burst 10 packets log prefix "[UFW BLOCK] "; }
      ${forward('jump before; jump user; jump after;', 'drop')}`,
  },
  {
    title: 'ufw: policy drop without a rule for pods',
    table: 'ip ufw',
    IPv4: 'drop by policy',
    IPv6: 'drop by policy',
    rules: `
      chain before { ct state related,established accept; }
      chain user { tcp dport 22 accept; udp dport 8080 accept; }
      ${forward('jump before; jump user;', 'drop')}`,
  },
  {
    title: 'libvirt: rejects what is not of its bridge',
    table: 'ip libvirt_network',
    IPv4: 'accept by policy',
    IPv6: 'accept by policy',
    rules: `
      chain guest_output { ip saddr 192.168.122.0/24 iif "lo" counter accept; iifname "virbr0" counter reject; }
      chain guest_input { oifname "virbr0" ip daddr 192.168.122.0/24 ct state related,established counter accept; oifname "virbr0" counter reject; }
      ${forward('jump guest_input; jump guest_output;')}`,
  },
  {
    title: 'LXD: accepts its bridge',
    table: 'inet lxd',
    IPv4: 'accept by policy',
    IPv6: 'accept by policy',
    words: {
      'meta nfproto ipv4 @nh,0,8 & 0xf0 == 0x40 oifname "lxdbr0" accept':
        'ip version 4 oifname "lxdbr0" accept',
    },
    rules: forward(`
      ip version 4 oifname "lxdbr0" accept
      iifname "lxdbr0" accept`),
  },
  {
    title: 'wg-quick: protects its address',
    table: 'ip wg-quick-wg0',
    IPv4: 'accept by policy',
    IPv6: 'accept by policy',
    rules: forward('iifname != "wg0" ip daddr 10.200.0.2 fib saddr type != local drop'),
  },
  {
    title: 'tailscale: accepts by mark',
    table: 'ip ts',
    IPv4: 'accept, drop',
    IPv6: 'accept, accept by policy',
    words: {
      'iifname "tailscale0" counter packets 0 bytes 0 meta mark set meta mark & 0xff00ffff | 0x00040000':
        'iifname "tailscale0" counter packets 0 bytes 0 meta mark set meta mark & 0xff04ffff | 0x00040000',
    },
    rules: forward(`
      iifname "tailscale0" counter meta mark set meta mark & 0xff00ffff | 0x40000
      meta mark & 0x00ff0000 == 0x00040000 counter accept
      oifname "tailscale0" ip saddr 100.64.0.0/10 counter drop
      ip saddr 10.244.1.5 drop`),
  },
  {
    title: 'crowdsec: sets of blocked addresses',
    table: 'ip crowdsec',
    IPv4: 'drop, accept by policy',
    IPv6: 'accept by policy',
    rules: `
      set blacklists { type ipv4_addr; flags timeout; }
      ${forward('ip saddr @blacklists counter drop', 'accept')}`,
  },
  {
    title: 'admin: allows addresses, prefixes and ranges of ports',
    table: 'inet filter',
    IPv4: 'accept',
    IPv6: 'accept',
    rules: forward(
      `
      ct state established,related accept
      ip saddr { 10.0.0.1, 10.244.0.0/16, 192.168.0.0/24 } tcp dport 8000-9000 accept
      ip6 saddr { fd00:1::5, fd00:3::/48 } tcp dport { 80, 8080 } accept`,
      'drop',
    ),
  },
  {
    title: 'admin: denies addresses that are not listed',
    table: 'inet filter',
    IPv4: 'accept by policy',
    IPv6: 'accept by policy',
    rules: forward(`
      ip saddr != { 10.244.0.0/16, 10.96.0.1 } drop
      ip6 saddr != fd00:1::/64 drop`),
  },
  {
    title: 'admin: a prefix that ends in a byte',
    table: 'inet filter',
    IPv4: 'drop',
    IPv6: 'accept by policy',
    rules: forward('ip daddr 10.240.0.0/12 tcp dport >= 1024 drop'),
  },
  {
    title: 'admin: ports below 1024, and of a range',
    table: 'inet filter',
    IPv4: 'accept by policy',
    IPv6: 'accept by policy',
    rules: forward(
      'tcp dport < 1024 drop; tcp dport 1-1023 reject with tcp reset; udp dport 8080 drop;',
    ),
  },
  {
    title: 'admin: addresses and ports together',
    table: 'inet filter',
    IPv4: 'drop, accept by policy',
    IPv6: 'accept by policy',
    rules: forward('ip daddr . tcp dport { 10.244.2.7 . 8080, 10.244.2.8 . 80 } drop'),
  },
  {
    title: 'admin: dispatches by port',
    table: 'inet filter',
    IPv4: 'accept',
    IPv6: 'drop',
    rules: `
      chain web { ip saddr 10.244.0.0/16 accept; drop; }
      ${forward('tcp dport vmap { 22 : drop, 80 : jump web, 8080 : goto web }')}`,
  },
  {
    title: 'admin: dispatches by protocol and interface',
    table: 'inet filter',
    IPv4: 'drop, drop, accept by policy',
    IPv6: 'drop, drop, accept by policy',
    words: {
      'tcp flags & (fin | syn | rst | ack) != syn ct state new drop':
        'tcp flags != syn / fin,syn,rst,ack ct state new drop',
    },
    rules: `
      chain tcp-chain { tcp flags & (fin | syn | rst | ack) != syn ct state new drop; }
      chain udp-chain { drop; }
      ${forward('meta l4proto vmap { tcp : jump tcp-chain, udp : jump udp-chain }; iifname vmap { "lo" : accept, "eth9" : drop };')}`,
  },
  {
    title: 'admin: drops invalid and untracked packets',
    table: 'inet filter',
    IPv4: 'accept by policy',
    IPv6: 'accept by policy',
    rules: forward(
      'ct state vmap { invalid : drop, untracked : drop }; ct state ! established,related,new drop;',
    ),
  },
  {
    title: 'admin: source and destination ports',
    table: 'inet filter',
    IPv4: 'drop, accept by policy',
    IPv6: 'drop, accept by policy',
    rules: forward('tcp sport 1024-65535 tcp dport 8080 drop; th dport 9090 drop;'),
  },
  {
    title: 'admin: source and destination follow each other',
    table: 'ip filter4',
    IPv4: 'drop',
    IPv6: 'accept by policy',
    rules: forward(
      'ip saddr 10.244.1.5 ip daddr 10.244.2.7 tcp sport 5000 tcp dport 80 drop; ip protocol tcp ip saddr 10.244.1.5 ip daddr 10.244.2.7 drop;',
    ),
  },
  {
    title: 'admin: protocols other than TCP and UDP',
    table: 'inet filter',
    IPv4: 'accept by policy',
    IPv6: 'accept by policy',
    rules: forward(
      'meta l4proto { esp, ah } accept; meta l4proto != { tcp, udp } drop; ip protocol gre drop; ip6 nexthdr esp drop;',
    ),
  },
  {
    title: 'admin: packets from the node through lo',
    table: 'inet filter',
    IPv4: 'accept by policy',
    IPv6: 'accept by policy',
    rules: forward('iif "lo" ip saddr != 127.0.0.0/8 drop; iif != "lo" ip daddr 127.0.0.0/8 drop;'),
  },
  {
    title: 'admin: martians',
    table: 'ip filter4',
    IPv4: 'drop, drop, accept by policy',
    IPv6: 'accept by policy',
    rules: forward(
      'ip saddr { 0.0.0.0/8, 127.0.0.0/8, 169.254.0.0/16, 224.0.0.0/3 } drop; ip ttl 1 drop; ip frag-off & 0x1fff != 0 drop;',
    ),
  },
  {
    title: 'admin: by packet type and day',
    table: 'inet filter',
    IPv4: 'drop, drop, accept by policy',
    IPv6: 'drop, drop, accept by policy',
    words: {
      'meta day 1 drop': 'meta day "Monday" drop',
    },
    rules: forward('meta pkttype broadcast drop; meta day "Monday" drop;'),
  },
  {
    title: 'admin: more connections than a limit',
    table: 'inet filter',
    IPv4: 'drop, drop, drop, accept by policy',
    IPv6: 'drop, drop, accept by policy',
    words: {
      'add @clients { ip saddr … } drop': 'add @clients { ip saddr limit rate over 5/second } drop',
    },
    rules: `
      set clients { type ipv4_addr; size 100; flags dynamic; }
      ${forward('ct count over 10 drop; quota over 10 mbytes drop; add @clients { ip saddr limit rate over 5/second } drop;')}`,
  },
];
