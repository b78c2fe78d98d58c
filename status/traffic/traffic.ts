/** Traffic of Services from the kernel: the parts, their resources, and when they run. */
import type { IpFamily } from '../../api/objects.ts';
import { isConntrackCounting } from '../../netlink/conntrack/accounting.ts';
import { visitConntrack } from '../../netlink/conntrack/conntrack.ts';
import { ConntrackEvents } from '../../netlink/conntrack/events.ts';
import { LogGroup } from '../../netlink/nflog/log-group.ts';
import type { ModeTraffic } from '../../proxier/kernel-rule.ts';
import type { Timers } from '../../sync/timers.ts';
import type { FlowEntry, FlowLine, TopList, TrafficRates } from '../api/traffic.ts';
import { MAX_LIMIT, type PageRequest, pageOf } from '../http/paging.ts';
import { ConnectionList } from './connection-list.ts';
import type { DenialPolicies } from './denial.ts';
import { flowEntry, routeOfEntry } from './flow-entry.ts';
import type { FlowFilter } from './flow-filter.ts';
import { FlowFeed } from './flows.ts';
import { LiveIndex, type RouteSource } from './live-index.ts';
import { RefusalLog } from './refusal-log.ts';
import { TrafficSampler } from './sampler.ts';
import { idleRates, topRows, trafficRates } from './top.ts';
import type { TrafficCounter } from './traffic-counters.ts';

/** What the traffic part needs of the agent. */
export interface TrafficDependencies {
  readonly modeTraffic: ModeTraffic;
  readonly families: readonly IpFamily[];
  readonly routes: RouteSource;
  /** Whether node ports are served on an address. Called for each connection, so it must be cheap. */
  readonly isNodePortAddress: (address: string) => boolean;
  /** All addresses of this node. */
  readonly nodeAddresses: () => readonly string[];
  /** NFLOG group of denied packets (`--policy-log-group`); undefined without. */
  readonly policyLogGroup: number | undefined;
  /** The policies that explain denied packets; undefined without network policy. */
  readonly policies: DenialPolicies | undefined;
  readonly timers: Timers;
  /** Called for a failed read of the kernel, which is repeated. */
  readonly onError: (error: unknown) => void;
}

/** Rates by Service and by endpoint, for the lists of Services and endpoints. */
export interface TrafficLookup {
  /** Zeros without traffic. @param service `namespace/name` */
  service(service: string): TrafficRates;
  /** @param endpoint `address:port`, or `address` where packets keep their port. */
  endpoint(service: string, endpoint: string): TrafficRates;
}

/** The traffic part of the status API. */
export interface Traffic {
  /** The busiest Services, endpoints or ports. @throws as `lookup`. */
  top(query: TopQuery): Promise<TopList>;
  /** Live flows, see `FlowFeed.follow`. */
  flows(filter: FlowFilter, signal: AbortSignal): AsyncIterable<FlowLine>;
  /**
   * Rates for `traffic` of ServiceSummary and EndpointStatus. A call counts as a look: sampling goes on for 15 s.
   * @throws NetlinkError if conntrack cannot be read.
   */
  lookup(): Promise<TrafficLookup>;
  /**
   * Conntrack entries of a Service, at most `limit`, in the order of `ConnectionList`, and their number.
   * @throws NetlinkError if conntrack cannot be read.
   */
  connections(
    service: string,
    limit: number,
  ): Promise<{ readonly total: number; readonly entries: readonly FlowEntry[] }>;
  /** Whether anything is read from the kernel now. */
  readonly isRunning: boolean;
  /** Ends streams and sampling. */
  close(): Promise<void>;
}

/** The parameters of `top`. */
interface TopQuery extends PageRequest {
  readonly by: 'service' | 'endpoint' | 'port' | undefined;
  /** Of Services. */
  readonly namespace: string | undefined;
  /** `namespace/name` */
  readonly service: string | undefined;
}

