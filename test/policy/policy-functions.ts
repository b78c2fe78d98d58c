/** Functions for network policy that tests call inside a network namespace. */
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import { ENOENT, NetlinkError } from '../../netlink/core/error.ts';
import { NfTables, type NftOperation, NftRefusedError } from '../../netlink/nftables/tables.ts';
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
import { openLegacyTables } from './legacy-names.ts';

/** A serializable `PolicyState`. */
export interface TableState {
  readonly chains: readonly PolicySetChain[];
  readonly elements: readonly PolicyElement[];
}

/** A serializable `PolicyRefusedError`. */
export interface RefusedPolicy {
  readonly message: string;
  readonly set: string | undefined;
  readonly element: PolicyRefusedError['element'];
  readonly policySetId: number | undefined;
  readonly rule: string | undefined;
}

interface Agent {
  readonly tables: PolicyTables;
  readonly backend: PolicyBackend;
  /** Number of operations until the agent fails. */
  readonly left: { operations: number };
  readonly log: string[];
}

export interface AgentOptions {
  readonly family: IpFamily;
  readonly logGroup?: number;
  /** Writes tables with the names of an earlier release. */
  readonly hasOldNames?: boolean;
}

const NOTHING: FqdnContent = { elements: [], entries: [] };
const agents = new Map<string, Agent>();
let kernel: PolicyKernel | undefined;
let enforcer: Enforcer | undefined;
let enforcerLog: string[] = [];
let desired = new Map<IpFamily, TableState>();
let changes: PolicyChange[] = [];
let fqdnContent: FqdnContent = NOTHING;
let sourceFails = false;
let loaded = Promise.withResolvers<void>();
let monitor = new NftMonitor(systemTimers);

function agent(name: string): Agent {
  const found = agents.get(name);
  if (found === undefined) throw new Error(`no agent ${name}`);
  return found;
}

/** Makes an operation fail when no operations are left. */
function limited<Args extends unknown[], T>(
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
    const transact = limited(left, each.transact.bind(each));
    each.delete = limited(left, each.delete.bind(each));
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
    case 'declare':
      return step.replacesTable === true ? 'replace' : 'declare';
    case 'fill':
      return `fill ${step.chain.name}`;
    case 'remove':
      return step.chains.length === 0 ? '' : `remove ${step.chains.join(' ')}`;
    case 'delete-table':
      return `delete-table ${step.table}`;
    case 'attach':
    case 'detach':
    case 'delete-flowtable':
      return `${step.action} ${step.flowtable}`;
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
    const { message, set, element, chain, rule } = error;
    return { message, set, element, policySetId: chain?.policySetId, rule: rule?.comment };
  }
}

