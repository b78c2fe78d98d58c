/** Live flows: connections that begin and end, and packets that are refused, while a client looks. */
import { asError } from '../../api/errors.ts';
import type { DetailedEntry } from '../../netlink/conntrack/conntrack.ts';
import type { ConntrackEventKind, EventSelection } from '../../netlink/conntrack/events.ts';
import type { LoggedPacket } from '../../netlink/nflog/log-group.ts';
import { type Route, vipsOf } from '../../services/route.ts';
import { callPeriodically, type Timers } from '../../sync/timers.ts';
import type { FlowEvent, FlowLine } from '../api/traffic.ts';
import { TooManyRequests } from '../http/request-budget.ts';
import { type DenialPolicies, explainDenial, matchesDenied, serviceOfDenied } from './denial.ts';
import { flowEntry, packetFlow, routeOfEntry } from './flow-entry.ts';
import type { FlowFilter } from './flow-filter.ts';
import { FlowQueue } from './flow-queue.ts';
import type { LiveIndex } from './live-index.ts';
import { type PacketHeader, readPacketHeader } from './packet.ts';
import { pollSubscription } from './poll.ts';
import { explainRefusal, type RefusalRules } from './refusal.ts';
import type { ServiceIndex } from './service-index.ts';

/** Something of the kernel that is read on demand. */
interface Subscription {
  readonly dropped: number;
  close(): void | Promise<void>;
}

/** Where flows come from. */
export interface FlowSources {
  /** @param receiveBuffer bytes of events that may wait; the kernel doubles it. */
  openEvents(receiveBuffer: number): Subscription & {
    /** Reads about `atMost` events. An entry is valid only during the call. */
    read(
      onEvent: (kind: ConntrackEventKind, entry: DetailedEntry) => void,
      atMost: number,
    ): boolean;
    /** Keeps only some events from now on; undefined: all. */
    select(selection: EventSelection | undefined): void;
  };
  openRefusals(index: ServiceIndex): Promise<
    Subscription & {
      read(onPacket: (packet: LoggedPacket) => void): boolean;
      refresh(): Promise<void>;
      /** Why packets of some family are not logged. */
      readonly failure?: Error | undefined;
    }
  >;
  /** undefined if policies do not log denied packets. */
  readonly openDenials:
    | (() => Subscription & {
        read(onPacket: (packet: LoggedPacket) => void): boolean;
      })
    | undefined;
}

export interface FlowFeedOptions {
  readonly index: LiveIndex;
  readonly sources: FlowSources;
  /** The Routes of a Service; none if there is no such Service. */
  readonly routesOf: (service: string) => readonly Route[];
  readonly refusalRules: () => Omit<RefusalRules, 'index'>;
  /** undefined without network policy. */
  readonly policies: DenialPolicies | undefined;
  readonly timers: Timers;
  /** Milliseconds since 1970. */
  readonly now: () => number;
  /** Called for an error of a subscription; the others go on. */
  readonly onError: (error: unknown) => void;
}

/** Milliseconds between two reads, and between two updates of the VIPs whose refused packets are logged. */
const READ_MS = 100;
const REFRESH_MS = 2000;
/**
 * Connection events of one read. All events of 10,000 connections a second would take 7 % of a core, more than a person
 * can read. The events beyond wait in the socket until it is full. The kernel drops and counts later events.
 */
const EVENTS_PER_READ = 64;
/**
 * Bytes of events that wait: an event takes 1 KiB and the kernel doubles the number, so the last event is read within
 * about 0.8 s. Once the buffer is full, the kernel drops all events until it is empty. So a larger buffer would show no
 * more flows of a busy node, but later ones. This one has room for 500 at once.
 */
const EVENT_BUFFER = 256 << 10;
/** Milliseconds that a read is late. The clients are told, because the kernel does not tell the time of every flow. */
const LATE_MS = 1000;
/** A time of the kernel that differs more comes from another clock. */
const MAX_AGE_MS = 24 * 3600 * 1000;
/**
 * Denied packets of one read whose policies are evaluated. Each client has an equal share for itself, so that many
 * packets that one client wants do not hide the packets of another.
 */
const DENIALS_PER_READ = 64;
/** Clients at one time. */
const MAX_CLIENTS = 32;

/** What a subscription reports. */
interface Part {
  readonly from: Subscription | undefined;
  readonly events: readonly FlowEvent['event'][];
  /** As of the last read. */
  dropped: number;
}

/** Whether a client may want some of the messages that were dropped unread. */
function mayWant({ event }: FlowFilter, events: readonly FlowEvent['event'][]): boolean {
  return event === undefined || events.includes(event);
}

/** The open subscriptions. */
interface Session {
  /** Adapts the subscription to the filters of the clients. */
  readonly select: () => void;
  readonly close: () => Promise<void>;
  /** What is not shown. */
  readonly notes: () => readonly string[];
}

const REFUSALS: readonly FlowEvent['event'][] = ['rejected', 'dropped'];

/** Reports flows to clients. Subscriptions exist only while there is a client. */
export class FlowFeed {
  readonly #options: FlowFeedOptions;
  readonly #clients = new Set<FlowQueue>();
  #session: Promise<Session> | undefined;
  /** The end of the previous session: its tables must be gone before the next ones are created. */
  #closed: Promise<unknown> = Promise.resolve();

