/** Conntrack events: connections that begin and end. */
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import { NFNL_SUBSYS_CTNETLINK } from '../core/nfnetlink.ts';
import { NotificationSocket } from '../core/notifications.ts';
import type { DetailedEntry } from './entry.ts';
import { EntryReader } from './entry-reader.ts';
import { type EventSelection, eventFilter } from './event-filter.ts';

export type { EventSelection } from './event-filter.ts';

/** What happened to an entry. `new`: confirmed. `destroy`: removed, with its final counters. */
export type ConntrackEventKind = 'new' | 'destroy';

export interface ConntrackEventOptions {
  readonly kinds: readonly ConntrackEventKind[];
  /** Whether the kernel omits entries whose destination is not translated (without IPS_DST_NAT). */
  readonly translatedOnly: boolean;
  /** Bytes of events that may wait; an event takes about 1 KiB. The kernel doubles it. */
  readonly receiveBuffer?: number;
}

/** linux/netfilter/nfnetlink_compat.h */
const GROUPS: Readonly<Record<ConntrackEventKind, number>> = { new: 1, destroy: 3 };
/** linux/netfilter/nfnetlink_conntrack.h */
const IPCTNL_MSG_CT_NEW = NFNL_SUBSYS_CTNETLINK | 0;
const IPCTNL_MSG_CT_DELETE = NFNL_SUBSYS_CTNETLINK | 2;
const RECEIVE_BUFFER = 8 << 20;

/**
 * A subscription to conntrack events of both families, in the network namespace of this thread. While
 * one exists, the kernel composes a message for each entry, also for entries that the filter omits.
 *
 * Entries that were created before the first subscription may end without an event: with
 * `net.netfilter.nf_conntrack_events=2`, the default, the kernel prepares entries for events only
 * while a subscription exists.
 */
export class ConntrackEvents {
  readonly #socket: NotificationSocket;
  readonly #reader = new EntryReader();
  readonly #translatedOnly: boolean;

  /** @throws NetlinkError, such as EINVAL if the kernel has no conntrack events. */
  constructor({ kinds, translatedOnly, receiveBuffer = RECEIVE_BUFFER }: ConntrackEventOptions) {
    this.#socket = new NotificationSocket(NETLINK_NETFILTER, {
      groups: kinds.map((kind) => GROUPS[kind]),
      receiveBuffer,
      filter: eventFilter({ translatedOnly }),
    });
    this.#translatedOnly = translatedOnly;
  }

  /** Number of events that did not fit into the receive buffer. */
  get dropped(): number {
    return this.#socket.dropped;
  }

  /**
   * Reads waiting events, for at most 8 ms.
   * @param onEvent The entry is valid only during the call.
   * @param atMost see `NotificationSocket.visit`.
   * @returns whether events may be left; false after `atMost`.
   * @throws NetlinkError; MalformedMessage; whatever `onEvent` throws.
   */
  read(
    onEvent: (kind: ConntrackEventKind, entry: DetailedEntry) => void,
    atMost?: number,
  ): boolean {
    return this.#socket.visit((type, bytes, start, end) => {
      const kind = kindOf(type);
      if (kind === undefined) return;
      const entry = this.#reader.read(bytes, start, end);
      if (entry !== undefined) onEvent(kind, entry);
    }, atMost);
  }

  /**
   * From now on the kernel keeps only a random part of the events, and does not count the others as dropped.
   * @param oneOf Keeps one of so many events on average; 1 keeps all.
   * @throws NetlinkError
   */
  sample(oneOf: number): void {
    this.#socket.setFilter(eventFilter({ translatedOnly: this.#translatedOnly, oneOf }));
  }

  /**
   * From now on the kernel keeps only selected events, and does not count the others as dropped.
   * @param selection undefined: all. Addresses are compared by their last four bytes, so the reader must check again.
   * @throws NetlinkError
   */
  select(selection: EventSelection | undefined): void {
    this.#socket.setFilter(eventFilter({ translatedOnly: this.#translatedOnly, selection }));
  }

  close(): void {
    this.#socket.close();
  }
}

function kindOf(type: number): ConntrackEventKind | undefined {
  if (type === IPCTNL_MSG_CT_NEW) return 'new';
  return type === IPCTNL_MSG_CT_DELETE ? 'destroy' : undefined;
}