export const policy = {
  async policyStart(
    name: string,
    { family, logGroup, hasOldNames = false }: AgentOptions,
  ): Promise<void> {
    const log: string[] = [];
    const left = { operations: Infinity };
    const open = hasOldNames ? openLegacyTables : openPolicyTables;
    const tables = logging(open(family), log, left);
    const backend = new PolicyBackend(tables, {
      family,
      logGroup,
      onWarning: (message, { logGroup: group, err }) =>
        log.push(`warning: ${message} (${group}): ${(err as Error).message}`),
    });
    agents.set(name, { tables, backend, log, left });
  },

  async policyStop(name: string): Promise<void> {
    await Promise.all(Object.values(agent(name).tables).map((table) => table.close()));
    agents.delete(name);
  },

  /**
   * Makes all later operations fail, as if the agent had been killed. Operations are transactions and the deletion of a
   * table.
   */
  async policyFailAfter(name: string, operations: number): Promise<void> {
    agent(name).left.operations = operations;
  },

  /** Simulates a kernel without an expression: nflog, or targets of iptables. */
  async policyWithout(name: string, expression: 'log' | 'target'): Promise<void> {
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
          const rule = rules.findIndex(({ expressions }) =>
            expressions.includes(`${expression}\0`),
          );
          const refused = { chain: step.chain.name, rule };
          if (rule >= 0) throw new NftRefusedError(new NetlinkError('rule', ENOENT), refused);
        }
        await transact(known);
      };
    }
  },

  policyReplaceAll: (name: string, state: TableState, content: FqdnContent = NOTHING) =>
    refusalOf(agent(name).backend.replaceAll(state, content)),

  /** @returns an error message, or undefined. */
  policyQueueDns: (name: string, resolvers: readonly string[]) =>
    agent(name)
      .backend.queueDns(resolvers)
      .then(
        () => undefined,
        (error: unknown) => String(error),
      ),

  policyApply: (name: string, change: PolicyChange) => refusalOf(agent(name).backend.apply(change)),

  policyAddFqdn: (
    name: string,
    elements: readonly FqdnElement[],
    entries: readonly FqdnEntry[] = [],
  ): Promise<void> => agent(name).backend.addFqdnAddresses(elements, entries),

  /** Many concurrent calls, which should be batched. */
  async policyAddFqdnEach(name: string, elements: readonly FqdnElement[]): Promise<void> {
    await Promise.all(elements.map((each) => agent(name).backend.addFqdnAddresses([each], [])));
  },

  /** Adds elements before and after a full write, without waiting in between. */
  async policyAddFqdnAroundReplace(
    name: string,
    state: TableState,
    before: FqdnElement,
    after: FqdnElement,
  ): Promise<void> {
    const { backend } = agent(name);
    const done = [
      backend.addFqdnAddresses([before], []),
      backend.replaceAll(state, { elements: [before], entries: [] }),
      backend.addFqdnAddresses([after], []),
    ];
    await Promise.all(done);
    // Additions during a full write return early; this call waits for them.
    await backend.fqdnEntries();
  },

  /** Reads the counters during a full write. */
  async policyDeniedDuringReplace(
    name: string,
    state: TableState,
  ): Promise<readonly DeniedPackets[]> {
    const { backend } = agent(name);
    const written = backend.replaceAll(state, NOTHING);
    const denied = await backend.deniedPackets();
    await written;
    return denied;
  },

  policyRemoveFqdn: (
    name: string,
    elements: readonly FqdnElement[],
    entries: readonly FqdnEntry[] = [],
  ): Promise<void> => agent(name).backend.removeFqdnAddresses(elements, entries),

  /** Adds, removes and adds elements again, without waiting in between. */
  async policyReaddFqdn(name: string, elements: readonly FqdnElement[]): Promise<void> {
    const { backend } = agent(name);
    await Promise.all([
      backend.addFqdnAddresses(
        elements.map((each) => ({ ...each, timeoutMs: 2 * each.timeoutMs })),
        [],
      ),
      backend.removeFqdnAddresses(elements, []),
      backend.addFqdnAddresses(elements, []),
    ]);
  },

  policyFqdnEntries: (name: string): Promise<FqdnEntry[]> => agent(name).backend.fqdnEntries(),
  policyDenied: (name: string): Promise<readonly DeniedPackets[]> =>
    agent(name).backend.deniedPackets(),

  policySizes: async (name: string): Promise<Record<string, number>> =>
    Object.fromEntries(agent(name).backend.setSizes()),

  /** The log of transactions since the last call. */
  policyLog: async (name: string): Promise<string[]> => agent(name).log.splice(0),

  policyDeleteTables: async (): Promise<number> =>
    (await deleteTables(IP_FAMILIES, POLICY_TABLES)).length,

  /** The table as sorted text without counters and timeouts: elements by set, rules by chain. */
  async policyState(family: IpFamily): Promise<Record<string, readonly string[]>> {
    const tables = new NfTables(family, POLICY_TABLE);
    try {
      const state: Record<string, string[]> = {};
      for (const { name } of (await tables.sets()) ?? []) {
        const elements: string[] = [];
        await tables.visitElements(
          name,
          (element) => {
            const { data } = element;
            const jump = data === undefined || Buffer.isBuffer(data) ? '' : JSON.stringify(data);
            elements.push(
              `${Buffer.from(elementKeyText(element), 'latin1').toString('hex')} ${jump}`,
            );
          },
          () => elements.splice(0),
        );
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

  /** Starts an enforcer. @param waits Delays the watch until `enforcerOthersLoaded`. */
  async enforcerStart(
    states: Readonly<Partial<Record<IpFamily, TableState>>>,
    waits = false,
  ): Promise<void> {
    loaded = Promise.withResolvers();
    monitor = new NftMonitor(systemTimers);
    if (waits) monitor.waitForLoad(loaded.promise);
    desired = new Map(Object.entries(states) as [IpFamily, TableState][]);
    enforcerLog = [];
    fqdnContent = NOTHING;
    kernel = new PolicyKernel({
      families: [...desired.keys()],
      onWarning: (family, message) => enforcerLog.push(`${family} warned ${message}`),
    });
    enforcer = new Enforcer({
      kernel,
      source: {
        takeChanges: () => {
          if (sourceFails) throw new Error('broken');
          return changes.splice(0);
        },
        snapshot: (family) => desired.get(family) ?? { chains: [], elements: [] },
        fqdnContent: () => fqdnContent,
      },
      timers: systemTimers,
      monitor,
      observer: {
        started: () => {},
        unchanged: () => {},
        compiled: () => {},
        applied: (family, isFull) => enforcerLog.push(`${family} ${isFull ? 'all' : 'change'}`),
        failed: (family, error) => enforcerLog.push(`${family} failed ${String(error)}`),
        driftDetected: (family, what) => enforcerLog.push(`${family} drift ${what}`),
        missedChanges: () => {},
        watchFailed: (error) => enforcerLog.push(`watch failed ${String(error)}`),
      },
    });
    enforcer.start();
  },

  /** Changes the desired state. */
  async enforcerUpdate(
    states: Readonly<Partial<Record<IpFamily, TableState>>>,
    how: readonly PolicyChange[],
    content: FqdnContent = NOTHING,
  ): Promise<void> {
    for (const [family, state] of Object.entries(states)) desired.set(family as IpFamily, state);
    changes.push(...how);
    fqdnContent = content;
    enforcer?.changed();
  },

  /** Lets the watch start. */
  enforcerOthersLoaded: async (): Promise<void> => loaded.resolve(),

  /** Makes the source of the enforcer fail. */
  async enforcerFailSource(value: boolean): Promise<void> {
    sourceFails = value;
    enforcer?.changed();
  },

  enforcerAddFqdn: async (elements: readonly FqdnElement[], entries: readonly FqdnEntry[]) =>
    kernel?.addFqdnAddresses(elements, entries),

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
