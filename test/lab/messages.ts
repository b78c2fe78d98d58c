/** Messages between a host's thread and the main thread. */
import type {
  BurstTally,
  Family,
  HttpResult,
  LookupResult,
  ProbeOutcome,
  Protocol,
} from './outcomes.ts';

/** Start data of a thread. */
export interface HostIdentity {
  readonly name: string;
  readonly namespace: string;
  readonly addresses: Readonly<Record<Family, readonly string[]>>;
}

export interface ServeRequest {
  readonly protocol: Protocol;
  readonly ports: readonly number[];
  /** Default: TCP listens on every address, UDP and SCTP on each of the host's own. */
  readonly address?: string;
}

export interface ProbeRequest {
  readonly address: string;
  readonly port: number;
  readonly timeoutMs: number;
  readonly localPort?: number;
  readonly localAddress?: string;
  /** TCP: leave the connection open until the host is destroyed. */
  readonly keepOpen?: boolean;
  /** UDP: text of the datagram. */
  readonly payload?: string;
  /** UDP: TTL or hop limit of the datagram. */
  readonly hops?: number;
  /** UDP over IPv4: false leaves out the checksum. */
  readonly hasChecksum?: boolean;
}

export interface BurstRequest {
  readonly protocol: 'TCP' | 'UDP';
  readonly address: string;
  readonly ports: readonly number[];
  readonly count: number;
  readonly concurrency: number;
  readonly timeoutMs: number;
  readonly localAddress?: string;
}

export interface ReachTarget {
  readonly protocol: Protocol;
  readonly address: string;
  readonly port: number;
}

export interface ReachRequest {
  readonly targets: readonly ReachTarget[];
  /** Number of expected answers. */
  readonly awaited: number;
  /** Milliseconds to wait for the answers. */
  readonly timeoutMs: number;
  /** Milliseconds to wait for further answers after that. */
  readonly quietMs: number;
}

export interface ResolveRequest {
  readonly server: string;
  readonly name: string;
  readonly type: 'A' | 'AAAA' | 'SRV';
  readonly timeoutMs: number;
}

export interface HttpRequest {
  readonly url: string;
  readonly timeoutMs: number;
}

/** Methods of a thread, with argument and result types. */
export interface HostMethods {
  serve: { takes: ServeRequest; gives: undefined };
  stopServing: {
    takes: { readonly protocol?: Protocol; readonly ports?: readonly number[] };
    gives: undefined;
  };
  /** Returns the ports of the TCP listeners, by family. */
  serveEveryPort: { takes: undefined; gives: Readonly<Record<Family, number>> };
  stopServingEveryPort: { takes: undefined; gives: undefined };
  tcp: { takes: ProbeRequest; gives: ProbeOutcome };
  udp: { takes: ProbeRequest; gives: ProbeOutcome };
  sctp: { takes: ProbeRequest; gives: ProbeOutcome };
  hold: { takes: ProbeRequest; gives: ProbeOutcome & { readonly connection?: number } };
  exchange: {
    takes: { readonly connection: number; readonly text: string; readonly timeoutMs: number };
    gives: string;
  };
  release: { takes: { readonly connection: number }; gives: undefined };
  burst: { takes: BurstRequest; gives: BurstTally };
  /** For each target, whether it answered. */
  reach: { takes: ReachRequest; gives: readonly boolean[] };
  resolve: { takes: ResolveRequest; gives: LookupResult };
  httpGet: { takes: HttpRequest; gives: HttpResult };
}

export type MethodName = keyof HostMethods;

export interface ThreadRequest<Name extends MethodName = MethodName> {
  readonly id: number;
  readonly method: Name;
  readonly takes: HostMethods[Name]['takes'];
}

/** From the thread: the result of a request, or the end of a held connection. */
export type ThreadReport =
  | { readonly kind: 'ready' }
  | { readonly kind: 'result'; readonly id: number; readonly gives: unknown }
  | { readonly kind: 'failure'; readonly id: number; readonly message: string }
  | { readonly kind: 'closed'; readonly connection: number };
