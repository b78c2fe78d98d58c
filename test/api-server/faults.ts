/** Faults of an API server, or of a proxy in front of it, that tests inject. */
import type { ServerResponse } from 'node:http';

export type Verb = 'get' | 'list' | 'watch' | 'create' | 'patch';

export type Fault =
  /** No response until `release`, then a normal one or the next fault. */
  | { readonly kind: 'hold'; readonly next?: Fault }
  /** Closes the connection without a response. */
  | { readonly kind: 'refuse' }
  /** Never responds, and keeps the connection open. */
  | { readonly kind: 'silence' }
  /** Closes the connection in the middle of a line. */
  | { readonly kind: 'cut' }
  /** Ends the response normally, but in the middle of a line. */
  | { readonly kind: 'truncate' }
  /** Sends one byte at a time, so that the connection looks alive. */
  | { readonly kind: 'trickle'; readonly everyMs: number }
  /** Accepts a watch and never sends an event, like a proxy that holds events back. */
  | { readonly kind: 'mute' }
  /** A `Status`, with `Retry-After` in seconds. */
  | {
      readonly kind: 'status';
      readonly code: number;
      readonly reason: string;
      readonly retryAfter?: number | string;
    }
  /** Sends this text with status 200: garbage, an HTML page of a proxy, or another list. */
  | { readonly kind: 'text'; readonly text: string | Buffer; readonly type?: string }
  /** Sends the list as of the last `takeSnapshot`, like a watch cache that lags behind. */
  | { readonly kind: 'stale' };

/** A fault and the requests that it applies to. */
export interface FaultRule {
  readonly fault: Fault;
  readonly verb?: Verb;
  /** Such as `services`. */
  readonly resource?: string;
  /** Only applies to pages after the first. */
  readonly laterPages?: boolean;
  /** Only applies to requests for metadata. */
  readonly metadataOnly?: boolean;
  /** Number of requests that it applies to; 1 by default. */
  readonly times?: number;
}

/** The properties of a request that faults depend on. */
export interface FaultableRequest {
  readonly verb: Verb;
  readonly resource: string;
  readonly query: Readonly<Record<string, string>>;
  readonly metadataOnly: boolean;
}

/** The faults not used up yet, in the order in which they were added. */
export class Faults {
  #rules: { readonly rule: FaultRule; left: number }[] = [];

  add(rule: FaultRule): void {
    this.#rules.push({ rule, left: rule.times ?? 1 });
  }

  clear(): void {
    this.#rules = [];
  }

  /** @returns the fault for this request, and counts its use. */
  take({ verb, resource, query, metadataOnly }: FaultableRequest): Fault | undefined {
    const found = this.#rules.find(
      ({ rule }) =>
        (rule.verb ?? verb) === verb &&
        (rule.resource ?? resource) === resource &&
        (rule.laterPages !== true || query.continue !== undefined) &&
        (rule.metadataOnly ?? metadataOnly) === metadataOnly,
    );
    if (found === undefined) return undefined;
    found.left--;
    if (found.left === 0) this.#rules = this.#rules.filter((each) => each !== found);
    return found.rule.fault;
  }
}

/** Writes half of the text, then closes the connection. */
export function cutWithin(response: ServerResponse, text: string): void {
  response.write(half(text), () => response.socket?.destroy());
}

/** The first half of the text, which ends in the middle of a line and of an object. */
export function half(text: string): string {
  return text.slice(0, Math.floor(text.length / 2));
}

export function trickle(response: ServerResponse, text: string, everyMs: number): void {
  let sent = 0;
  const timer = setInterval(() => {
    response.write(text[sent] ?? ' ');
    sent++;
  }, everyMs);
  response.on('close', () => clearInterval(timer));
}

/** A `metav1.Status`. */
export function statusBody(
  code: number,
  reason: string,
  message: string,
  retryAfter?: number | string,
): object {
  const details = retryAfter === undefined ? {} : { retryAfterSeconds: Number(retryAfter) };
  return {
    kind: 'Status',
    apiVersion: 'v1',
    metadata: {},
    status: 'Failure',
    message,
    reason,
    details,
    code,
  };
}
