/** Routes and conntrack entries for tests of the traffic part. */
import type { DetailedEntry } from '../../../netlink/conntrack/conntrack.ts';
import type { RouteListener } from '../../../proxier/route-table.ts';
import type { FlowFilter } from '../../../status/traffic/flow-filter.ts';
import { route } from '../../fixtures.ts';

export const VIP = '10.96.0.10';
export const NO_FILTER: FlowFilter = {
  namespace: undefined,
  service: undefined,
  ip: undefined,
  port: undefined,
  protocol: undefined,
  event: undefined,
};

export function entry(fields: Partial<DetailedEntry> = {}): DetailedEntry {
  return {
    family: 'IPv4',
    protocol: 6,
    origSrc: '198.51.100.1',
    origDst: VIP,
    origSrcPort: 40_000,
    origDstPort: 80,
    replySrc: '10.244.1.11',
    replyDst: '198.51.100.1',
    replySrcPort: 8080,
    replyDstPort: 40_000,
    id: 1,
    zone: 0,
    status: 0,
    details: { counters: { packets: 2, bytes: 200 }, tcpState: undefined, startedAt: undefined },
    ...fields,
  };
}

export class FakeRoutes {
  readonly listeners = new Set<RouteListener>();
  list = [route({}, ['10.244.1.11'])];
  routes = () => this.list;
  ofService = (service: string) => this.list.filter(({ serviceKey }) => serviceKey === service);
  watch = (listener: RouteListener) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };
}
