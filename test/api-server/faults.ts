/** What an API server, or what stands before it, does wrong when a test says so. */
import type { ServerResponse } from 'node:http';

export type Verb = 'get' | 'list' | 'watch' | 'create' | 'patch';

export type Fault =
  /** Not answered before `release` is called; then as if nothing were wrong, or as the next fault says. */
  | { readonly kind: 'hold'; readonly next?: Fault }
  /** Closed before there is an answer. */
  | { readonly kind: 'refuse' }
  /** Nothing is ever said, on a connection that stays open. */
  | { readonly kind: 'silence' }
  /** The answer begins and is cut within a line. */
  | { readonly kind: 'cut' }
  /** The answer ends in due form, within a line. */
  | { readonly kind: 'truncate' }
  /** A byte at a time: enough for the connection to look alive. */
  | { readonly kind: 'trickle'; readonly everyMs: number }
  /** A watch that opens and never brings anything, as behind a proxy that swallows it. */
  | { readonly kind: 'mute' }
  /** A `Status`, with `Retry-After` in seconds. */
  | {
      readonly kind: 'status';
      readonly code: number;
      readonly reason: string;
      readonly retryAfter?: number | string;
    }
  /** This text with status 200: garbage, an HTML page of a proxy, a list of something else. */
  | { readonly kind: 'text'; readonly text: string | Buffer; readonly type?: string }
  /** As the list was when `keepListFor` was last called: a watch cache that lags behind. */
  | { readonly kind: 'stale' };

/** A fault, and the requests that it strikes. */
export interface FaultRule {
  readonly fault: Fault;
  readonly verb?: Verb;
  /** Such as `services`. */
  readonly resource?: string;
  /** Of a list, only pages after the first. */
  readonly laterPages?: boolean;
  /** Only lists of metadata. */
  readonly metadataOnly?: boolean;
  /** How many requests it strikes; once by default. */
  readonly times?: number;
}

/** What a request is as far as faults are concerned. */
export interface FaultableRequest {
  readonly verb: Verb;
  readonly resource: string;
  readonly query: Readonly<Record<string, string>>;
  readonly metadataOnly: boolean;
}

/** The faults that are still to strike, in the order in which they were asked for. */
export class Faults {
  #rules: { readonly rule: FaultRule; left: number }[] = [];

  add(rule: FaultRule): void {
    this.#rules.push({ rule, left: rule.times ?? 1 });
  }

  clear(): void {
    this.#rules = [];
  }

  /** @returns the fault for this request, which is then used up once. */
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

/** Writes half of the text, and cuts the connection once that is on its way. */
export function cutWithin(response: ServerResponse, text: string): void {
  response.write(half(text), () => response.socket?.destroy());
}

/** The end of what is sent is in the middle of a line, and of an object. */
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

/** As `metav1.Status` says it. */
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