  constructor(options: FlowFeedOptions) {
    this.#options = options;
  }

  /** Whether subscriptions exist. */
  get isRunning(): boolean {
    return this.#session !== undefined;
  }

  /**
   * Reports flows until the signal is aborted or the iterator is closed.
   * @throws TooManyRequests; (the iterator) NetlinkError if the kernel has no conntrack events.
   */
  follow(filter: FlowFilter, signal: AbortSignal): AsyncGenerator<FlowLine, void, undefined> {
    if (this.#clients.size >= MAX_CLIENTS)
      throw new TooManyRequests(`${MAX_CLIENTS} clients read flows already; end one of them`);
    return this.#follow(filter, signal);
  }

  async *#follow(
    filter: FlowFilter,
    signal: AbortSignal,
  ): AsyncGenerator<FlowLine, void, undefined> {
    const queue = new FlowQueue(filter, this.#options.now);
    this.#clients.add(queue);
    const end = () => queue.end();
    signal.addEventListener('abort', end);
    try {
      this.#session ??= this.#open();
      const session = await this.#session;
      session.select();
      queue.start(session.notes());
      if (signal.aborted) return;
      yield* queue.lines();
    } finally {
      signal.removeEventListener('abort', end);
      this.#clients.delete(queue);
      if (this.#clients.size === 0) await this.#close();
      else (await this.#session)?.select();
    }
  }

  /**
   * The events that some client may want; undefined: all. The kernel omits the others, so that a client of one Service,
   * address or port loses fewer on a busy node.
   */
  #selection(): EventSelection | undefined {
    const destinations = new Set<string>();
    const destinationPorts = new Set<number>();
    const addresses = new Set<string>();
    const ports = new Set<number>();
    for (const { filter } of this.#clients) {
      const { event, ip, service, port } = filter;
      // Refused and denied packets have other sources.
      if (event !== undefined && event !== 'opened' && event !== 'closed') continue;
      if (ip !== undefined) addresses.add(ip);
      else if (service !== undefined) {
        for (const route of this.#options.routesOf(service)) {
          for (const vip of vipsOf(route)) destinations.add(vip);
          if (route.nodePort > 0) destinationPorts.add(route.nodePort);
        }
      } else if (port !== undefined) ports.add(port);
      else return undefined;
    }
    return {
      destinations: [...destinations],
      destinationPorts: [...destinationPorts],
      addresses: [...addresses],
      ports: [...ports],
    };
  }

  /** Ends all streams. */
  async close(): Promise<void> {
    for (const client of this.#clients) client.end();
    await this.#close();
  }

  async #close(): Promise<void> {
    const closing = this.#session;
    this.#session = undefined;
    if (closing === undefined) return;
    this.#closed = closing.then(
      (session) => session.close(),
      () => undefined,
    );
    await this.#closed;
  }

  async #open(): Promise<Session> {
    await this.#closed;
    const { index: live, sources, timers, onError } = this.#options;
    const index = await live.acquire();
    let events: ReturnType<FlowSources['openEvents']>;
    try {
      events = sources.openEvents(EVENT_BUFFER);
    } catch (error) {
      live.release();
      throw error;
    }
    const notes: string[] = [];
    const noRefusals = (error: unknown) => {
      notes.push(`rejected and dropped packets are not shown: ${asError(error).message}`);
      return undefined;
    };
    const refusals = await sources.openRefusals(index).catch(noRefusals);
    if (refusals?.failure !== undefined) noRefusals(refusals.failure);
    const denials = this.#openDenials(notes);
    const open = [events, refusals, denials].filter((each) => each !== undefined);
    const parts: readonly Part[] = [
      { from: events, events: ['opened', 'closed'], dropped: 0 },
      { from: refusals, events: REFUSALS, dropped: 0 },
      { from: denials, events: ['denied'], dropped: 0 },
    ];
    const read = (late: number): boolean => {
      let isLeft = false;
      const now = this.#options.now();
      const readAt = new Date(now).toISOString();
      const send = (event: NewEvent, time?: number, possible: readonly Route[] = []) => {
        if (event === undefined) return;
        const isKnown = time !== undefined && time <= now && time > now - MAX_AGE_MS;
        const at = isKnown ? new Date(time).toISOString() : readAt;
        for (const client of this.#clients) client.push({ at, ...event }, possible);
      };
      if (late >= LATE_MS) {
        const seconds = Math.round(late / 100) / 10;
        for (const client of this.#clients) client.late(seconds);
      }
      try {
        isLeft = events.read(
          (kind, entry) => send(this.#entryEvent(kind, entry, index), entry.details.eventAt),
          EVENTS_PER_READ,
        );
        refusals?.read(({ bytes, receivedAt }) =>
          send(this.#refusalEvent(bytes, index), receivedAt),
        );
        const explained = new Map<FlowQueue, number>();
        let evaluated = 0;
        denials?.read((logged) => {
          const denied = this.#deniedPacket(logged, index);
          const clients = denied === undefined ? [] : this.#clientsOfDenial(denied);
          if (denied === undefined || clients.length === 0) return;
          const share = DENIALS_PER_READ / this.#clients.size;
          const countOf = (client: FlowQueue) => explained.get(client) ?? 0;
          if (evaluated >= DENIALS_PER_READ && clients.every((each) => countOf(each) >= share)) {
            for (const client of clients) client.lose(1);
            return;
          }
          evaluated += 1;
          for (const client of clients) explained.set(client, countOf(client) + 1);
          send(this.#denialEvent(logged.prefix, denied), logged.receivedAt, denied.possible);
        });
      } catch (error) {
        onError(error);
      }
      for (const part of parts) {
        const now = part.from?.dropped ?? 0;
        for (const client of this.#clients) {
          if (now > part.dropped && mayWant(client.filter, part.events)) {
            client.lose(now - part.dropped);
          }
        }
        part.dropped = now;
      }
      return isLeft;
    };
    const stopReading = pollSubscription(timers, READ_MS, read);
    let changes = index.changes;
    const select = () => {
      try {
        events.select(this.#selection());
      } catch (error) {
        onError(error);
      }
    };
    let missing: string | undefined;
    const setMissing = (text: string | undefined) => {
      if (text === missing) return;
      missing = text;
      for (const client of this.#clients) if (mayWant(client.filter, REFUSALS)) client.note(all());
    };
    const all = () => (missing === undefined ? notes : [...notes, missing]);
    let isRefreshing = false;
    const refresh = async () => {
      if (refusals === undefined || isRefreshing) return;
      isRefreshing = true;
      try {
        await refusals.refresh();
        setMissing(undefined);
      } catch (error) {
        const reason = asError(error).message;
        setMissing(`rejected and dropped packets to changed Services may be missing: ${reason}`);
        onError(error);
      }
      isRefreshing = false;
    };
    const stopRefreshing = callPeriodically(timers, REFRESH_MS, () => {
      if (index.changes !== changes) {
        changes = index.changes;
        select();
      }
      void refresh();
    });
    const close = async () => {
      stopReading();
      stopRefreshing();
      await Promise.all(open.map((each) => each.close()));
      live.release();
    };
    return { close, notes: all, select };
  }

  #openDenials(notes: string[]): ReturnType<NonNullable<FlowSources['openDenials']>> | undefined {
    const { openDenials } = this.#options.sources;
    if (openDenials === undefined) {
      notes.push('packets denied by policies are not shown: set --policy-log-group');
      return undefined;
    }
    try {
      return openDenials();
    } catch (error) {
      notes.push(`packets denied by policies are not shown: ${asError(error).message}`);
      return undefined;
    }
  }

  #entryEvent(kind: ConntrackEventKind, entry: DetailedEntry, index: ServiceIndex): NewEvent {
    const { isNodeAddress } = this.#options.refusalRules();
    const route = routeOfEntry(entry, { index, isNodeAddress });
    // Connections of other programs are not flows of Services.
    if (route === undefined) return undefined;
    const event = kind === 'new' ? 'opened' : 'closed';
    const flow = flowEntry(entry, route);
    return { event, service: route.serviceKey, reason: '', policies: [], flow };
  }

  #refusalEvent(bytes: Buffer, index: ServiceIndex): NewEvent {
    const packet = readPacketHeader(bytes);
    const refusal = packet && explainRefusal(packet, { ...this.#options.refusalRules(), index });
    return refusal && { ...refusal, policies: [], flow: packetFlow(packet) };
  }

  /** A denied packet with the Service that its client used; undefined if the packet cannot be read. */
  #deniedPacket({ bytes, original }: LoggedPacket, index: ServiceIndex): Denied | undefined {
    const packet = readPacketHeader(bytes);
    if (packet === undefined) return undefined;
    const { isNodeAddress } = this.#options.refusalRules();
    const denied = serviceOfDenied(packet, original, { index, isNodeAddress });
    const { address, port } = denied.destination;
    const flow = { ...packetFlow(packet), destination: address, destinationPort: port };
    const event = { event: 'denied', service: denied.service, flow } as const;
    return { event, packet, ...denied };
  }

  /** The clients that want a denied packet. Its explanation takes long and has no part in the filter. */
  #clientsOfDenial({ event, possible }: Denied): FlowQueue[] {
    return [...this.#clients].filter(({ filter }) => matchesDenied(event, possible, filter));
  }

  /** Policies see packets after translation: their destination is the endpoint. */
  #denialEvent(prefix: string, { event, packet, note }: Denied): NewEvent {
    const denial = explainDenial(prefix, packet, this.#options.policies);
    return denial && { ...event, ...denial, reason: denial.reason + note };
  }
}

/** A denied packet before it is explained, see `serviceOfDenied`. */
interface Denied {
  readonly event: Pick<FlowEvent, 'event' | 'service' | 'flow'>;
  readonly packet: PacketHeader;
  readonly note: string;
  readonly possible: readonly Route[];
}

/** An event without its time; undefined for a packet or entry that is no flow of a Service. */
type NewEvent = Omit<FlowEvent, 'at'> | undefined;
