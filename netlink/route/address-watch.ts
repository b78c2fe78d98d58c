/** Follows the addresses of the node, by notifications of rtnetlink and fresh dumps. */
import { MulticastGroups } from 'netlink/dist/rt/structs.js';
import { Loop } from '../../sync/loop.ts';
import { systemTimers } from '../../sync/timers.ts';
import { NETLINK_ROUTE } from '../core/descriptor.ts';
import type { NetlinkMessage } from '../core/message.ts';
import { NetlinkSocket } from '../core/socket.ts';
import { addressLinkIndex, listLinks, type NodeAddress, type NodeLinks } from './rtnetlink.ts';

interface AddressWatchOptions {
  /**
   * Name of a link whose addresses do not count: nothing is listed when one of thousands that this
   * process keeps there comes or goes.
   */
  readonly ignoredLink?: string;
  /** Hears of a failed look at the addresses, which is tried again, and of what `onChange` threw. */
  readonly onError: (error: unknown) => void;
}

export interface AddressWatch {
  /** No call follows. Resolves when the socket is closed. */
  close(): Promise<void>;
}

/** Milliseconds. One `ip link del` makes a handful of notifications, a CNI plugin dozens. */
const COALESCE = 50;
const BACKOFF = { first: 100, max: 10_000 };

/**
 * Follows the addresses of the node, of both families. Notifications only say that something
 * has changed; the list is always a fresh dump, so that losing some does no harm.
 * @param onChange Called with the full list before the promise resolves, and after every change of
 * an address or of a link (new, renamed, gone), bursts coalesced for 50 ms.
 * @throws NetlinkError when it cannot start. The process stays alive until it is closed.
 */
export async function watchAddresses(
  onChange: (addresses: readonly NodeAddress[]) => void,
  { ignoredLink, onError }: AddressWatchOptions,
): Promise<AddressWatch> {
  const notifications = new NetlinkSocket(NETLINK_ROUTE, { receiveBuffer: 1 << 20 });
  let current: string | undefined;
  let ignoredIndex: number | undefined;
  let closed = false;
  const loop = new Loop({
    run: async () => {
      try {
        report(await listLinks());
        return 0;
      } catch (error) {
        if (!closed) onError(error);
        throw error;
      }
    },
    minPeriod: 0,
    delay: COALESCE,
    backoff: BACKOFF,
    timers: systemTimers,
  });

  function report({ names, addresses: all }: NodeLinks): void {
    ignoredIndex = [...names].find(([, name]) => name === ignoredLink)?.[0];
    const addresses = all.filter(({ interfaceName }) => interfaceName !== ignoredLink);
    const state = fingerprint({ names, addresses });
    if (closed || state === current) return;
    current = state;
    try {
      onChange(addresses);
    } catch (error) {
      onError(error);
    }
  }

  async function close(): Promise<void> {
    closed = true;
    await Promise.all([notifications.close(), loop.stop()]);
  }

  try {
    const heard = () => loop.request();
    const groups = [MulticastGroups.LINK, MulticastGroups.IPV4_IFADDR, MulticastGroups.IPV6_IFADDR];
    const isIgnored = (message: NetlinkMessage) =>
      ignoredIndex !== undefined && addressLinkIndex(message) === ignoredIndex;
    notifications.subscribe(
      groups,
      (messages) => {
        if (!messages.every(isIgnored)) heard();
      },
      heard,
    );
    // After the subscription, or a change between the two would go unheard.
    report(await listLinks());
  } catch (error) {
    await close();
    throw error;
  }
  return { close };
}

/** Links too, so that a link without addresses that comes or goes counts as a change. */
function fingerprint({ names, addresses }: NodeLinks): string {
  return JSON.stringify([[...names].sort(([a], [b]) => a - b), addresses]);
}
