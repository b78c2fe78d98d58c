/** Hooks of netfilter, and the priorities of base chains at them. */

/** In the order of their numbers (enum nf_inet_hooks of linux/netfilter.h). */
export const HOOKS = ['prerouting', 'input', 'forward', 'output', 'postrouting'] as const;
export type Hook = (typeof HOOKS)[number];

/** By the names of nft and of iptables' tables (linux/netfilter_ipv4.h); `conntrack`: where connection tracking begins. */
export const PRIORITY = {
  raw: -300,
  conntrack: -200,
  mangle: -150,
  dstnat: -100,
  filter: 0,
  security: 50,
  srcnat: 100,
} as const;
