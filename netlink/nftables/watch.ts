/** Subscribes to notifications of nf_tables. */
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import { MalformedMessage } from '../core/error.ts';
import type { NetlinkMessage } from '../core/message.ts';
import { NetlinkSocket } from '../core/socket.ts';
import { readNotification } from './message.ts';
import type { NftNotification } from './types.ts';

export interface NftWatchOptions {
  /** Called for each change, in a separate event loop turn. */
  readonly onChange: (change: NftNotification) => void;
  /** Notifications were lost: anything may have changed. */
  readonly onOverrun: (error: Error) => void;
  /**
   * Port IDs of sockets of this process that stay open as long as the watch (`NfTables.portId`).
   * The kernel drops notifications of changes by these sockets.
   */
  readonly filteredPortIds?: readonly number[];
  /**
   * Whether to ignore changes caused by a port ID; called once per datagram. For sockets that this process opens later.
   */
  readonly isOwnPortId?: (portId: number) => boolean;
}

/** linux/netfilter/nfnetlink.h */
const NFNLGRP_NFTABLES = 7;
const RECEIVE_BUFFER = 8 << 20;

/**
 * Watches all nf_tables changes in the network namespace of this thread, except elements that
 * packets add or that expire. The process stays alive until the watch is closed.
 *
 * A subscription makes transactions of all programs more expensive. The kernel creates a 4 KiB
 * notification per element, rule or other object, and holds the notifications until the transaction
 * is done. Loading 110,000 elements took twice as long and 480 MB more kernel memory; adding a
 * single element took no longer. Close the watch during a large full sync.
 * @throws NetlinkError, such as EINVAL if the kernel has no nf_tables.
 */
export function watchNftables(options: NftWatchOptions): { close(): Promise<void> } {
  const { onChange, onOverrun, filteredPortIds = [], isOwnPortId } = options;
  const socket = new NetlinkSocket(NETLINK_NETFILTER, { receiveBuffer: RECEIVE_BUFFER });
  const onMessages = (messages: readonly NetlinkMessage[]) => {
    for (const message of messages) {
      const change = read(message);
      if (change instanceof MalformedMessage) onOverrun(change);
      else if (change !== undefined) onChange(change);
    }
  };
  try {
    if (filteredPortIds.length > 0) socket.filterPortIds(filteredPortIds);
    socket.subscribe([NFNLGRP_NFTABLES], onMessages, onOverrun, isOwnPortId);
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
