/**
 * Live tracing: the kernel reports which nf_tables rules matching packets pass. At most one trace runs at a time. It ends
 * after some seconds, packets or events, or when the client is gone; `netlink/nftables/trace-table.ts` says what ends it
 * if this process cannot.
 */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { UnsupportedError } from '../../netlink/core/error.ts';
import { type TraceEvent, type TraceVerdict, watchTraces } from '../../netlink/nftables/trace.ts';
import {
  type ArmedTrace,
  armTrace,
  TraceRunningError,
} from '../../netlink/nftables/trace-table.ts';
import { listLinks } from '../../netlink/route/rtnetlink.ts';
import type { LivePath, LiveTraceFilter, LiveTraceLine, LiveTraceStep } from '../api/trace.ts';
import { Unanswerable } from '../http/handler.ts';
import { timeText } from '../views/text.ts';
import { differences } from './differences.ts';
import type { ForeignPath } from './foreign-steps.ts';
import { kernelFilter } from './live-filter.ts';
import { destinationText, sourceText, TracedPackets } from './live-paths.ts';
import type { TraceSources } from './resolve.ts';
import { type NamedRule, RuleNames } from './rule-names.ts';

/** Packets of one trace. More end it. */
const MAX_PACKETS = 20;
/** Limit in the kernel, for the time until the agent reads the events. */
const PACKETS_PER_SECOND = 20;
/** Events of one trace that wait for the client. More end the trace. */
const MAX_WAITING = 5000;
/** Events to read at all, also of packets that other programs trace. */
const MAX_EVENTS = 50_000;

export interface LiveTraceRequest {
  readonly filter: LiveTraceFilter;
  readonly seconds: number;
  readonly signal: AbortSignal;
  /** See the line `armed`. */
  readonly otherFamily: Extract<LiveTraceLine, { readonly event: 'armed' }>['otherFamily'];
  /** Computes the path that the kernel's path of a packet is compared with. @param source of the packet. */
  readonly computedFrom: (source: string) => Promise<ForeignPath>;
  /** Whether packets from an address are only counted. */
  readonly isOther: (source: string) => boolean;
  readonly isLocalPod: (address: string) => boolean;
  /** Limits to mention in the summary. */
  readonly notes: readonly string[];
  /** See `TracedPath`. */
  readonly forwardsWithIpvs: boolean;
}

type EndReason = 'time' | 'packets' | 'events' | 'client';

/** Starts live traces, one at a time. */
export class LiveTracer {
  readonly #sources: TraceSources;
  readonly #now: () => number;
  #isRunning = false;

  /** @param now milliseconds since 1970. */
  constructor(sources: TraceSources, now: () => number) {
    this.#sources = sources;
    this.#now = now;
  }

  /**
   * Arms a trace. It ends even if the result is never read.
   * @throws Unanswerable if another trace runs, or the node cannot trace; NetlinkError.
   */
  async start(request: LiveTraceRequest): Promise<AsyncIterable<LiveTraceLine>> {
    if (this.#isRunning) throw new Unanswerable(409, new TraceRunningError(undefined).message);
    this.#isRunning = true;
    try {
      const names = new RuleNames(this.#sources.backends());
      const trace = new RunningTrace(request, names, this.#now, () => {
        this.#isRunning = false;
      });
      await trace.arm();
      return trace.lines();
    } catch (error) {
      this.#isRunning = false;
      if (error instanceof TraceRunningError)
        throw new Unanswerable(409, error.message, { cause: error });
      if (error instanceof UnsupportedError)
        throw new Unanswerable(501, error.message, { cause: error });
      throw error;
    }
  }
}

class RunningTrace {
  readonly #request: LiveTraceRequest;
  readonly #names: RuleNames;
  readonly #now: () => number;
  readonly #onEnd: () => void;
  readonly #packets: TracedPackets;
  readonly #waiting: { readonly event: TraceEvent; readonly packet: number }[] = [];
  /** By packet. */
  readonly #chainEnds = new Map<number, TraceEvent>();
  #interfaces: ReadonlyMap<number, string> = new Map();
  #events = 0;
  #lost = 0;
  #ended: EndReason | undefined;
  #closing: Promise<void> | undefined;
  #isClosed = false;
  #wake = () => {};
  #cleanup = () => {};
  #watch: { close(): Promise<void> } | undefined;
  #armed: ArmedTrace | undefined;

  constructor(request: LiveTraceRequest, names: RuleNames, now: () => number, onEnd: () => void) {
    this.#request = request;
    this.#packets = new TracedPackets(request.isOther);
    this.#names = names;
    this.#now = now;
    this.#onEnd = onEnd;
  }

