/** Operations on single netlink sockets that tests run inside a network namespace. */

import { execFileSync } from 'node:child_process';
import { MessageType } from 'netlink/dist/rt/structs.js';
import { encodeAttributes } from '../../netlink/core/attribute.ts';
import {
  NETLINK_NETFILTER,
  NETLINK_ROUTE,
  type SocketOptions,
} from '../../netlink/core/descriptor.ts';
import type { NetlinkMessage, NetlinkRequest } from '../../netlink/core/message.ts';
import { NetlinkSocket } from '../../netlink/core/socket.ts';
import { linkRequest, readLink } from '../../netlink/route/rtnetlink.ts';

const RTM_NEWLINK = 16;
const RTM_GETADDR = 22;
const IPCTNL_MSG_CT_GET = (1 << 8) | 1;
const RTNLGRP_LINK = 1;

const addresses: NetlinkRequest = { type: RTM_GETADDR, payload: Buffer.alloc(8) };
const flows: NetlinkRequest = { type: IPCTNL_MSG_CT_GET, payload: Buffer.from([2, 0, 0, 0]) };
const one = () => 1;

async function withSocket<T>(
  protocol: number,
  options: SocketOptions,
  use: (socket: NetlinkSocket) => Promise<T>,
): Promise<T> {
  const socket = new NetlinkSocket(protocol, options);
  try {
    return await use(socket);
  } finally {
    await socket.close();
    await socket.close();
  }
}

/** Creates a link of a type that does not exist: IFLA_LINKINFO 18 { IFLA_INFO_KIND 1 }. */
function unknownLink(): NetlinkRequest {
  const kind = { type: 1, value: Buffer.from('pwnope') };
  const attributes = encodeAttributes([{ type: 18, value: [kind] }]);
  return {
    type: RTM_NEWLINK,
    flags: 0x600,
    payload: Buffer.concat([Buffer.alloc(16), attributes]),
  };
}

function code(error: unknown): unknown {
  return error instanceof Error && 'code' in error ? error.code : error;
}

export const socketScenarios = {
  refusal: async () => withSocket(NETLINK_ROUTE, {}, (socket) => socket.request(unknownLink())),

  /**
   * Sends a batch in which every message is invalid.
   * @returns the indexes of the refused messages.
   */
  refusals: async (count: number) =>
    withSocket(NETLINK_ROUTE, {}, async (socket) => {
      const refusals = await socket.batch(Array.from({ length: count }, unknownLink));
      return refusals.map(({ index }) => index);
    }),

  unknownProtocol: async () => void new NetlinkSocket(31),

  unknownGroup: async () =>
    withSocket(NETLINK_ROUTE, {}, async (socket) => {
      socket.subscribe([100_000], one, one);
    }),

  requestOnSubscription: async () =>
    withSocket(NETLINK_ROUTE, {}, async (socket) => {
      socket.subscribe([RTNLGRP_LINK], one, one);
      await socket.dump(addresses, one);
    }),

  /** Requests a link with a picker that returns nothing, a missing link, and the name of a link. */
  get: async () =>
    withSocket(NETLINK_ROUTE, {}, async (socket) => {
      const request = linkRequest(MessageType.GETLINK, { ifname: 'lo' });
      const failure = await socket.get(request, () => undefined).catch(String);
      const missing = linkRequest(MessageType.GETLINK, { ifname: 'nope' });
      const refusal = await socket.get(missing, one).catch(code);
      const name = await socket.get(request, (message) => readLink(message)?.[1]);
      return { failure, refusal, name };
    }),

  /** Starts several dumps concurrently. @returns the number of addresses that each found. */
  concurrentDumps: async (count: number) =>
    withSocket(NETLINK_ROUTE, {}, async (socket) => {
      const dumps = Array.from({ length: count }, () => socket.dump(addresses, one));
      return (await Promise.all(dumps)).map(({ length }) => length);
    }),

  /** Dumps addresses, and adds another during each of the first `times` attempts. */
  async changedDump(times: number): Promise<{ found: number; attempts: number }> {
    let attempts = 0;
    let sequence: number | undefined;
    const pick = (message: NetlinkMessage) => {
      if (message.sequence === sequence) return 1;
      sequence = message.sequence;
      if (attempts++ < times) {
        execFileSync('ip', ['address', 'add', `10.77.0.${attempts}/32`, 'dev', 'pw0']);
      }
      return 1;
    };
    const found = await withSocket(NETLINK_ROUTE, {}, (socket) => socket.dump(addresses, pick));
    return { found: found.length, attempts };
  },

  /** Reads a dump more slowly than the deadline allows, then dumps again on the same socket. */
  slowDump: async () =>
    withSocket(NETLINK_NETFILTER, { timeout: 2000 }, async (socket) => {
      const deadline = performance.now() + 2100;
      const slow = socket.dump(flows, () => {
        while (performance.now() < deadline);
        return 1;
      });
      const failure = await slow.catch(code);
      return { failure, found: (await socket.dump(flows, one)).length };
    }),

  /**
   * Dumps for longer than the timeout, on a clock that each entry advances; no single part takes
   * that long.
   */
  steadyDump: async () =>
    withSocket(NETLINK_NETFILTER, { timeout: 30_000 }, async (socket) => {
      const now = performance.now.bind(performance);
      let ahead = 0;
      performance.now = () => now() + ahead;
      try {
        const found = await socket.dump(flows, () => {
          ahead += 20;
          return 1;
        });
        return { found: found.length, ahead };
      } finally {
        performance.now = now;
      }
    }),

  /** Causes more error replies than the receive buffer holds, then dumps on the same socket. */
  overrun: async () =>
    withSocket(NETLINK_ROUTE, { receiveBuffer: 1 }, async (socket) => {
      const batch = Array.from({ length: 200 }, unknownLink);
      const failure = await socket.batch(batch).catch(code);
      return { failure, found: (await socket.dump(addresses, one)).length };
    }),

  /** Causes an overrun that the socket ignores. */
  ignoredOverrun: async () =>
    withSocket(NETLINK_ROUTE, { receiveBuffer: 1, ignoreOverruns: true, timeout: 50 }, (socket) =>
      socket.batch(Array.from({ length: 200 }, unknownLink)).catch(code),
    ),

  /** Closes a socket that waits for a lost reply. */
  async closeWhileWaiting(): Promise<unknown> {
    const socket = new NetlinkSocket(NETLINK_ROUTE, { receiveBuffer: 1, ignoreOverruns: true });
    const batch = socket.batch(Array.from({ length: 200 }, unknownLink)).catch(code);
    for (let turn = 0; turn < 100; turn++) await new Promise(setImmediate);
    await socket.close();
    return batch;
  },

  /** Closes a socket during three dumps: one running, two queued. */
  async closeWhileDumping(): Promise<unknown[]> {
    const socket = new NetlinkSocket(NETLINK_NETFILTER);
    const dumps = [0, 1, 2].map(() => socket.dump(flows, one).catch(code));
    await new Promise(setImmediate);
    await socket.close();
    return Promise.all([...dumps, socket.dump(flows, one).catch(code)]);
  },
};
