/**
 * The agent of the lab tests: observes DNS and enforces one policy set for all pods of the node.
 * Pods may connect to resolvers, and to addresses of the domain names of lists 1 and 2.
 */
import { IP_FAMILIES } from '../../../api/objects.ts';
import { addressFormatter } from '../../../netlink/core/address.ts';
import { queueState } from '../../../netlink/nfqueue/queue.ts';
import { NfTables } from '../../../netlink/nftables/tables.ts';
import { NftMonitor } from '../../../nft/monitor.ts';
import type { FqdnEntry, PolicyElement } from '../../../policy/compile/change.ts';
import { DNS_QUEUE } from '../../../policy/compile/dns-chains.ts';
import { POLICY_TABLE } from '../../../policy/compile/policy-table.ts';
import { Enforcer } from '../../../policy/enforce/enforcer.ts';
import { PolicyKernel } from '../../../policy/enforce/kernel.ts';
import type { FqdnCacheOptions } from '../../../policy/fqdn/cache.ts';
import { DnsSnooper, type DnsSnooperStats } from '../../../policy/fqdn/dns-snooper.ts';
import { systemTimers } from '../../../sync/timers.ts';
import { serveCalls } from '../../child.ts';
import { chainRule, DENY_REST, peers, policySetChain } from '../fixtures.ts';

export interface AgentOptions {
  /** Addresses of the pods. */
  readonly pods: readonly string[];
  /** Addresses of pods that no policy selects. */
  readonly unselected: readonly string[];
  /** Networks that are allowed in addition to domain names. */
  readonly allowed: readonly (readonly [first: string, last: string])[];
  readonly resolvers: readonly string[];
  readonly learner: FqdnCacheOptions;
}

type Names = readonly (readonly [pattern: string, lists: readonly number[]])[];

const RESOLVERS = 100;
const LISTS = [1, 2];

const monitor = new NftMonitor(systemTimers);
let kernel: PolicyKernel;
let enforcer: Enforcer;
let learning: DnsSnooper;
let applied = 0;
let failing = false;
let sticking = false;
let isQueueRefused = false;
const log: string[] = [];
const say = (what: string) => (error: unknown) => {
  log.push(`${what}: ${String(error)}`);
};