  async arm(): Promise<void> {
    const { filter, seconds, signal, forwardsWithIpvs } = this.#request;
    this.#interfaces = (await listLinks()).names;
    this.#watch = watchTraces(
      (event) => this.#receive(event),
      () => {
        this.#lost += 1;
      },
    );
    try {
      this.#armed = await armTrace(
        kernelFilter(filter),
        seconds * 1000,
        PACKETS_PER_SECOND,
        forwardsWithIpvs,
      );
    } catch (error) {
      await this.#watch.close();
      throw error;
    }
    const timer = setTimeout(() => this.#end('time'), seconds * 1000);
    const onAbort = () => this.#end('client');
    signal.addEventListener('abort', onAbort, { once: true });
    this.#cleanup = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', onAbort);
    };
    if (signal.aborted) onAbort();
    // Other traced packets may have ended the trace before it was armed.
    if (this.#ended !== undefined) {
      this.#cleanup();
      await this.#armed.disarm();
    }
  }

  async *lines(): AsyncGenerator<LiveTraceLine> {
    const { filter, seconds, otherFamily } = this.#request;
    try {
      yield {
        event: 'armed',
        at: timeText(this.#now()),
        filter,
        seconds,
        maxPackets: MAX_PACKETS,
        otherFamily,
      };
      for (;;) {
        const next = this.#waiting.shift();
        if (next !== undefined) {
          const step = await this.#step(next.event, next.packet);
          if (step.owner !== 'trace') yield step;
        } else if (this.#isClosed) {
          break;
        } else {
          await new Promise<void>((resolve) => {
            this.#wake = resolve;
          });
        }
      }
      const { notes, isLocalPod } = this.#request;
      const paths = this.#packets.paths(isLocalPod).slice(0, MAX_PACKETS);
      yield {
        event: 'summary',
        at: timeText(this.#now()),
        ended: this.#ended ?? 'time',
        paths,
        lost: this.#lost,
        others: this.#packets.others,
        differences: await this.#differences(paths),
        notes: [...notes, ...(paths.length === 0 ? [`no packet matched in ${seconds} s`] : [])],
      };
    } finally {
      this.#end('client');
      await this.#closing;
    }
  }

  async #differences(paths: readonly LivePath[]): Promise<string[]> {
    const bySource = new Map<string, ForeignPath>();
    const senderOf = ({ packet }: LivePath) => this.#packets.senderOf(packet) ?? '';
    for (const source of new Set(paths.map(senderOf)))
      bySource.set(source, await this.#request.computedFrom(source));
    return differences(paths, (path) => bySource.get(senderOf(path)) as ForeignPath);
  }

  #receive(event: TraceEvent): void {
    this.#events += 1;
    if (this.#events > MAX_EVENTS || this.#waiting.length >= MAX_WAITING) {
      this.#lost += 1;
      this.#end('events');
      return;
    }
    const packet = this.#packets.packetOf(event);
    if (packet === undefined) return;
    if (packet > MAX_PACKETS) {
      this.#end('packets');
      return;
    }
    if (event.type === 'rule' && event.handle === undefined) {
      // The kernel reports the end of a base chain twice. The first event has no handle, but it has the headers if no
      // rule of the chain matched.
      this.#chainEnds.set(packet, event);
      return;
    }
    const { headers, inInterface, outInterface } =
      event.headers === undefined ? (this.#chainEnds.get(packet) ?? event) : event;
    this.#chainEnds.delete(packet);
    this.#waiting.push({ event: { ...event, headers, inInterface, outInterface }, packet });
    this.#wake();
  }

  #end(reason: EndReason): void {
    if (this.#ended !== undefined) return;
    this.#ended = reason;
    this.#cleanup();
    this.#closing = this.#close();
    // `lines` reports the error, if the client still reads.
    this.#closing.catch(() => undefined);
  }

  async #close(): Promise<void> {
    try {
      await this.#armed?.disarm();
      // Read the events that the kernel has already sent.
      await nextTurn();
      await nextTurn();
      await this.#watch?.close();
    } finally {
      this.#isClosed = true;
      this.#onEnd();
      this.#wake();
    }
  }

  async #step(event: TraceEvent, packet: number): Promise<LiveTraceStep> {
    const named = await this.#names.name(event);
    const step = this.#stepOf(event, packet, named);
    this.#packets.record(event, step, named);
    return step;
  }

  #stepOf(event: TraceEvent, packet: number, named: NamedRule): LiveTraceStep {
    const { owner, table, rule, purpose, text, action } = named;
    const { headers } = event;
    const verdict = event.verdict ?? event.policy;
    return {
      event: 'step',
      packet,
      owner,
      table,
      chain: event.chain,
      rule,
      handle: event.handle ?? null,
      purpose,
      text,
      verdict: action === 'reject' ? 'reject' : verdictText(verdict, event.type),
      source: headers === undefined ? null : sourceText(headers),
      destination: headers === undefined ? null : destinationText(headers),
      inInterface: this.#interfaceText(event.inInterface),
      outInterface: this.#interfaceText(event.outInterface),
    };
  }

  #interfaceText(index: number | undefined): string | null {
    if (index === undefined) return null;
    return this.#interfaces.get(index) ?? `interface ${index}`;
  }
}

function verdictText(verdict: TraceVerdict | undefined, type: TraceEvent['type']): string {
  const text = [verdict?.kind ?? type, ...(verdict?.chain === undefined ? [] : [verdict.chain])];
  return `${type === 'policy' ? 'policy ' : ''}${text.join(' ')}`;
}
