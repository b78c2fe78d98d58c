/** Ports, endpoints and objects as text, the same in every view. */
import { socketAddress } from '../../api/addresses.ts';
import { rangeText } from '../../api/ports.ts';
import type { Endpoint } from '../../endpoints/select.ts';
import type { RouteMatch } from '../../services/route.ts';
import type { Time } from '../api/common.ts';

/** RFC 3339 with milliseconds. @param time milliseconds since 1970. */
export function timeText(time: number): Time {
  return new Date(time).toISOString();
}

/** `all`, `80/TCP`, or `5060/UDP,20000-50000/UDP`. */
export function portsText(match: RouteMatch): string {
  if (match.kind === 'all') return 'all';
  if (match.kind === 'port') return `${match.port}/${match.protocol}`;
  return match.ranges.map(rangeText).join(',');
}

/** `10.244.0.5:8080`, or `10.244.0.5` for all-ports Services. */
export function endpointText({ address, port }: Endpoint): string {
  return port === undefined ? address : socketAddress(address, port);
}
