export type RecordType = 'A' | 'AAAA' | 'SRV' | 'PTR' | 'CNAME' | 'TXT';

export interface SrvData {
  readonly priority: number;
  readonly weight: number;
  readonly port: number;
  readonly target: string;
}

/** One resource record. Names are lower-case and without the final dot. */
export type DnsRecord =
  | {
      readonly name: string;
      readonly type: 'A' | 'AAAA' | 'PTR' | 'CNAME' | 'TXT';
      readonly data: string;
    }
  | { readonly name: string; readonly type: 'SRV'; readonly data: SrvData };