/** Creates the traffic part. Nothing is opened or read before the first request. */
export function createTraffic(dependencies: TrafficDependencies): Traffic {
  const { modeTraffic, families, routes, isNodePortAddress, timers, onError } = dependencies;
  const { policyLogGroup } = dependencies;
  const index = new LiveIndex(routes, timers);
  // IPVS does not set IPS_DST_NAT, and translates after the rules that refuse packets.
  const translatedOnly = !modeTraffic.forwardsWithIpvs;
  const mayBeTranslated = modeTraffic.forwardsWithIpvs;
  const sampler = new TrafficSampler({
    index,
    conntrack: {
      openEnds() {
        const events = new ConntrackEvents({ kinds: ['destroy'], translatedOnly });
        return {
          get dropped() {
            return events.dropped;
          },
          read: (onEnd) => events.read((_, entry) => onEnd(entry)),
          sample: (oneOf) => events.sample(oneOf),
          close: () => events.close(),
        };
      },
      visit: (visit) => visitConntrack({ translatedOnly }, visit),
      isCounting: isConntrackCounting,
    },
    isNodeAddress: isNodePortAddress,
    timers,
    now: Date.now,
    cpu: () => {
      const { user, system } = process.cpuUsage();
      return (user + system) / 1000;
    },
    onError,
  });
  const feed = new FlowFeed({
    index,
    sources: {
      openEvents: (receiveBuffer) =>
        new ConntrackEvents({ kinds: ['new', 'destroy'], translatedOnly, receiveBuffer }),
      openRefusals: (built) => RefusalLog.open(families, built, { mayBeTranslated }),
      openDenials:
        policyLogGroup === undefined
          ? undefined
          : () => new LogGroup(policyLogGroup, { conntrack: true }),
    },
    routesOf: (service) => routes.ofService(service),
    refusalRules: () => ({
      isNodeAddress: isNodePortAddress,
      nodeAddresses: dependencies.nodeAddresses(),
      rejectsOtherPorts: modeTraffic.rejectsOtherPorts,
      mayBeTranslated,
    }),
    policies: dependencies.policies,
    timers,
    now: Date.now,
    onError,
  });
  return {
    top: async ({ by = 'service', namespace, service, ...page }) => {
      const { counters, sample } = await sampler.look();
      const isSelected = ({ key }: TrafficCounter) =>
        namespace === undefined || key.service.startsWith(`${namespace}/`);
      const all = [...counters.list(by, service)].filter(isSelected);
      // One row more than the page, so that `pageOf` sees whether there is a next page.
      const count = (page.continue ?? 0) + MAX_LIMIT + 1;
      const rows = pageOf(topRows(all, sample.countsBytes, count), page);
      return { ...rows, total: all.length, sample };
    },
    flows: (filter, signal) => feed.follow(filter, signal),
    async lookup() {
      const { counters, sample } = await sampler.look();
      const idle = idleRates(sample);
      const rates = (counter: ReturnType<typeof counters.service>) =>
        counter === undefined ? idle : trafficRates(counter, sample.countsBytes);
      return {
        service: (service) => rates(counters.service(service)),
        endpoint: (service, endpoint) => rates(counters.endpoint(service, endpoint)),
      };
    },
    async connections(service, limit) {
      const destinations = { index: await index.acquire(), isNodeAddress: isNodePortAddress };
      const list = new ConnectionList<FlowEntry>(limit);
      try {
        await visitConntrack({ translatedOnly }, (entry) => {
          const route = routeOfEntry(entry, destinations);
          if (route?.serviceKey !== service) return;
          list.add(entry.details, () => flowEntry(entry, route));
        });
      } finally {
        index.release();
      }
      return { total: list.total, entries: list.rows() };
    },
    get isRunning() {
      return sampler.isRunning || feed.isRunning;
    },
    async close() {
      await Promise.all([sampler.close(), feed.close()]);
      index.close();
    },
  };
}
