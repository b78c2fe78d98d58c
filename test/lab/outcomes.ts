/** Transport protocols, spelled as Kubernetes spells them. */
export type Protocol = 'TCP' | 'UDP' | 'SCTP';

/** IP families, by version number. */
export type Family = 4 | 6;

/** The variants of the iptables tools. `nft` does not exist in the UML kernel. */
export type IptablesVariant = 'nft' | 'legacy';

/**
 * What a lab server says of a packet that reached it. Addresses are in canonical text, never
 * IPv4-mapped. `localPort` is the port the packet was sent to when it reached the host (after the
 * node's NAT, before the host's own), `remoteAddress` and `remotePort` are whom the host saw.
 */
export interface ServerReply {
  readonly host: string;
  readonly protocol: Protocol;
  readonly localAddress: string;
  readonly localPort: number;
  readonly remoteAddress: string;
  readonly remotePort: number;
  /** UDP only: the datagram's text. */
  readonly payload?: string;
}

/**
 * The fate of a probe.
 * - `answered`: `localPort` is the client's own port, before any NAT.
 * - `refused`: a reset (`rst`) or an ICMP(v6) port unreachable (`icmp`) came back.
 * - `timeout`: nothing came back; a packet dropped by the sender's own OUTPUT chain reads so too.
 * - `error`: anything else; `code` is an errno name, `SILENT` (connected, but no lab server
 *   spoke), `CLOSED` (closed before it spoke), or `ICMP_<type>_<code>` (UDP and SCTP).
 */
export type ProbeOutcome =
  | { readonly outcome: 'answered'; readonly reply: ServerReply; readonly localPort: number }
  | { readonly outcome: 'refused'; readonly by: 'icmp' | 'rst' }
  | { readonly outcome: 'timeout' }
  | { readonly outcome: 'error'; readonly code: string };

/** How many probes of a burst ended how; `answered` and `errors` count by host and by code. */
export interface BurstTally {
  readonly answered: Readonly<Record<string, number>>;
  readonly refused: number;
  readonly timeout: number;
  readonly errors: Readonly<Record<string, number>>;
}

/**
 * What a DNS server told: addresses, or of SRV records `NAME port PORT`; or why there are none, such as
 * `ENODATA`, `ENOTFOUND`, `ETIMEOUT`.
 */
export type LookupResult = { readonly answers: readonly string[] } | { readonly code: string };

/** What an HTTP server answered; or the code of the error, such as `ECONNREFUSED`. */
export type HttpResult =
  | {
      readonly code: number;
      readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>;
      readonly body: string;
    }
  | { readonly error: string };
