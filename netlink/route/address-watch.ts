/** Watches the IP addresses of the node: rtnetlink notifications trigger a new dump. */
import { MulticastGroups } from 'netlink/dist/rt/structs.js';
import { Loop } from '../../sync/loop.ts';
import { systemTimers } from '../../sync/timers.ts';
import { NETLINK_ROUTE } from '../core/descriptor.ts';
import type { NetlinkMessage } from '../core/message.ts';
import { NetlinkSocket } from '../core/socket.ts';
import { addressLinkIndex, listLinks, type NodeAddress, type NodeLinks } from './rtnetlink.ts';

interface AddressWatchOptions {
  /**
   * Name of an interface whose addresses are ignored. Changes to the thousands of VIPs that this
   * process keeps there do not trigger a dump.
   */
  readonly ignoredLink?: string;
  /**
   * Called with the error of a failed dump, which is retried, and with errors that `onChange`
   * throws.
   */
  readonly onError: (error: unknown) => void;
}

export interface AddressWatch {
  /** Stops the callbacks. Resolves when the socket is closed. */
  close(): Promise<void>;
}

/** Milliseconds. An `ip link del` causes several notifications, a CNI plugin dozens. */
const COALESCE = 50;
const BACKOFF = { first: 100, max: 10_000 };

/**
 * Watches the addresses of the node, of both families. Notifications only signal a change; the list
 * always comes from a new dump, so lost notifications do no harm.
 * The process stays alive until the watch is closed.
 * @param onChange Called with all addresses except the addresses of `ignoredLink`: first before
 * `watchAddresses` resolves, then after every change of an address or interface (added, renamed,
 * deleted). Bursts are coalesced for 50 ms.
 * @throws NetlinkError if the watch cannot start.
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

  function report(links: NodeLinks): void {
    const { names } = links;
    ignoredIndex = [...names].find(([, name]) => name === ignoredLink)?.[0];
    const addresses = links.addresses.filter(({ interfaceName }) => interfaceName !== ignoredLink);
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
    const requestDump = () => loop.request();
    const groups = [MulticastGroups.LINK, MulticastGroups.IPV4_IFADDR, MulticastGroups.IPV6_IFADDR];
    const isIgnored = (message: NetlinkMessage) =>
      ignoredIndex !== undefined && addressLinkIndex(message) === ignoredIndex;
    notifications.subscribe(
      groups,
      (messages) => {
        if (!messages.every(isIgnored)) requestDump();
      },
      requestDump,
    );
    // Dump after subscribing: otherwise a change between the two would be missed.
    report(await listLinks());
  } catch (error) {
    await close();
    throw error;
  }
  return { close };
}

/** Includes interfaces, so that adding or deleting one without addresses counts as a change. */
function fingerprint({ names, addresses }: NodeLinks): string {
  return JSON.stringify([[...names].sort(([a], [b]) => a - b), addresses]);
}
