/** What is done with network policy inside a namespace of a test. */
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import { ENOENT, NetlinkError } from '../../netlink/core/error.ts';
import { NfTables, type NftOperation, NftRefusedError } from '../../netlink/nftables/tables.ts';
import { nftCommand } from '../../nft/command.ts';
import { elementKeyText } from '../../nft/element.ts';
import { NftMonitor } from '../../nft/monitor.ts';
import type { RuleTable } from '../../nft/table.ts';
import type {
  FqdnContent,
  FqdnElement,
  FqdnEntry,
  PolicyChange,
  PolicyElement,
  PolicySetChain,
} from '../../policy/compile/change.ts';
import { POLICY_TABLE, POLICY_TABLES } from '../../policy/compile/policy-table.ts';
import { type DeniedPackets, PolicyBackend } from '../../policy/enforce/backend.ts';
import { Enforcer } from '../../policy/enforce/enforcer.ts';
import { PolicyKernel } from '../../policy/enforce/kernel.ts';
import { PolicyRefusedError } from '../../policy/enforce/policy-refused-error.ts';
import { openPolicyTables, type PolicyTables } from '../../policy/enforce/rebuild.ts';
import { systemTimers } from '../../sync/timers.ts';
import { deleteTables } from '../../takeover/nft-tables.ts';
import { dumpRules } from '../nftables/rule-dump.ts';

/** As PolicyState, to be sent to another process. */
export interface TableState {
  readonly chains: readonly PolicySetChain[];
  readonly elements: readonly PolicyElement[];
}

/** What a PolicyRefusedError has: errors do not pass from process to process whole. */
export interface RefusedPolicy {
  readonly message: string;
  readonly set: string | undefined;
  readonly element: PolicyRefusedError['element'];
  readonly profile: number | undefined;
  readonly rule: string | undefined;
}

interface Agent {
  readonly tables: PolicyTables;
  readonly backend: PolicyBackend;
  /** Operations that it may make yet. */
  readonly left: { operations: number };
  readonly log: string[];
}

export interface AgentOptions {
  readonly family: IpFamily;
  readonly logGroup?: number;
}

const NOTHING: FqdnContent = { elements: [], answers: [] };
const agents = new Map<string, Agent>();
let kernel: PolicyKernel | undefined;
let enforcer: Enforcer | undefined;
let enforcerLog: string[] = [];
let wanted = new Map<IpFamily, TableState>();
let changes: PolicyChange[] = [];
let learnt: FqdnContent = NOTHING;
let broken = false;
let loaded = Promise.withResolvers<void>();
let monitor = new NftMonitor(systemTimers);

function agent(name: string): Agent {
  const found = agents.get(name);
  if (found === undefined) throw new Error(`no agent ${name}`);
  return found;
}

/** Counts operations down, and ends with an error when none is left. */
function breaking<Args extends unknown[], T>(
  left: Agent['left'],
  operation: (...args: Args) => Promise<T>,
): (...args: Args) => Promise<T> {
  return async (...args) => {
    if (left.operations === 0) throw new Error('broken off');
    left.operations -= 1;
    return await operation(...args);
  };
}

/** One line for each transaction, such as `add peers 1, fill egress-7`. */
function logging(tables: PolicyTables, log: string[], left: Agent['left']): PolicyTables {
  for (const [name, each] of Object.entries(tables) as [string, RuleTable][]) {
    const transact = breaking(left, each.transact.bind(each));
    each.delete = breaking(left, each.delete.bind(each));
    each.transact = async (steps) => {
      const line = steps.map(stepText).filter((text) => text !== '');
      if (line.length > 0) log.push(`${name === 'main' ? '' : `${name}: `}${line.join(', ')}`);
      await transact(steps);
    };
  }
  return tables;
}

function stepText(step: NftOperation): string {
  switch (step.action) {
    case 'fill':
      return `fill ${step.chain.name}`;
    case 'remove':
      return step.chains.length === 0 ? '' : `remove ${step.chains.join(' ')}`;
    case 'delete-table':
      return `delete-table ${step.table}`;
    default:
      return step.elements.length === 0 ? '' : `${step.action} ${step.set} ${step.elements.length}`;
  }
}

