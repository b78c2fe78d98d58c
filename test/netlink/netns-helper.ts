/** A process in the network namespace of a test. It calls netlink/ on request over IPC. */
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
import { iptablesMode } from '../iptables/inside.ts';
import { nftMode } from '../nftables/inside.ts';
import { churn } from '../policy/churn.ts';
import { policy } from '../policy/policy-functions.ts';
import { foreignCalls } from '../preflight/foreign-calls.ts';
import { insertFlows } from './flows.ts';
import { ipsetCalls } from './ipset-calls.ts';
import { fuzzCalls } from './nftables/fuzz-calls.ts';
import { hardCalls } from './nftables/hard-calls.ts';
import { nftCalls } from './nftables/nft-elements.ts';
import { socketScenarios } from './socket-scenarios.ts';
import { subscriptionCalls } from './subscription-calls.ts';

export type NetnsEvent =
  | {
      readonly type: 'addresses';
      readonly at: number;
      readonly addresses: readonly NodeAddress[];
    }
  | { readonly type: 'nft'; readonly change: NftNotification }
  | { readonly type: 'watch error'; readonly code: string }
  | { readonly type: 'messages'; readonly count: number }
  | { readonly type: 'overrun'; readonly code: string };

export interface Reply {
  readonly call: number;
  readonly result?: unknown;
  readonly error?: { readonly name: string; readonly message: string; readonly code: unknown };
}

export interface DumpResult {
  readonly entries: ConntrackEntry[];
  /** Event loop turns during the dump. */
  readonly turns: number;
}

let watch: AddressWatch | undefined;
let subscription: NetlinkSocket | undefined;
let openDescriptors: number[] = [];

const methods = {
  listAddresses,

  async watch(failures = 0, ignoredLink?: string): Promise<void> {
    let failuresLeft = failures;
    watch = await watchAddresses(
      (addresses) => {
        if (failuresLeft-- > 0) throw Object.assign(new Error('callback'), { code: 'CALLBACK' });
        sendToParent({ type: 'addresses', at: Date.now(), addresses });
      },
      {
        ...(ignoredLink === undefined ? {} : { ignoredLink }),
        onError: (error) => sendToParent({ type: 'watch error', code: codeOf(error) }),
      },
    );
  },

  async closeWatch(): Promise<void> {
    await watch?.close();
  },

  /** Subscribes with a receive buffer for only a few messages. RTNLGRP_IPV4_IFADDR is 5. */
  async subscribe(): Promise<void> {
    subscription = new NetlinkSocket(NETLINK_ROUTE, { receiveBuffer: 4096 });
    subscription.subscribe(
      [5],
      (messages) => sendToParent({ type: 'messages', count: messages.length }),
      (error) => sendToParent({ type: 'overrun', code: codeOf(error) }),
    );
  },

  async unsubscribe(): Promise<void> {
    await subscription?.close();
  },

  /** Runs a command synchronously, which blocks the event loop. */
  async hold(input: string, command: string, ...args: string[]): Promise<void> {
    execFileSync(command, args, { input });
  },

  /** Opens file descriptors until the limit, so that no socket can be opened. */
  async exhaustDescriptors(): Promise<number> {
    try {
      for (;;) openDescriptors.push(openSync('/dev/null', 'r'));
    } catch {
      return openDescriptors.length;
    }
  },

  async freeDescriptors(): Promise<void> {
    for (const fd of openDescriptors) closeSync(fd);
    openDescriptors = [];
  },

  insertFlows,

  async dump(query: ConntrackQuery, keepSourcePort?: number): Promise<DumpResult> {
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
  ...nftCalls,
  ...foreignCalls,
  ...hardCalls,
  ...fuzzCalls,
  ...iptablesMode,
  ...nftMode,
  ...policy,
  ...churn,
  ...socketScenarios,
  ...subscriptionCalls,
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
