/** Transport protocols with Kubernetes' names. */
export type Protocol = 'TCP' | 'UDP' | 'SCTP';

/** IP families, by version number. */
export type Family = 4 | 6;

/** Variants of the iptables tools. The UML kernel lacks `nft`. */
export type IptablesVariant = 'nft' | 'legacy';

/**
 * A lab server's description of a received packet. Addresses are in canonical text, never
 * IPv4-mapped. `localPort` is the destination port on arrival at the host, after the node's NAT and
 * before the host's own. `remoteAddress` and `remotePort` are the source that the host saw.
 */
export interface ServerReply {
  readonly host: string;
  readonly protocol: Protocol;
  readonly localAddress: string;
  readonly localPort: number;
  readonly remoteAddress: string;
  readonly remotePort: number;
  /** UDP only: text of the datagram. */
  readonly payload?: string;
}

/**
 * The result of a probe.
 * - `answered`: `localPort` is the client's own port, before any NAT.
 * - `refused`: a reset (`rst`) or an ICMP(v6) port unreachable (`icmp`) was received.
 * - `timeout`: nothing was received; also if the sender's own OUTPUT chain dropped the packet.
 * - `error`: anything else. `code` is an errno name, `SILENT` (connected, but no greeting of a lab
 * server), `CLOSED` (closed before the greeting), or `ICMP_<type>_<code>` (UDP and SCTP).
 */
export type ProbeOutcome =
  | { readonly outcome: 'answered'; readonly reply: ServerReply; readonly localPort: number }
  | { readonly outcome: 'refused'; readonly by: 'icmp' | 'rst' }
  | { readonly outcome: 'timeout' }
  | { readonly outcome: 'error'; readonly code: string };

/** Number of probes of a burst by result; `answered` and `errors` count by host and by code. */
export interface BurstTally {
  readonly answered: Readonly<Record<string, number>>;
  readonly refused: number;
  readonly timeout: number;
  readonly errors: Readonly<Record<string, number>>;
}

/**
 * Answer of a DNS server: addresses, or `NAME port PORT` for SRV records; or an error code such as
 * `ENODATA`, `ENOTFOUND`, `ETIMEOUT`.
 */
export type LookupResult = { readonly answers: readonly string[] } | { readonly code: string };

/** Response of an HTTP server, or an error code such as `ECONNREFUSED`. */
export type HttpResult =
  | {
      readonly code: number;
      readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>;
      readonly body: string;
    }
  | { readonly error: string };