async function refusalOf(work: Promise<unknown>): Promise<RefusedPolicy | undefined> {
  try {
    await work;
    return undefined;
  } catch (error) {
    if (!(error instanceof PolicyRefusedError)) throw error;
    const { message, set, element, profile, rule } = error;
    return { message, set, element, profile: profile?.profile, rule: rule?.comment };
  }
}

export const policy = {
  async policyStart(name: string, { family, logGroup }: AgentOptions): Promise<void> {
    const log: string[] = [];
    const left = { operations: Infinity };
    const tables = logging(openPolicyTables(family), log, left);
    const nft = nftCommand();
    const backend = new PolicyBackend(
      tables,
      { ...nft, run: breaking(left, nft.run) },
      { family, logGroup, onWarning: (message) => log.push(`warning: ${message}`) },
    );
    agents.set(name, { tables, backend, log, left });
  },

  async policyStop(name: string): Promise<void> {
    const { main, guard } = agent(name).tables;
    await Promise.all([main.close(), guard.close()]);
    agents.delete(name);
  },

  /**
   * After so many operations the agent does nothing more, as if it had been killed. Operations are scripts
   * of nft, transactions, and the deletion of a table.
   */
  async policyBreakOff(name: string, operations: number): Promise<void> {
    agent(name).left.operations = operations;
  },

  /** From now on the kernel seems to have no nflog. */
  async policyWithoutLog(name: string): Promise<void> {
    for (const tables of Object.values(agent(name).tables) as RuleTable[]) {
      const transact = tables.transact.bind(tables);
      tables.transact = async (steps) => {
        const known = steps.map((step): NftOperation => {
          if (step.action !== 'fill') return step;
          return { ...step, chain: { ...step.chain, rules: [...step.chain.rules] } };
        });
        for (const step of known) {
          if (step.action !== 'fill') continue;
          const rules = [...step.chain.rules];
          const rule = rules.findIndex(({ expressions }) => expressions.includes('log\0'));
          const refused = { chain: step.chain.name, rule };
          if (rule >= 0) throw new NftRefusedError(new NetlinkError('rule', ENOENT), refused);
        }
        await transact(known);
      };
    }
  },

  policyAll: (name: string, state: TableState, learned: FqdnContent = NOTHING) =>
    refusalOf(agent(name).backend.replaceAll(state, learned)),

  policyApply: (name: string, change: PolicyChange) => refusalOf(agent(name).backend.apply(change)),

  policyLearn: (
    name: string,
    elements: readonly FqdnElement[],
    answers: readonly FqdnEntry[] = [],
  ): Promise<void> => agent(name).backend.learn(elements, answers),

  /** Many calls at once; one transaction each, unless they are put together. */
  async policyLearnAtOnce(name: string, elements: readonly FqdnElement[]): Promise<void> {
    await Promise.all(elements.map((each) => agent(name).backend.learn([each], [])));
  },

  /** Learns before and after everything is written, without waiting in between. */
  async policyLearnAround(
    name: string,
    state: TableState,
    before: FqdnElement,
    after: FqdnElement,
  ): Promise<void> {
    const { backend } = agent(name);
    const done = [
      backend.learn([before], []),
      backend.replaceAll(state, { elements: [before], answers: [] }),
      backend.learn([after], []),
    ];
    await Promise.all(done);
    // Nobody waits for what is learned meanwhile.
    await backend.fqdnEntries();
  },

  /** What is told when somebody asks while everything is written. */
  async policyDeniedMeanwhile(name: string, state: TableState): Promise<readonly DeniedPackets[]> {
    const { backend } = agent(name);
    const written = backend.replaceAll(state, NOTHING);
    const denied = await backend.deniedPackets();
    await written;
    return denied;
  },

  policyForget: (
    name: string,
    elements: readonly FqdnElement[],
    answers: readonly FqdnEntry[] = [],
  ): Promise<void> => agent(name).backend.forget(elements, answers),

  /** Learns, forgets and learns again, without waiting in between. */
  async policyRelearn(name: string, elements: readonly FqdnElement[]): Promise<void> {
    const { backend } = agent(name);
    await Promise.all([
      backend.learn(
        elements.map((each) => ({ ...each, timeoutMs: 2 * each.timeoutMs })),
        [],
      ),
      backend.forget(elements, []),
      backend.learn(elements, []),
    ]);
  },

  policyAnswers: (name: string): Promise<FqdnEntry[]> => agent(name).backend.fqdnEntries(),
  policyDenied: (name: string): Promise<readonly DeniedPackets[]> =>
    agent(name).backend.deniedPackets(),

  policySizes: async (name: string): Promise<Record<string, number>> =>
    Object.fromEntries(agent(name).backend.setSizes()),

  /** Transactions since the last call. */
  policyLog: async (name: string): Promise<string[]> => agent(name).log.splice(0),

  policyRemove: async (): Promise<number> =>
    (await deleteTables(IP_FAMILIES, POLICY_TABLES)).length,

  /** All that the table holds but counters and times: elements by set, rules by chain; sorted, as text. */
  async policyState(family: IpFamily): Promise<Record<string, readonly string[]>> {
    const tables = new NfTables(family, POLICY_TABLE);
    try {
      const state: Record<string, string[]> = {};
      for (const { name } of (await tables.sets()) ?? []) {
        const elements: string[] = [];
        await tables.visitElements(name, (element) => {
          const { data } = element;
          const leads = data === undefined || Buffer.isBuffer(data) ? '' : JSON.stringify(data);
          elements.push(
            `${Buffer.from(elementKeyText(element), 'latin1').toString('hex')} ${leads}`,
          );
        });
        state[`set ${name}`] = elements.sort();
      }
      for (const name of (await tables.chains()) ?? []) state[`chain ${name}`] = [];
      for (const { chain, expressions } of await dumpRules(family, POLICY_TABLE)) {
        state[`chain ${chain}`]?.push(expressions.join('; '));
      }
      return Object.fromEntries(Object.entries(state).sort(([a], [b]) => (a < b ? -1 : 1)));
    } finally {
      await tables.close();
    }
  },

  /** An enforcer that wants this. @param waits with listening to others, for `enforcerLoaded`. */
  async enforcerStart(
    states: Readonly<Partial<Record<IpFamily, TableState>>>,
    waits = false,
  ): Promise<void> {
    loaded = Promise.withResolvers();
    monitor = new NftMonitor(systemTimers);
    if (waits) monitor.waitForLoad(loaded.promise);
    wanted = new Map(Object.entries(states) as [IpFamily, TableState][]);
    enforcerLog = [];
    learnt = NOTHING;
    kernel = new PolicyKernel({
      families: [...wanted.keys()],
      nft: nftCommand(),
      onWarning: (family, message) => enforcerLog.push(`${family} warned ${message}`),
    });
    enforcer = new Enforcer({
      kernel,
      source: {
        takeChanges: () => {
          if (broken) throw new Error('broken');
          return changes.splice(0);
        },
        snapshot: (family) => wanted.get(family) ?? { chains: [], elements: [] },
        fqdnContent: () => learnt,
      },
      timers: systemTimers,
      monitor,
      observer: {
        started: () => {},
        unchanged: () => {},
        compiled: () => {},
        applied: (family, isFull) => enforcerLog.push(`${family} ${isFull ? 'all' : 'change'}`),
        failed: (family, error) => enforcerLog.push(`${family} failed ${String(error)}`),
        driftDetected: (family, what) => enforcerLog.push(`${family} disturbed ${what}`),
        watchFailed: (error) => enforcerLog.push(`deaf ${String(error)}`),
      },
    });
    enforcer.start();
  },

  /** Has it want something else. */
  async enforcerWant(
    states: Readonly<Partial<Record<IpFamily, TableState>>>,
    how: readonly PolicyChange[],
    learned: FqdnContent = NOTHING,
  ): Promise<void> {
    for (const [family, state] of Object.entries(states)) wanted.set(family as IpFamily, state);
    changes.push(...how);
    learnt = learned;
    enforcer?.changed();
  },

  /** Others have loaded theirs. */
  enforcerLoaded: async (): Promise<void> => loaded.resolve(),

  /** Whether it cannot find out what it wants. */
  async enforcerBreak(value: boolean): Promise<void> {
    broken = value;
    enforcer?.changed();
  },

  enforcerLearn: async (elements: readonly FqdnElement[], answers: readonly FqdnEntry[]) =>
    kernel?.learn(elements, answers),

  enforcerDenied: async () => Object.fromEntries((await kernel?.deniedPackets()) ?? []),
  enforcerLog: async (): Promise<readonly string[]> => enforcerLog,

  async enforcerStop(): Promise<void> {
    await monitor.close();
    await enforcer?.stop();
    await kernel?.close();
    enforcer = undefined;
    changes = [];
  },
};
