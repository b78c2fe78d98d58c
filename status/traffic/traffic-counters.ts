/** Traffic counters of Services, endpoints and ports, with rates and bounded memory. Pure. */

/** A Service, one of its endpoints, or one of its ports. */
export interface CounterKey {
  /** `namespace/name` */
  readonly service: string;
  /** `address:port`, or `address` where packets keep their port; undefined for a port. */
  readonly endpoint?: string;
  /** `protocol/port`; undefined for an endpoint. `others` stands for the ports beyond the limit. */
  readonly port?: string;
}

/** Values of a counter at the end of a sample. */
export interface CounterValues {
  /** Connections in conntrack. */
  readonly connections: number;
  /** Connections, packets and bytes since the first sample. */
  readonly opened: number;
  readonly packets: number;
  readonly bytes: number;
  /** Per second over the last sample interval; undefined before the second sample. */
  readonly rates:
    | { readonly opened: number; readonly packets: number; readonly bytes: number }
    | undefined;
}

const ZERO: CounterValues = { connections: 0, opened: 0, packets: 0, bytes: 0, rates: undefined };

/** Numbers that grow while a sample is made, and their values at the end of the last sample. */
export class TrafficCounter {
  readonly key: CounterKey;
  connections = 0;
  opened = 0;
  packets = 0;
  bytes = 0;
  /** Number of the last sample with traffic or connections. */
  lastActive: number;
  #sampled = ZERO;

  /** @param sample number of the current sample. */
  constructor(key: CounterKey, sample: number) {
    this.key = key;
    this.lastActive = sample;
  }

  /** The values at the end of the last sample, so that all counters show the same time. */
  get sampled(): CounterValues {
    return this.#sampled;
  }

  /** Ends a sample. @param seconds since the previous sample; undefined for the first. */
  endSample(sample: number, seconds: number | undefined): void {
    const { connections, opened, packets, bytes } = this;
    const before = this.#sampled;
    const rate = (now: number, then: number) => (now - then) / (seconds ?? Number.NaN);
    const rates =
      seconds === undefined || seconds <= 0
        ? undefined
        : {
            opened: rate(opened, before.opened),
            packets: rate(packets, before.packets),
            bytes: rate(bytes, before.bytes),
          };
    if (connections > 0 || opened !== before.opened || packets !== before.packets) {
      this.lastActive = sample;
    }
    this.#sampled = { connections, opened, packets, bytes, rates };
  }
}

/** How many counters are kept. */
export interface CounterLimits {
  /** Ports of one Service; the others share one counter. */
  readonly portsOfService: number;
  /** Counters of all kinds: ending a sample of 30,000 takes 5 ms. Traffic beyond is counted for the Service only, or not at all. */
  readonly counters: number;
}

const COUNTER_LIMITS: CounterLimits = { portsOfService: 1024, counters: 30_000 };

/** Samples without connections or traffic after which a counter is forgotten. */
const IDLE_SAMPLES = 60;
/** Port of the counter that the ports beyond the limit share. */
export const OTHER_PORTS = 'others';

/** The counters of one Service. */
interface ServiceCounters {
  readonly total: TrafficCounter;
  readonly endpoints: Map<string, TrafficCounter>;
  readonly ports: Map<string, TrafficCounter>;
}

/** The three counters that one connection belongs to. */
export type CounterSet = readonly TrafficCounter[];

const NO_COUNTERS: CounterSet = [];

/** All counters. */
export class TrafficCounters {
  readonly #services = new Map<string, ServiceCounters>();
  readonly #limits: CounterLimits;
  #size = 0;
  #sample = 0;
  /** Number of connections that no counter has, because the limit is reached. */
  uncounted = 0;

  constructor(limits: CounterLimits = COUNTER_LIMITS) {
    this.#limits = limits;
  }

  /** The counters of a connection. */
  of(service: string, endpoint: string, port: string): CounterSet {
    let counters = this.#services.get(service);
    if (counters === undefined) {
      if (this.#size >= this.#limits.counters) {
        this.uncounted += 1;
        return NO_COUNTERS;
      }
      counters = { total: this.#new({ service }), endpoints: new Map(), ports: new Map() };
      this.#services.set(service, counters);
    }
    const { total, endpoints, ports } = counters;
    const ofEndpoint = this.#get(endpoints, endpoint, { service, endpoint }, Infinity);
    const limit = this.#limits.portsOfService;
    const ofPort =
      this.#get(ports, port, { service, port }, limit) ??
      this.#get(ports, OTHER_PORTS, { service, port: OTHER_PORTS }, limit + 1);
    return [total, ofEndpoint, ofPort].filter((counter) => counter !== undefined);
  }

  #get(
    map: Map<string, TrafficCounter>,
    name: string,
    key: CounterKey,
    limit: number,
  ): TrafficCounter | undefined {
    let counter = map.get(name);
    if (counter === undefined && map.size < limit && this.#size < this.#limits.counters) {
      counter = this.#new(key);
      map.set(name, counter);
    }
    return counter;
  }

  #new(key: CounterKey): TrafficCounter {
    this.#size += 1;
    return new TrafficCounter(key, this.#sample);
  }

  /**
   * Computes rates and forgets counters that have been idle for long. Connections keep their counters, so a
   * counter with connections is never forgotten.
   * @param seconds since the previous sample; undefined for the first.
   * @returns number of forgotten counters.
   */
  endSample(seconds: number | undefined): number {
    const before = this.#size;
    this.#sample += 1;
    for (const [service, { total, endpoints, ports }] of this.#services) {
      total.endSample(this.#sample, seconds);
      for (const map of [endpoints, ports]) {
        for (const [name, counter] of map) {
          counter.endSample(this.#sample, seconds);
          if (this.#isIdle(counter) && map.delete(name)) this.#size -= 1;
        }
      }
      if (endpoints.size + ports.size === 0 && this.#isIdle(total)) {
        this.#services.delete(service);
        this.#size -= 1;
      }
    }
    return before - this.#size;
  }

  #isIdle({ connections, lastActive }: TrafficCounter): boolean {
    return connections === 0 && this.#sample - lastActive >= IDLE_SAMPLES;
  }

  /** The counter of a Service. */
  service(service: string): TrafficCounter | undefined {
    return this.#services.get(service)?.total;
  }

  /** The counter of an endpoint of a Service. */
  endpoint(service: string, endpoint: string): TrafficCounter | undefined {
    return this.#services.get(service)?.endpoints.get(endpoint);
  }

  /** All counters of one kind, in no order. @param service only the counters of this Service. */
  *list(by: 'service' | 'endpoint' | 'port', service?: string): Iterable<TrafficCounter> {
    const one = service === undefined ? undefined : this.#services.get(service);
    const selected = service === undefined ? this.#services.values() : one ? [one] : [];
    for (const { total, endpoints, ports } of selected) {
      if (by === 'service') yield total;
      else yield* (by === 'endpoint' ? endpoints : ports).values();
    }
  }
}
