/** Follows traced packets through their events: where each was seen, what changed it, and how it ended. */
import { socketAddress } from '../../api/addresses.ts';
import type { Hook } from '../../netlink/nftables/hooks.ts';
import type { TracedHeaders, TraceEvent } from '../../netlink/nftables/trace.ts';
import {
  type IpvsHook,
  ipvsHook,
  isSelectChain,
  passedHook,
  TRACE_TABLE,
} from '../../netlink/nftables/trace-table.ts';
import type { LivePath, LiveTraceStep } from '../api/trace.ts';
import type { NamedRule } from './rule-names.ts';

/** Index of the loopback interface in every network namespace (net/core/dev.c). */
const LOOPBACK_INDEX = 1;

interface PacketState {
  readonly number: number;
  readonly first: TracedHeaders;
  last: TracedHeaders;
  readonly passed: Hook[];
  dropped: { readonly step: LiveTraceStep; readonly isReject: boolean } | undefined;
  translatedBy: LiveTraceStep | undefined;
  masqueradedBy: LiveTraceStep | undefined;
  /** The hook where the packet last reached IPVS. */
  ipvs: IpvsHook | undefined;
}

/** The state of one packet at an event. */
export class TracedPackets {
  readonly #byId = new Map<number, PacketState>();
  readonly #all: PacketState[] = [];
  readonly #isOther: (source: string) => boolean;
  /** Number of packets that are not followed. */
  others = 0;

  /** @param isOther whether packets from a source are not followed. */
  constructor(isOther: (source: string) => boolean = () => false) {
    this.#isOther = isOther;
  }

  /** Number of packets so far. */
  get count(): number {
    return this.#all.length;
  }

  /** @returns the number of the packet from 1; undefined for a packet that is not followed, or that another program traces. */
  packetOf(event: TraceEvent): number | undefined {
    const { table, chain, handle, headers, id } = event;
    if (table !== TRACE_TABLE || handle === undefined || !isSelectChain(chain))
      return this.#byId.get(id)?.number;
    if (headers === undefined) return undefined;
    if (this.#isOther(headers.source)) {
      // The kernel may have used the id for an earlier packet.
      this.#byId.delete(id);
      this.others += 1;
      return undefined;
    }
    // A packet that this node sends to itself is selected again when it arrives.
    const sent = event.inInterface === LOOPBACK_INDEX ? this.#lastSent(headers) : undefined;
    const state = sent ?? this.#start(headers);
    this.#byId.set(id, state);
    return state.number;
  }

  /** Records an event of a packet. */
  record(event: TraceEvent, step: LiveTraceStep, { action }: NamedRule): void {
    const state = this.#all[step.packet - 1];
    if (state === undefined) return;
    if (event.headers !== undefined) state.last = event.headers;
    const hook = event.table === TRACE_TABLE ? passedHook(event.chain) : undefined;
    if (hook !== undefined && !state.passed.includes(hook)) state.passed.push(hook);
    if (event.table === TRACE_TABLE) state.ipvs = ipvsHook(event.chain) ?? state.ipvs;
    const isDrop = event.verdict?.kind === 'drop' || event.policy?.kind === 'drop';
    if (isDrop) state.dropped = { step, isReject: action === 'reject' };
    const isRouted = state.passed.includes('forward') || state.passed.includes('output');
    if (action === 'masquerade' || (action === 'translate' && isRouted)) state.masqueradedBy = step;
    else if (action === 'translate') state.translatedBy = step;
  }

  /** The address that sent a packet. @param packet number from 1. */
  senderOf(packet: number): string | undefined {
    return this.#all[packet - 1]?.first.source;
  }

  /** @param isLocalPod whether an address belongs to a pod of this node. */
  paths(isLocalPod: (address: string) => boolean = () => false): LivePath[] {
    return this.#all.map((state) => {
      const { first, last, dropped } = state;
      const result = resultOf(state);
      return {
        packet: state.number,
        source: sourceText(first),
        destination: destinationText(first),
        result: result === 'left' && isLocalPod(last.destination) ? 'pod' : result,
        passed: state.passed,
        translatedTo:
          destinationText(first) === destinationText(last) ? null : destinationText(last),
        masqueradedAs: first.source === last.source ? null : last.source,
        decidedBy: dropped?.step ?? null,
        translatedBy: state.translatedBy ?? null,
        masqueradedBy: state.masqueradedBy ?? null,
        lostInIpvs: isLostInIpvs(state),
      };
    });
  }

  #start(headers: TracedHeaders): PacketState {
    const state: PacketState = {
      number: this.#all.length + 1,
      first: headers,
      last: headers,
      passed: [],
      dropped: undefined,
      translatedBy: undefined,
      masqueradedBy: undefined,
      ipvs: undefined,
    };
    this.#all.push(state);
    return state;
  }

  #lastSent(headers: TracedHeaders): PacketState | undefined {
    return this.#all.findLast(
      ({ passed, first }) =>
        passed.includes('output') &&
        !passed.includes('prerouting') &&
        sourceText(first) === sourceText(headers) &&
        destinationText(first) === destinationText(headers),
    );
  }
}

function resultOf({ dropped, passed }: PacketState): LivePath['result'] {
  if (dropped !== undefined) return dropped.isReject ? 'rejected' : 'dropped';
  if (passed.includes('input')) return 'delivered';
  return passed.includes('postrouting') ? 'left' : 'lost';
}

/** A packet that IPVS sends to an endpoint passes hook output again, with the endpoint as destination. */
function isLostInIpvs(state: PacketState): boolean {
  const { first, last, ipvs, passed } = state;
  if (ipvs === undefined || resultOf(state) !== 'lost') return false;
  return destinationText(first) === destinationText(last) && !passed.includes(ipvs);
}

export function sourceText({ source, sourcePort }: TracedHeaders): string {
  return socketAddress(source, sourcePort);
}

export function destinationText({ destination, destinationPort }: TracedHeaders): string {
  return socketAddress(destination, destinationPort);
}
