/** Notifications of nf_tables, as they come from the kernel. */
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import { MalformedMessage } from '../core/error.ts';
import type { NetlinkMessage } from '../core/message.ts';
import { NetlinkSocket } from '../core/socket.ts';
import { readNotification } from './message.ts';
import type { NftNotification } from './types.ts';

export interface NftWatchOptions {
  /** Hears of one change, after it was made. In a turn of the event loop of its own. */
  readonly onChange: (change: NftNotification) => void;
  /** Notifications were lost: anything may have changed. */
  readonly onOverrun: (error: Error) => void;
  /**
   * Ports of sockets of our own that stay open as long as the watch (`NfTables.port`). The kernel
   * does not hand on what they cause.
   */
  readonly filteredPortIds?: readonly number[];
  /**
   * Whether what another port causes is not told, asked for each datagram; such as that of an `nft` that
   * this process runs: its process id, unless it has several sockets.
   */
  readonly isOwnPortId?: (port: number) => boolean;
}

/** linux/netfilter/nfnetlink.h */
const NFNLGRP_NFTABLES = 7;
const RECEIVE_BUFFER = 8 << 20;

/**
 * Hears of all changes of nf_tables in the network namespace of this thread, but for elements that
 * packets add or that expire. The process stays alive until it is closed.
 *
 * That somebody listens is not free for those who make changes: the kernel makes a notification of
 * 4 KiB for each element, rule and so on, and holds them all until the transaction is done. Loading
 * 110,000 elements took twice as long (and 480 MB more in the kernel meanwhile), one element as long as ever.
 * So for a big load the watch is better closed.
 * @throws NetlinkError, such as EINVAL from a kernel without nf_tables.
 */
export function watchNftables(options: NftWatchOptions): { close(): Promise<void> } {
  const { onChange, onOverrun, filteredPortIds: silencedPorts = [], isOwnPortId: isOwn } = options;
  const socket = new NetlinkSocket(NETLINK_NETFILTER, { receiveBuffer: RECEIVE_BUFFER });
  const onMessages = (messages: readonly NetlinkMessage[]) => {
    for (const message of messages) {
      const change = read(message);
      if (change instanceof MalformedMessage) onOverrun(change);
      else if (change !== undefined) onChange(change);
    }
  };
  try {
    if (silencedPorts.length > 0) socket.filterPortIds(silencedPorts);
    socket.subscribe([NFNLGRP_NFTABLES], onMessages, onOverrun, isOwn);
  } catch (error) {
    void socket.close();
    throw error;
  }
  return { close: () => socket.close() };
}

function read(message: NetlinkMessage): NftNotification | MalformedMessage | undefined {
  try {
    return readNotification(message);
  } catch (error) {
    if (error instanceof MalformedMessage) return error;
    throw error;
  }
}
