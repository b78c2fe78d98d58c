/** Parsers of flag values, for commander: each throws InvalidArgumentError with what was expected. */
import { InvalidArgumentError } from 'commander';
import { canonicalCidr, familyOf } from '../api/addresses.ts';

/** A Go duration as kube-proxy's flags take it (`30s`, `1m30s`, `500ms`, `0`), in milliseconds. */
export function duration(text: string): number {
  const units: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 };
  if (text === '0') return 0;
  if (!/^(\d+(\.\d+)?(ms|s|m|h))+$/.test(text)) {
    throw new InvalidArgumentError('must be a duration such as 30s, 1m30s or 500ms.');
  }
  let total = 0;
  for (const [, amount, unit] of text.matchAll(/(\d+(?:\.\d+)?)(ms|s|m|h)/g)) {
    total += Number(amount) * (units[unit ?? ''] ?? Number.NaN);
  }
  return total;
}

/** `--flag`, `--flag=true` or `--flag=false`, as Go's flags take booleans. */
export function boolean(text: string): boolean {
  if (text === 'true') return true;
  if (text === 'false') return false;
  throw new InvalidArgumentError('must be true or false.');
}

/** A bit of the packet mark. */
export function markBit(text: string): number {
  const bit = Number(text);
  if (!/^\d+$/.test(text) || bit > 31) throw new InvalidArgumentError('must be from 0 to 31.');
  return bit;
}

/** `-v 3`, and `-v=3` as Go's flags are written, which commander hands over with the sign. */
export function logLevel(text: string): number {
  const digits = /^=?(\d{1,2})$/.exec(text)?.[1];
  if (digits === undefined) throw new InvalidArgumentError('must be a number.');
  return Number(digits);
}

/** At most one CIDR a family. */
export function clusterCidrs(text: string): string[] {
  if (text === '') return [];
  const cidrs = cidrList(text);
  if (new Set(cidrs.map(familyOf)).size < cidrs.length) {
    throw new InvalidArgumentError('must name at most one CIDR for each IP family.');
  }
  return cidrs;
}

/** Which addresses serve node ports: `primary` or CIDRs; empty: all. */
export function nodePortAddresses(text: string): 'all' | 'primary' | string[] {
  if (text === '') return 'all';
  if (text === 'primary') return 'primary';
  if (text.split(',').includes('primary')) {
    throw new InvalidArgumentError('"primary" cannot be mixed with CIDRs.');
  }
  return cidrList(text);
}

/** Any number of CIDRs, also none. */
export function cidrs(text: string): string[] {
  return text === '' ? [] : cidrList(text);
}

/** Name of an IPVS scheduler; the kernel loads the module `ip_vs_<name>` (IP_VS_SCHEDNAME_MAXLEN). */
export function scheduler(text: string): string {
  if (text === '') return 'rr';
  if (!/^[a-z0-9_]{1,15}$/.test(text)) {
    throw new InvalidArgumentError('must be the name of an IPVS scheduler, such as rr or mh.');
  }
  return text;
}

/** `0x1000-0x3fff`; 0 is no mark, and two marks are kept for drop and reject. */
export function markRange(text: string): { first: number; last: number } {
  const [, first = '', last = ''] = /^(0x[0-9a-f]+|\d+)-(0x[0-9a-f]+|\d+)$/i.exec(text) ?? [];
  const range = { first: Number(first), last: Number(last) };
  if (first === '' || range.first < 1 || range.last > 0xffffffff || range.last - range.first < 2) {
    throw new InvalidArgumentError(
      'must be FIRST-LAST, at least three marks from 1 to 0xffffffff, such as 0x1000-0x3fff.',
    );
  }
  return range;
}

function cidrList(text: string): string[] {
  return text.split(',').map((item) => {
    const cidr = canonicalCidr(item.trim());
    if (cidr === undefined) {
      throw new InvalidArgumentError(`${JSON.stringify(item)} is no CIDR.`);
    }
    return cidr;
  });
}

/** IFNAMSIZ is 16 with the final zero (linux/if.h); a prefix leaves room for the `+` behind it. */
export function interfaceName(text: string): string {
  if (!/^[A-Za-z0-9_.@:-]{1,15}$/.test(text)) {
    throw new InvalidArgumentError('must be an interface name of at most 15 characters.');
  }
  return text;
}

export function interfacePrefix(text: string): string {
  if (!/^[A-Za-z0-9_.@:-]{1,14}$/.test(text)) {
    throw new InvalidArgumentError(
      'must be the start of an interface name, at most 14 characters.',
    );
  }
  return text;
}

export interface BindAddress {
  readonly host: string;
  readonly port: number;
}

/** As `bindAddress`; empty: nothing is served. */
export function optionalBindAddress(text: string): BindAddress | 'none' {
  return text === '' ? 'none' : bindAddress(text);
}

/** `host:port`, `[v6]:port`; an empty host means all addresses. */
export function bindAddress(text: string): BindAddress {
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]]*)):(\d{1,5})$/.exec(text);
  const port = Number(match?.[3]);
  if (match === null || port > 65535) {
    throw new InvalidArgumentError('must be ADDRESS:PORT, such as 127.0.0.1:10249 or [::1]:10249.');
  }
  return { host: match[1] ?? match[2] ?? '', port };
}

/** Feature gates that exist, and whether they are on by default. */
export const FEATURE_GATES: Readonly<Record<'AllPorts', boolean>> = { AllPorts: true };
export type FeatureGates = typeof FEATURE_GATES;

/** `AllPorts=false,…`; a gate that does not exist is refused, as kube-proxy does. */
export function featureGates(text: string, previous: FeatureGates = FEATURE_GATES): FeatureGates {
  const gates = { ...previous };
  for (const item of text.split(',').filter((each) => each.trim() !== '')) {
    const [name, value, ...rest] = item.trim().split('=');
    if (name !== 'AllPorts') {
      const known = Object.keys(FEATURE_GATES).join(', ');
      throw new InvalidArgumentError(
        `unknown feature gate ${JSON.stringify(name)}; known: ${known}.`,
      );
    }
    if ((value !== 'true' && value !== 'false') || rest.length > 0) {
      throw new InvalidArgumentError(`${name} must be true or false.`);
    }
    gates[name] = value === 'true';
  }
  return gates;
}
