/** IPVS services for specs; ipvsadm reads the table independently. */
import { execa } from 'execa';
import type {
  IpvsDestination,
  IpvsServiceConfig,
  IpvsServiceKey,
  RefusedIpvsChange,
} from '../../netlink/ipvs/ipvs.ts';

export const rr: IpvsServiceConfig = { scheduler: 'rr', schedulerFlags: 0, persistenceSeconds: 0 };
export const tcp4 = addressKey('IPv4', 'TCP', '10.96.0.10', 80);
export const udp6 = addressKey('IPv6', 'UDP', 'fd00::10', 53);
export const mark4: IpvsServiceKey = { family: 'IPv4', kind: 'mark', mark: 0x4007 };
export const mark6: IpvsServiceKey = { family: 'IPv6', kind: 'mark', mark: 7 };

/** The lines of `ipvsadm -Sn`, sorted. */
export async function ipvsadmSave(): Promise<string[]> {
  const { stdout } = await execa('ipvsadm', ['-Sn']);
  return stdout
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '')
    .sort();
}

export function formatRefusal({ change, error }: RefusedIpvsChange): string {
  return `${change.op}: ${error.code}`;
}

export function addressKey(
  family: 'IPv4' | 'IPv6',
  protocol: 'TCP' | 'UDP' | 'SCTP',
  address: string,
  port: number,
): IpvsServiceKey {
  return { family, kind: 'address', protocol, address, port };
}

export function destinationOf({ family, kind }: IpvsServiceKey, index: number): IpvsDestination {
  const address = family === 'IPv4' ? `10.1.0.${index}` : `fd01::${index}`;
  return { address, port: kind === 'mark' ? 0 : 8080, weight: 1 };
}

export function sorted<T extends { readonly key: IpvsServiceKey }>(values: readonly T[]): T[] {
  const text = ({ key }: T) =>
    key.kind === 'mark'
      ? `${key.family} ${key.mark}`
      : `${key.family} ${key.protocol} ${key.address} ${key.port}`;
  return [...values].sort((a, b) => (text(a) < text(b) ? -1 : 1));
}