const functions = {
  async start(options: AgentOptions): Promise<void> {
    const rules = [
      chainRule({ peers: peers(RESOLVERS, 'networks') }),
      ...LISTS.map((list) => chainRule({ peers: peers(list, 'fqdn-peers') })),
      DENY_REST,
    ];
    const elements = (isOf: (address: string) => boolean): PolicyElement[] => [
      ...options.pods
        .filter(isOf)
        .map((address) => ({ set: 'egress-pods', address, policySetId: 1 }) as const),
      ...options.unselected
        .filter(isOf)
        .map((address) => ({ set: 'dns-bypass', address }) as const),
      ...options.allowed
        .filter(([first]) => isOf(first))
        .map(([first, last]) => ({ set: 'networks', list: RESOLVERS, first, last }) as const),
    ];
    kernel = new PolicyKernel({
      families: IP_FAMILIES,
      onWarning: (family, message) => say(`warned ${family}`)(message),
    });
    enforcer = new Enforcer({
      kernel,
      source: {
        takeChanges: () => [],
        snapshot: (family) => ({
          chains: [policySetChain('egress', 1, rules)],
          elements: elements((address) => address.includes(':') === (family === 'IPv6')),
        }),
        fqdnContent: (family) => learning.fqdnContent(family),
      },
      observer: {
        started: () => {},
        unchanged: () => {},
        compiled: () => {},
        applied: () => {
          applied += 1;
        },
        failed: (family, error) => say(`failed ${family}`)(error),
        driftDetected: say('drift'),
        missedChanges: () => {},
        watchFailed: say('watch failed'),
      },
      timers: systemTimers,
      monitor,
    });
    learning = new DnsSnooper({
      store: {
        addFqdnAddresses: async (...args) => {
          if (failing) throw new Error('simulated failure');
          if (sticking) await new Promise(() => undefined);
          await kernel.addFqdnAddresses(...args);
        },
        removeFqdnAddresses: (...args) => kernel.removeFqdnAddresses(...args),
        queueDns: async (resolvers) => {
          if (isQueueRefused) throw new Error('simulated failure');
          await kernel.queueDns(resolvers);
        },
        forgedAnswers: () => kernel.forgedAnswers(),
      },
      observer: {
        addFailed: say('not stored'),
        removeFailed: say('not removed'),
        queueFailed: say('queue'),
        answersForged: (count) => say('forged')(count),
        threadFailed: say('thread'),
        packetFailed: say('packet'),
      },
      timers: systemTimers,
      cache: options.learner,
    });
    learning.prestart();
    learning.restore(await kernel.fqdnEntries());
    learning.setResolvers(new Set(options.resolvers));
    enforcer.start();
  },

  setNames: (names: Names): Promise<void> =>
    learning.setPatterns(new Map(names.map(([pattern, lists]) => [pattern, new Set(lists)]))),
  setResolvers: (resolvers: readonly string[]): void => learning.setResolvers(new Set(resolvers)),
  forgedAnswers: (): Promise<number> => kernel.forgedAnswers(),
  numbers: (): DnsSnooperStats => learning.stats(),
  applied: (): number => applied,
  log: (): readonly string[] => log.splice(0),
  fqdnEntries: (): Promise<FqdnEntry[]> => kernel.fqdnEntries(),
  queue: () => queueState(DNS_QUEUE),

  /** Makes writes of addresses to the kernel fail. */
  fail(value: boolean): void {
    failing = value;
  },

  /** Makes the kernel refuse to queue DNS packets. */
  refuseQueue(value: boolean): void {
    isQueueRefused = value;
  },

  /** Makes writes of addresses to the kernel hang. */
  stick(value: boolean): void {
    sticking = value;
  },

  /** Number of denied packets. */
  async denied(): Promise<number> {
    const all = [...(await kernel.deniedPackets()).values()].flat();
    return all.reduce((sum, { packets }) => sum + packets, 0);
  },

  /** Number of addresses of a name in the FQDN cache. */
  async cachedAddresses(name: string): Promise<number> {
    return (await kernel.fqdnEntries()).filter((each) => each.name === name).length;
  },

  /** Addresses of a peer list in the set `fqdn-peers`. */
  async elements(list: number): Promise<readonly string[]> {
    const addresses: string[] = [];
    for (const family of IP_FAMILIES) {
      const tables = new NfTables(family, POLICY_TABLE);
      const format = addressFormatter();
      await tables.visitElements('fqdn-peers', ({ key }) => {
        if (key.readUInt32BE(0) === list) addresses.push(format(key, 4, key.length));
      });
      await tables.close();
    }
    return addresses;
  },

  /** Number of elements of an nft set in both IP families. */
  size(set: string): number {
    return IP_FAMILIES.reduce((sum, family) => sum + (kernel.setSizes(family).get(set) ?? 0), 0);
  },

  /** Blocks the main thread repeatedly for some milliseconds. */
  keepBusy(milliseconds: number, pause: number): void {
    setTimeout(() => {
      const end = performance.now() + milliseconds;
      while (performance.now() < end) {
        // Like parsing a long list.
      }
      functions.keepBusy(milliseconds, pause);
    }, pause);
  },

  /** Blocks the main thread once for some milliseconds. */
  hang(milliseconds: number): void {
    setTimeout(() => {
      const end = performance.now() + milliseconds;
      while (performance.now() < end) {
        // Block.
      }
    }, 0);
  },

  async close(): Promise<void> {
    await learning.close();
    await monitor.close();
    await enforcer.stop();
    await kernel.close();
  },
};

export type AgentFunctions = typeof functions;

serveCalls(functions);
