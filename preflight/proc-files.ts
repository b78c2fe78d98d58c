/** Reads files of /proc. Pure. */
import { canonicalAddress } from '../api/addresses.ts';
import type { Listener } from './node.ts';

/** Socket state TCP_LISTEN (net/tcp_states.h). */
const LISTEN = '0A';

/** The listening sockets in the content of /proc/net/tcp or /proc/net/tcp6. */
export function readListeners(content: string): Listener[] {
  return content.split('\n').flatMap((line) => {
    const [, local = '', , state] = line.trim().split(/\s+/);
    const [address = '', port = ''] = local.split(':');
    const host = addressOf(address);
    return state === LISTEN && host !== undefined
      ? [{ host, port: Number.parseInt(port, 16) }]
      : [];
  });
}

/** The kernel prints addresses as 32-bit words in host order, here little-endian. */
function addressOf(hex: string): string | undefined {
  const bytes = (hex.match(/.{8}/g) ?? []).flatMap((word) =>
    [...Buffer.from(word, 'hex')].reverse(),
  );
  if (bytes.length === 4) return bytes.join('.');
  if (bytes.length !== 16) return undefined;
  const mapped = bytes.slice(0, 12).join() === '0,0,0,0,0,0,0,0,0,0,255,255';
  if (mapped) return bytes.slice(12).join('.');
  const groups = Array.from({ length: 8 }, (_, index) =>
    (((bytes[2 * index] ?? 0) << 8) | (bytes[2 * index + 1] ?? 0)).toString(16),
  );
  return canonicalAddress(groups.join(':'));
}

/** The interface names in the content of /proc/net/dev. */
export function readInterfaces(content: string): string[] {
  return content.split('\n').flatMap((line) => /^\s*([^\s:]+):/.exec(line)?.[1] ?? []);
}

/** The number of services in the content of /proc/net/ip_vs. */
export function countIpvsServices(content: string): number {
  return content.match(/^(TCP|UDP|SCTP|FWM) /gm)?.length ?? 0;
}
