/** Value types of the network: addresses, CIDRs, interface names, packet marks. */
import { canonicalAddress, canonicalCidr, familyOf, socketAddress } from '../api/addresses.ts';
import { describeValue } from '../api/read-field.ts';
import type { BindAddress } from '../process/retrying-server.ts';
import type { MarkRange } from './mode-values.ts';
import {
  commaSeparated,
  encodedAsText,
  invalid,
  parsedText,
  readItems,
  requireText,
  textList,
  textMatching,
  type ValueType,
} from './value-types.ts';

function cidr(given: string): string {
  return (
    canonicalCidr(given) ??
    invalid(`must be a CIDR such as 10.0.0.0/8, not ${describeValue(given)}`)
  );
}

/** At most one CIDR per IP family: a comma-separated string in flags and in files. */
export const clusterCidrs = encodedAsText<readonly string[]>(
  '<cidrs>',
  (given) => {
    const cidrs = commaSeparated(given).map(cidr);
    if (new Set(cidrs.map(familyOf)).size < cidrs.length) {
      return invalid('must have at most one CIDR per IP family');
    }
    return cidrs;
  },
  (cidrs) => cidrs.join(','),
);

/** Any number of CIDRs. */
export const cidrs = textList('<cidrs>', (items) =>
  readItems(items, (item) => cidr(requireText(item))),
);

/** Keywords accepted besides CIDRs. Since kube-proxy 1.37 they can be combined with each other and with CIDRs. */
const NODE_PORT_KEYWORDS: readonly string[] = ['primary', 'localhost', 'all'];

/** The addresses that accept NodePort connections (`NodePortSelection`). */
export const nodePortSelection = textList('<addresses>', (items) =>
  readItems(items, (item) => {
    const given = requireText(item);
    if (NODE_PORT_KEYWORDS.includes(given)) return given;
    return (
      canonicalCidr(given) ??
      invalid(`must be a CIDR, "primary", "localhost" or "all", not ${describeValue(given)}`)
    );
  }),
);

/** An IP address of either family. */
export const ipAddress = parsedText(
  '<address>',
  (given) =>
    canonicalAddress(given) ?? invalid(`must be an IP address, not ${describeValue(given)}`),
);

/** One or more IP addresses. */
export const ipAddresses = textList('<addresses>', (items) => {
  if (items.length === 0) return invalid('must have at least one IP address');
  return [...new Set(readItems(items, (item) => ipAddress.fromFlag(requireText(item))))];
});

/** `127.0.0.1:10249`, `[::1]:10249`, or an address, which gets the default port. Empty: disabled. */
export function bindAddress(defaultPort: number): ValueType<BindAddress | undefined> {
  return encodedAsText(
    '<address>',
    (given) => {
      if (given === '') return undefined;
      const alone = canonicalAddress(given);
      if (alone !== undefined) return { host: alone, port: defaultPort };
      const match = /^(?:\[([^\]]*)\]|([^:[\]]*)):(\d{1,5})$/.exec(given);
      const host = canonicalAddress(match?.[1] ?? match?.[2] ?? '');
      const port = Number(match?.[3]);
      if (host === undefined || port < 1 || port > 65535) {
        return invalid(
          `must be ADDRESS:PORT, such as 127.0.0.1:${defaultPort} or [::1]:${defaultPort}, ` +
            `not ${describeValue(given)}`,
        );
      }
      return { host, port };
    },
    (value) => (value === undefined ? '' : socketAddress(value.host, value.port)),
  );
}

/** A node name, trimmed and in lower case, as kube-proxy and the kubelet normalize it. */
export const nodeName = parsedText('<name>', (given) => {
  const name = given.trim().toLowerCase();
  return /^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$/.test(name)
    ? name
    : invalid(`must be a node name: letters, digits, "-" and ".", not ${describeValue(given)}`);
});

/** IFNAMSIZ is 16, including the final zero (linux/if.h). */
export const interfaceName = textMatching(
  '<name>',
  /^[A-Za-z0-9_.@:-]{1,15}$/,
  'an interface name of at most 15 characters',
);
/** One character shorter than a name: iptables needs a `+` after the prefix. */
export const interfacePrefix = textMatching(
  '<prefix>',
  /^[A-Za-z0-9_.@:-]{1,14}$/,
  'the start of an interface name, at most 14 characters',
);

/** Name of an IPVS scheduler (IP_VS_SCHEDNAME_MAXLEN); the kernel loads the module `ip_vs_<name>`. */
export const scheduler = parsedText('<name>', (given) => {
  if (given === '') return 'rr';
  return /^[a-z0-9_]{1,15}$/.test(given)
    ? given
    : invalid(
        `must be the name of an IPVS scheduler, such as rr or mh, not ${describeValue(given)}`,
      );
});

/** `0x1000-0x3fff`. At least three marks: two are reserved for drop and reject. 0 means unmarked. */
export const markRange = encodedAsText<MarkRange>(
  '<first-last>',
  (given) => {
    const [, first = '', last = ''] = /^(0x[0-9a-f]+|\d+)-(0x[0-9a-f]+|\d+)$/i.exec(given) ?? [];
    const range = { first: Number(first), last: Number(last) };
    if (first === '' || range.first < 1 || range.last > 0xffffffff || range.last - range.first < 2)
      return invalid(
        'must be FIRST-LAST, at least three marks from 1 to 0xffffffff, such as 0x1000-0x3fff, ' +
          `not ${describeValue(given)}`,
      );
    return range;
  },
  ({ first, last }) => `0x${first.toString(16)}-0x${last.toString(16)}`,
);
