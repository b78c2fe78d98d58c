/** What a host's thread and the main thread say to each other. */
import type { Family, HttpAnswer, LookUp, Outcome, Protocol, Tally } from './answers.ts';

/** What a thread is told when it starts. */
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
  /** UDP: the datagram's text. */
  readonly payload?: string;
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
  /** How many answers are waited for. */
  readonly awaited: number;
  /** How long they are waited for. */
  readonly patienceMs: number;
  /** How long more answers are listened for after that. */
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

/** A thread's methods: what they take and what they give. */
export interface Methods {
  serve: { takes: ServeRequest; gives: undefined };
  stopServing: {
    takes: { readonly protocol?: Protocol; readonly ports?: readonly number[] };
    gives: undefined;
  };
  /** Gives the ports that TCP of each family is to be redirected to. */
  serveEveryPort: { takes: undefined; gives: Readonly<Record<Family, number>> };
  stopServingEveryPort: { takes: undefined; gives: undefined };
  tcp: { takes: ProbeRequest; gives: Outcome };
  udp: { takes: ProbeRequest; gives: Outcome };
  sctp: { takes: ProbeRequest; gives: Outcome };
  hold: { takes: ProbeRequest; gives: Outcome & { readonly connection?: number } };
  exchange: {
    takes: { readonly connection: number; readonly text: string; readonly timeoutMs: number };
    gives: string;
  };
  release: { takes: { readonly connection: number }; gives: undefined };
  burst: { takes: BurstRequest; gives: Tally };
  /** By target: whether it answered. */
  reach: { takes: ReachRequest; gives: readonly boolean[] };
  resolve: { takes: ResolveRequest; gives: LookUp };
  httpGet: { takes: HttpRequest; gives: HttpAnswer };
}

export type MethodName = keyof Methods;

export interface Request<Name extends MethodName = MethodName> {
  readonly id: number;
  readonly method: Name;
  readonly takes: Methods[Name]['takes'];
}

/** From the thread: an answer to a request, or the end of a held connection. */
export type Report =
  | { readonly kind: 'ready' }
  | { readonly kind: 'result'; readonly id: number; readonly gives: unknown }
  | { readonly kind: 'failure'; readonly id: number; readonly message: string }
  | { readonly kind: 'closed'; readonly connection: number };
