/** Runs inside a network namespace of a test and calls netlink/ there, as it is told over IPC. */
import { execFileSync } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import {
  type ConntrackEntry,
  type ConntrackQuery,
  deleteConntrack,
  dumpConntrack,
} from '../../netlink/conntrack/conntrack.ts';
import { NETLINK_ROUTE } from '../../netlink/core/descriptor.ts';
import { NetlinkSocket } from '../../netlink/core/socket.ts';
import type { NftNotification } from '../../netlink/nftables/tables.ts';
import { type AddressWatch, watchAddresses } from '../../netlink/route/address-watch.ts';
import {
  changeAddresses,
  deleteLink,
  findLink,
  listBoundAddresses,
} from '../../netlink/route/links.ts';
import { listAddresses, type NodeAddress } from '../../netlink/route/rtnetlink.ts';
import { nftMode } from '../nftables/inside.ts';
import { churn } from '../policy/churn.ts';
import { policy } from '../policy/policy-functions.ts';
import { insertFlows } from './flows.ts';
import { ipsetCalls } from './ipset-calls.ts';
import { nft } from './nftables/nft-elements.ts';
import { scenarios } from './scenarios.ts';

export type NetnsEvent =
  | {
      readonly notice: 'addresses';
      readonly at: number;
      readonly addresses: readonly NodeAddress[];
    }
  | { readonly notice: 'nft'; readonly change: NftNotification }
  | { readonly notice: 'watch error'; readonly code: string }
  | { readonly notice: 'messages'; readonly count: number }
  | { readonly notice: 'overrun'; readonly code: string };

export interface Reply {
  readonly call: number;
  readonly result?: unknown;
  readonly error?: { readonly name: string; readonly message: string; readonly code: unknown };
}

export interface Dumped {
  readonly entries: ConntrackEntry[];
  /** How often the event loop got round meanwhile. */
  readonly turns: number;
}

let watch: AddressWatch | undefined;
let subscription: NetlinkSocket | undefined;
let hoardedDescriptors: number[] = [];

const methods = {
  listAddresses,

  async watch(failures = 0, ignoredLink?: string): Promise<void> {
    let failuresLeft = failures;
    watch = await watchAddresses(
      (addresses) => {
        if (failuresLeft-- > 0) throw Object.assign(new Error('listener'), { code: 'LISTENER' });
        sendToParent({ notice: 'addresses', at: Date.now(), addresses });
      },
      {
        ...(ignoredLink === undefined ? {} : { ignoredLink }),
        onError: (error) => sendToParent({ notice: 'watch error', code: codeOf(error) }),
      },
    );
  },

  async closeWatch(): Promise<void> {
    await watch?.close();
  },

  /** Listens with a queue of a few messages; RTNLGRP_IPV4_IFADDR is 5. */
  async subscribe(): Promise<void> {
    subscription = new NetlinkSocket(NETLINK_ROUTE, { receiveBuffer: 4096 });
    subscription.subscribe(
      [5],
      (messages) => sendToParent({ notice: 'messages', count: messages.length }),
      (error) => sendToParent({ notice: 'overrun', code: codeOf(error) }),
    );
  },

  async unsubscribe(): Promise<void> {
    await subscription?.close();
  },

  /** Runs a command and holds the event loop until it has ended. */
  async hold(input: string, command: string, ...args: string[]): Promise<void> {
    execFileSync(command, args, { input });
  },

  /** Takes all file descriptors, so that no socket can be opened. */
  async hoardDescriptors(): Promise<number> {
    try {
      for (;;) hoardedDescriptors.push(openSync('/dev/null', 'r'));
    } catch {
      return hoardedDescriptors.length;
    }
  },

  async freeDescriptors(): Promise<void> {
    for (const fd of hoardedDescriptors) closeSync(fd);
    hoardedDescriptors = [];
  },

  insertFlows,

  async dump(query: ConntrackQuery, keepSourcePort?: number): Promise<Dumped> {
    let turns = 0;
    let turning = true;
    const turn = () => {
      turns++;
      if (turning) setImmediate(turn);
    };
    setImmediate(turn);
    try {
      const entries = await dumpConntrack(
        keepSourcePort === undefined
          ? query
          : { ...query, keep: (entry) => entry.origSrcPort === keepSourcePort },
      );
      return { entries, turns };
    } finally {
      turning = false;
    }
  },

  deleteConntrack: async (entries: readonly ConntrackEntry[]) => deleteConntrack(entries),

  async dumpThrowing(query: ConntrackQuery): Promise<void> {
    const keep = () => {
      throw Object.assign(new Error('keep'), { code: 'KEEP' });
    };
    await dumpConntrack({ ...query, keep });
  },

  findLink,
  deleteLink,
  listBoundAddresses,

  async changeAddresses(...args: Parameters<typeof changeAddresses>) {
    const refused = await changeAddresses(...args);
    return refused.map(({ op, address, error }) => `${op} ${address}: ${error.code}`);
  },

  ...ipsetCalls,
  ...nft,
  ...nftMode,
  ...policy,
  ...churn,
  ...scenarios,
};

export type Methods = typeof methods;

function sendToParent(message: NetnsEvent | Reply): void {
  process.send?.(message);
}

function codeOf(error: unknown): string {
  return String(error instanceof Error && 'code' in error ? error.code : error);
}

async function answer(call: number, method: keyof Methods, args: unknown[]): Promise<void> {
  try {
    const work = methods[method] as (...values: unknown[]) => Promise<unknown>;
    sendToParent({ call, result: await work(...args) });
  } catch (error) {
    if (!(error instanceof Error)) throw error;
    const code = 'code' in error ? error.code : undefined;
    sendToParent({ call, error: { name: error.name, message: error.message, code } });
  }
}

process.on(
  'message',
  ({ call, method, args }: { call: number; method: keyof Methods; args: [] }) => {
    void answer(call, method, args);
  },
);
