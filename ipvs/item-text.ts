/** Items as lines of the standard tools: ipvsadm, ipset and ip. */
import { ADDRESS_BITS } from '../api/addresses.ts';
import type { IpFamily } from '../api/objects.ts';
import { IPVS_DEVICE } from '../api/vip-device.ts';
import { hex } from '../iptables/rule.ts';
import type { IpsetEntry } from '../netlink/ipset/ipset.ts';
import type { IpvsServiceConfig, IpvsServiceKey } from '../netlink/ipvs/ipvs.ts';
import type { KernelItem } from './compare.ts';
import type { IpvsItem } from './items.ts';
import { kernelName } from './sets.ts';

/**
 * A desired item, or an item as the kernel has it: `-A -t 10.96.0.1:80 -s rr` as by `ipvsadm -S`, `add
 * KUBE-CLUSTER-IP 10.96.0.1,tcp:80` as by `ipset save`, `10.96.0.1/32 dev kube-ipvs0 scope host` as
 * argument of `ip address`.
 */
export function itemText(item: IpvsItem | KernelItem, family: IpFamily): string {
  switch (item.kind) {
    case 'service':
      return `-A ${serviceArgument(item.service, family)} ${configArguments(item.config)}`;
    case 'destination': {
      const { address, port } = item.destination;
      const { weight = 1, masquerade = true } = 'state' in item ? item.state : {};
      const target = `-r ${bracketed(address)}:${port}${masquerade ? ' -m' : ''}`;
      return `-a ${serviceArgument(item.service, family)} ${target} -w ${weight}`;
    }
    case 'entry':
      return `add ${kernelName(item.set, family)} ${entryArguments(item.entry)}`;
    case 'address': {
      // As `changeAddresses` binds VIPs, so that the kernel does not choose them as source addresses.
      const notSource = family === 'IPv4' ? ' scope host' : ' nodad preferred_lft 0';
      const isUpToDate = !('isUpToDate' in item) || item.isUpToDate;
      const address = `${item.address}/${ADDRESS_BITS[family]} dev ${IPVS_DEVICE}`;
      return address + (isUpToDate ? notSource : '');
    }
  }
}

function entryArguments({
  ip,
  protocol,
  port,
  portTo,
  ip2,
  mark,
  skbMark,
  comment,
}: IpsetEntry): string {
  const ports = portTo === undefined ? `${port}` : `${port}-${portTo}`;
  const named = typeof protocol === 'string' ? `${protocol.toLowerCase()}:` : '';
  const fields = [
    ip && withoutHostPrefix(ip),
    port === undefined ? undefined : `${named}${ports}`,
    ip2 && withoutHostPrefix(ip2),
    mark === undefined ? undefined : `0x${mark.toString(16).padStart(8, '0')}`,
  ];
  const value = fields.filter((field) => field !== undefined).join(',');
  const extensions = [
    ...(skbMark === undefined ? [] : [`skbmark ${hex(skbMark)}`]),
    ...(comment === undefined ? [] : [`comment "${comment}"`]),
  ];
  return [value, ...extensions].join(' ');
}

/** A CIDR of one address as `ipset save` prints it. */
function withoutHostPrefix(cidr: string): string {
  return cidr.replace(cidr.includes(':') ? /\/128$/ : /\/32$/, '');
}

function configArguments(config: IpvsServiceConfig): string {
  const { scheduler, schedulerFlags, persistenceSeconds } = config;
  const flags = [
    ...(schedulerFlags & 0x08 ? ['flag-1'] : []),
    ...(schedulerFlags & 0x10 ? ['flag-2'] : []),
  ];
  const persistence = persistenceSeconds > 0 ? ` -p ${persistenceSeconds}` : '';
  const options = flags.length > 0 ? ` -b ${flags.join(',')}` : '';
  return `-s ${scheduler}${persistence}${options}`;
}

function serviceArgument(key: IpvsServiceKey, family: IpFamily): string {
  if (key.kind === 'mark') return `-f ${key.mark}${family === 'IPv6' ? ' -6' : ''}`;
  const flag = { TCP: '-t', UDP: '-u', SCTP: '--sctp-service' }[key.protocol];
  return `${flag} ${bracketed(key.address)}:${key.port}`;
}

function bracketed(address: string): string {
  return address.includes(':') ? `[${address}]` : address;
}

/** Fields that `IpsetSpec` and `IpsetHeader` have in common. */
interface SetDescription {
  readonly name: string;
  readonly type: string;
  readonly family?: IpFamily | undefined;
  readonly skbinfo: boolean;
  readonly comments?: boolean;
  readonly maxElements?: number | undefined;
}

/** The definition of a set, as by `ipset save`. */
export function setText(spec: SetDescription): string {
  const { name, type, family, skbinfo, comments, maxElements } = spec;
  const shape =
    type === 'bitmap:port'
      ? 'range 0-65535'
      : `family ${family === 'IPv6' ? 'inet6' : 'inet'} maxelem ${maxElements}`;
  return `create ${name} ${type} ${shape}${skbinfo ? ' skbinfo' : ''}${comments === true ? ' comment' : ''}`;
}
