/** Numbers of query types, and what they are called. */

/** Those that answers tell apart. */
export const TYPE = {
  A: 1,
  NS: 2,
  CNAME: 5,
  SOA: 6,
  PTR: 12,
  HINFO: 13,
  TXT: 16,
  AAAA: 28,
  SRV: 33,
  OPT: 41,
  IXFR: 251,
  AXFR: 252,
  ANY: 255,
} as const;

/** RFC 6895, 3.1: from here to 255 are types of queries, which no record has. */
export const FIRST_META_TYPE = 128;

const NAMES = new Map<number, string>(Object.entries(TYPE).map(([name, type]) => [type, name]));

/** As dns-packet calls types. */
export function nameOfType(type: number): string {
  return NAMES.get(type) ?? `UNKNOWN_${type}`;
}
