/** The resources of the status API about traffic, by path. */
import { canonicalAddress } from '../../api/addresses.ts';
import { type ObjectKey, PROTOCOLS } from '../../api/objects.ts';
import { isDnsLabel } from '../../api/read-name.ts';
import { type Resources, resource, streamResource } from '../http/handler.ts';
import { PAGE_PARAMETERS } from '../http/paging.ts';
import { integer, oneOf, parsed } from '../http/parameters.ts';
import { FLOW_EVENTS } from './flow-filter.ts';
import type { Traffic } from './traffic.ts';

const SERVICE = parsed('namespace/name of a Service', (text) =>
  /^[a-z0-9.-]{1,253}\/[a-z0-9.-]{1,253}$/.test(text) ? text : undefined,
);

const NAMESPACE = parsed('a namespace', (text) => (isDnsLabel(text) ? text : undefined));
const ADDRESS = parsed('an IP address', canonicalAddress);
const BY = oneOf('service', 'endpoint', 'port');
const PROTOCOL = oneOf(...PROTOCOLS);
const EVENT = oneOf(...FLOW_EVENTS);

/** @param requireService throws NotFound for a Service that the agent does not know: its flows would never come. */
export function trafficResources(
  traffic: Pick<Traffic, 'top' | 'flows'>,
  requireService: (service: ObjectKey) => void,
): Resources {
  return {
    '/api/v1/top': resource({
      summary: 'Connections, packets and bytes by Service, endpoint or port, the busiest first',
      response: 'TopList',
      parameters: {
        by: BY,
        namespace: NAMESPACE,
        service: SERVICE,
        ...PAGE_PARAMETERS,
      },
      handle: (given) => traffic.top(given),
    }),
    '/api/v1/flows': streamResource({
      summary: 'Live flows, one JSON object a line',
      response: 'FlowLine',
      parameters: {
        namespace: NAMESPACE,
        service: SERVICE,
        ip: ADDRESS,
        port: integer(1, 65_535),
        protocol: PROTOCOL,
        event: EVENT,
      },
      handle: (given, { signal }) => {
        if (given.service !== undefined) requireService(given.service);
        return traffic.flows(given, signal);
      },
    }),
  };
}
