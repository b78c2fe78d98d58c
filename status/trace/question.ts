/** The parameters of the trace resources. Pure. */
import { canonicalAddress } from '../../api/addresses.ts';
import { PROTOCOLS, type Protocol } from '../../api/objects.ts';
import { isDnsLabel, isDnsSubdomain } from '../../api/read-name.ts';
import { BadParameter, integer, parsed, type Values } from '../http/parameters.ts';
import type { TraceSource } from './client.ts';

/** A source as in a request; a pod has no address yet. */
export type RequestedSource = (TraceSource | { readonly kind: 'pod'; readonly key: string }) &
  WithText;

/** As it was given, for the answer. */
interface WithText {
  readonly text: string;
}

/** A destination as in a request. `object`: a Service, or a pod if there is no such Service. */
export type RequestedDestination = (
  | { readonly kind: 'address'; readonly address: string }
  | { readonly kind: 'object'; readonly key: string }
) &
  WithText;

export interface TraceRequest {
  readonly from: RequestedSource;
  readonly to: RequestedDestination;
  readonly protocol: Protocol | undefined;
  readonly port: number | undefined;
  /** undefined: some port that no pod owns. */
  readonly sourcePort: number | undefined;
}

/** Duration of a live trace. */
export const DEFAULT_SECONDS = 5;
const MAX_SECONDS = 30;

/** Parameters of `GET /api/v1/trace`. */
export const TRACE_PARAMETERS = {
  from: parsed('an IP address, namespace/name of a pod, "node" or "external"', readSource),
  to: parsed('an IP address, or namespace/name of a Service or pod, without port', readDestination),
  protocol: parsed(PROTOCOLS.join(', '), (text) =>
    PROTOCOLS.find((each) => each === text.toUpperCase()),
  ),
  port: integer(1, 65_535),
  sourcePort: integer(1, 65_535),
};

/** Parameters of `GET /api/v1/trace/live`. */
export const LIVE_TRACE_PARAMETERS = { ...TRACE_PARAMETERS, seconds: integer(1, MAX_SECONDS) };

/** Checks parsed parameters together. @throws BadParameter */
export function traceRequest({
  from,
  to,
  protocol,
  port,
  sourcePort,
}: Values<typeof TRACE_PARAMETERS>): TraceRequest {
  if (from === undefined) throw new BadParameter('from', 'is missing');
  if (to === undefined) throw new BadParameter('to', 'is missing');
  return { from, to, protocol, port, sourcePort };
}

function readSource(text: string): RequestedSource | undefined {
  if (text === 'node' || text === 'external') return { kind: text, text };
  const address = canonicalAddress(text);
  if (address !== undefined) return { kind: 'address', address, text };
  return isObjectKey(text) ? { kind: 'pod', key: text, text } : undefined;
}

function readDestination(text: string): RequestedDestination | undefined {
  const address = canonicalAddress(text);
  if (address !== undefined) return { kind: 'address', address, text };
  return isObjectKey(text) ? { kind: 'object', key: text, text } : undefined;
}

function isObjectKey(text: string): boolean {
  const [namespace = '', name = '', ...rest] = text.split('/');
  return rest.length === 0 && isDnsLabel(namespace) && isDnsSubdomain(name);
}
