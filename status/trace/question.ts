/** The parameters of the trace resources. Pure. */
import { canonicalAddress, specialRange } from '../../api/addresses.ts';
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
  | { readonly kind: 'object' | 'service' | 'pod'; readonly key: string }
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
  if (from.kind === 'address') refuseSource(from.address);
  if (to.kind === 'address') refuseDestination(to.address);
  return { from, to, protocol, port, sourcePort };
}

function readSource(text: string): RequestedSource | undefined {
  if (text === 'node' || text === 'external') return { kind: text, text };
  const address = canonicalAddress(text);
  if (address !== undefined) return { kind: 'address', address, text };
  const object = readObject(text);
  if (object === undefined || object.kind === 'service') return undefined;
  return { kind: 'pod', key: object.key, text };
}

function readDestination(text: string): RequestedDestination | undefined {
  const address = canonicalAddress(text);
  if (address !== undefined) return { kind: 'address', address, text };
  const object = readObject(text);
  return object && { ...object, text };
}

/** `namespace/name`, or with a kind as kubectl names it: `service/namespace/name`. */
function readObject(
  text: string,
): { readonly kind: 'object' | 'service' | 'pod'; readonly key: string } | undefined {
  const [, kind = '', key = text] = /^(service|svc|pod)s?\/(.+\/.+)$/.exec(text) ?? [];
  const [namespace = '', name = '', ...rest] = key.split('/');
  if (rest.length > 0 || !isDnsLabel(namespace) || !isDnsSubdomain(name)) return undefined;
  if (kind === '') return { kind: 'object', key };
  return { kind: kind === 'pod' ? 'pod' : 'service', key };
}

/** @throws BadParameter for an address that no packet from a client has as source. */
function refuseSource(address: string): void {
  const range = specialRange(address);
  if (range === 'loopback')
    throw new BadParameter('from', `must not be a loopback address (${address}): use node`);
  if (range === 'unspecified' || range === 'multicast' || range === 'broadcast') {
    const use = 'use the address of a client, node, or external for any client outside the cluster';
    throw new BadParameter('from', `must not be the ${range} address ${address}: ${use}`);
  }
}

/** @throws BadParameter for an address that is not of one host or Service. */
function refuseDestination(address: string): void {
  const range = specialRange(address);
  if (range !== 'unspecified' && range !== 'multicast' && range !== 'broadcast') return;
  const use = 'use a Service, a pod, or the address of a host';
  throw new BadParameter('to', `must not be the ${range} address ${address}: ${use}`);
}
