/** Hooks of netfilter, and the priorities of base chains at them. */
import type { NftBaseChain } from './types.ts';

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

/** A base chain with policy accept. */
export function baseAt(
  type: 'filter' | 'nat' | 'route',
  hook: Hook,
  priority: number,
): NftBaseChain {
  return { type, hook: HOOKS.indexOf(hook), priority, policy: NF_ACCEPT };
}

/** linux/netfilter.h */
const NF_ACCEPT = 1;
