/** Which flows a client wants to see. Pure. */
import type { FlowEvent } from '../api/traffic.ts';

/** All values of `FlowEvent.event`. */
export const FLOW_EVENTS = [
  'opened',
  'closed',
  'rejected',
  'dropped',
  'denied',
] as const satisfies readonly FlowEvent['event'][];

/** Conditions on a flow; undefined matches everything. */
export interface FlowFilter {
  /** Of the Service. */
  readonly namespace: string | undefined;
  /** `namespace/name` */
  readonly service: string | undefined;
  /** Source, destination or endpoint; canonical text. */
  readonly ip: string | undefined;
  /** Destination port of the client or port of the endpoint. */
  readonly port: number | undefined;
  readonly protocol: string | undefined;
  readonly event: FlowEvent['event'] | undefined;
}

/** Whether a filter selects an event. */
export function matchesFlow(
  { event, service, flow }: Pick<FlowEvent, 'event' | 'service' | 'flow'>,
  filter: FlowFilter,
): boolean {
  const { source, destination, endpoint, destinationPort, endpointPort, protocol } = flow;
  return (
    (filter.event === undefined || filter.event === event) &&
    (filter.namespace === undefined || service?.startsWith(`${filter.namespace}/`) === true) &&
    (filter.service === undefined || filter.service === service) &&
    (filter.protocol === undefined || filter.protocol === protocol) &&
    (filter.port === undefined || [destinationPort, endpointPort].includes(filter.port)) &&
    (filter.ip === undefined || [source, destination, endpoint].includes(filter.ip))
  );
}
