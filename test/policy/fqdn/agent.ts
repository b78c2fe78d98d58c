/**
 * The agent of these tests: learns addresses, and enforces one profile for all pods of the node. They may
 * go to resolvers, and to what names of the lists 1 and 2 have.
 */
import { IP_FAMILIES, type IpFamily } from '../../../api/objects.ts';
import { iptablesCommands } from '../../../iptables/commands.ts';
import { addressFormatter } from '../../../netlink/core/address.ts';
import { queueState } from '../../../netlink/nfqueue/queue.ts';
import { NfTables } from '../../../netlink/nftables/tables.ts';
import { nftCommand } from '../../../nft/command.ts';
import { NftMonitor } from '../../../nft/monitor.ts';
import type { FqdnEntry, PolicyElement } from '../../../policy/compile/change.ts';
import { POLICY_TABLE } from '../../../policy/compile/policy-table.ts';
import { Enforcer } from '../../../policy/enforce/enforcer.ts';
import { PolicyKernel } from '../../../policy/enforce/kernel.ts';
import type { FqdnCacheOptions } from '../../../policy/fqdn/cache.ts';
import { DNS_QUEUE, DnsSnooper, type DnsSnooperStats } from '../../../policy/fqdn/dns-snooper.ts';
import { systemTimers } from '../../../sync/timers.ts';
import { serveCalls } from '../../child.ts';
import { chainRule, DENY_REST, peers, policySetChain } from '../fixtures.ts';

export interface AgentOptions {
  /** Addresses. */
  readonly pods: readonly string[];
  /** Networks that are allowed beside names. */
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
let withoutRules: IpFamily | undefined;
const log: string[] = [];
const say = (what: string) => (error: unknown) => {
  log.push(`${what}: ${String(error)}`);
};

const functions = {
  async start(options: AgentOptions): Promise<void> {
    const rules = [
      chainRule({ peers: peers(RESOLVERS, 'networks') }),
      ...LISTS.map((list) => chainRule({ peers: peers(list, 'learned') })),
      DENY_REST,
    ];
    const elements = (isOf: (address: string) => boolean): PolicyElement[] => [
      ...options.pods
        .filter(isOf)
        .map((address) => ({ set: 'egress-pods', address, profile: 1 }) as const),
      ...options.allowed
        .filter(([first]) => isOf(first))
        .map(([first, last]) => ({ set: 'networks', list: RESOLVERS, first, last }) as const),
    ];
    kernel = new PolicyKernel({
      families: IP_FAMILIES,
      nft: nftCommand(),
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
        driftDetected: say('disturbed'),
        watchFailed: say('deaf'),
      },
      timers: systemTimers,
      monitor,
    });
    learning = new DnsSnooper({
      store: {
        learn: async (...args) => {
          if (failing) throw new Error('told to');
          if (sticking) await new Promise(() => undefined);
          await kernel.learn(...args);
        },
        forget: (...args) => kernel.forget(...args),
      },
      tables: IP_FAMILIES.map((family) => {
        const commands = iptablesCommands(family, 'nft');
        const saveTable: typeof commands.saveTable = async (table) => {
          if (withoutRules === family) throw new Error('told to');
          return await commands.saveTable(table);
        };
        return { ...commands, saveTable };
      }),
      observer: {
        addFailed: say('not learned'),
        removeFailed: say('not forgotten'),
        rulesFailed: (family, error) => say(`rules ${family}`)(error),
        threadFailed: say('thread'),
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
  mend: (): void => learning.resyncRules(),
  numbers: (): DnsSnooperStats => learning.stats(),
  applied: (): number => applied,
  log: (): readonly string[] => log.splice(0),
  answers: (): Promise<FqdnEntry[]> => kernel.fqdnEntries(),
  queue: () => queueState(DNS_QUEUE),

  /** Has the kernel learn nothing. */
  fail(value: boolean): void {
    failing = value;
  },

  /** In this family, nobody can look at the rules that queue packets. */
  failRules(family: IpFamily | undefined): void {
    withoutRules = family;
  },

  /** Has the kernel learn nothing, without an end. */
  stick(value: boolean): void {
    sticking = value;
  },

  /** Packets that were denied. */
  async denied(): Promise<number> {
    const all = [...(await kernel.deniedPackets()).values()].flat();
    return all.reduce((sum, { packets }) => sum + packets, 0);
  },

  /** Addresses that a name is kept with. */
  async kept(name: string): Promise<number> {
    return (await kernel.fqdnEntries()).filter((each) => each.name === name).length;
  },

  /** Addresses that a list has learned. */
  async elements(list: number): Promise<readonly string[]> {
    const addresses: string[] = [];
    for (const family of IP_FAMILIES) {
      const tables = new NfTables(family, POLICY_TABLE);
      const format = addressFormatter();
      await tables.visitElements('learned', ({ key }) => {
        if (key.readUInt32BE(0) === list) addresses.push(format(key, 4, key.length));
      });
      await tables.close();
    }
    return addresses;
  },

  /** Elements of both families. */
  size(set: string): number {
    return IP_FAMILIES.reduce((sum, family) => sum + (kernel.setSizes(family).get(set) ?? 0), 0);
  },

  /** From now on the main thread does nothing else most of the time, for so many milliseconds at once. */
  keepBusy(milliseconds: number, pause: number): void {
    setTimeout(() => {
      const end = performance.now() + milliseconds;
      while (performance.now() < end) {
        // As a long list that is parsed.
      }
      functions.keepBusy(milliseconds, pause);
    }, pause);
  },

  /** Soon, the main thread does nothing else for so many milliseconds. */
  hang(milliseconds: number): void {
    setTimeout(() => {
      const end = performance.now() + milliseconds;
      while (performance.now() < end) {
        // Hanging.
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
