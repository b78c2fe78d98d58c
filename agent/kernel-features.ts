/** Features of the kernel that limit what the agent can do or show, for the status API. */
import type { KernelFeature } from '../status/api/node-status.ts';
import { readSysctl } from './node-setup.ts';

/** Share of a full conntrack table above which new connections may soon be dropped. */
const CONNTRACK_WARNING = 0.9;

/** Reads the features. A value that the kernel does not have is `unknown`. */
export async function kernelFeatures(): Promise<readonly KernelFeature[]> {
  const [forwarding, accounting, count, max] = await Promise.all(
    [
      'net.ipv4.ip_forward',
      'net.netfilter.nf_conntrack_acct',
      'net.netfilter.nf_conntrack_count',
      'net.netfilter.nf_conntrack_max',
    ].map((name) => readSysctl(name)),
  );
  const isFull = Number(count) > Number(max) * CONNTRACK_WARNING;
  return [
    {
      name: 'net.ipv4.ip_forward',
      value: forwarding ?? 'unknown',
      ok: forwarding !== '0',
      note: forwarding === '0' ? 'packets to pods are not forwarded; set it to 1' : '',
    },
    {
      name: 'net.netfilter.nf_conntrack_acct',
      value: accounting ?? 'unknown',
      ok: true,
      note: accounting === '1' ? '' : 'packets and bytes of connections are not counted',
    },
    {
      name: 'net.netfilter.nf_conntrack_count',
      value: `${count ?? 'unknown'} of ${max ?? 'unknown'}`,
      ok: !isFull,
      note: isFull
        ? 'the conntrack table is almost full, and then new connections are dropped; raise --conntrack-max-per-core'
        : '',
    },
  ];
}
