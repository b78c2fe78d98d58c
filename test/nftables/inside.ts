/** Functions of mode nftables that tests call inside a network namespace. */

import { spawnSync } from 'node:child_process';
import {
  kernelRefusal,
  type NftablesSupport,
  nftablesSupport,
} from '../../agent/nftables-support.ts';
import type { IpFamily } from '../../api/objects.ts';
import type { NftDeclaration } from '../../netlink/nftables/declaration.ts';
import { baseAt } from '../../netlink/nftables/hooks.ts';
import { NfTables, type NftElement } from '../../netlink/nftables/tables.ts';
import { setFields } from '../../nft/declaration.ts';
import { elementDataText, elementKeyText } from '../../nft/element.ts';
import { nftRuleBytes, rulePartsFor } from '../../nft/rule.ts';
import { NftBackend } from '../../nftables/backend.ts';
import { compareChains } from '../../nftables/compare-chains.ts';
import { isOnDemand, MAP_NAMES } from '../../nftables/maps.ts';
import { TABLE } from '../../nftables/static-chains.ts';
import { tableOperations } from '../../nftables/table-operations.ts';
import {
  POLICY_TABLE,
  type PolicyTableOptions,
  policyDeclarations,
  staticChains,
} from '../../policy/compile/policy-table.ts';
import { replaceChainRules } from '../../policy/enforce/rebuild.ts';
import type { Comparison } from '../../proxier/compared-object.ts';
import { ComparisonBuilder } from '../../proxier/comparison.ts';
import type { NodeAddresses } from '../../services/node-port-addresses.ts';
import type { Route } from '../../services/route.ts';
import { allChains, type ModeOptions, modeOptions } from './options.ts';
import { dumpObjects } from './raw-objects.ts';
import { dumpRules } from './rule-dump.ts';

interface Agent {
  readonly tables: NfTables;
  readonly backend: NftBackend;
  readonly warnings: string[];
  readonly drifts: string[];
}

const agents = new Map<string, Agent>();

function agent(name: string): Agent {
  const found = agents.get(name);
  if (found === undefined) throw new Error(`no agent ${name}`);
  return found;
}

async function withTable<T>(family: IpFamily, use: (tables: NfTables) => Promise<T>): Promise<T> {
  const tables = new NfTables(family, TABLE);
  try {
    return await use(tables);
  } finally {
    await tables.close();
  }
}

export const nftMode = {
  /** Starts an agent without Routes. The name identifies it in later calls. */
  async modeStart(name: string, options: ModeOptions): Promise<void> {
    const tables = new NfTables(options.family, TABLE);
    const warnings: string[] = [];
    const backend = new NftBackend(tables, {
      ...modeOptions(options),
      onWarning: (message) => warnings.push(message),
    });
    const drifts: string[] = [];
    backend.onDrift(() => drifts.push('drift'));
    agents.set(name, { tables, backend, warnings, drifts });
  },

  async modeStop(name: string): Promise<void> {
    await agent(name).tables.close();
    agents.delete(name);
  },

  async modeUpdate(
    name: string,
    upserts: readonly Route[],
    removals: readonly string[],
    nodeAddresses?: NodeAddresses,
  ): Promise<void> {
    const { backend } = agent(name);
    if (nodeAddresses !== undefined) backend.setNodeAddresses(nodeAddresses);
    backend.update(upserts, removals);
  },

  async modeApply(name: string, full: boolean): Promise<number> {
    return (await agent(name).backend.apply(full)).written;
  },

  /** Differences from the kernel; for a Service all its objects. */
  async modeCompare(name: string, service?: string): Promise<Comparison> {
    return await agent(name).backend.compare(service);
  },

  /** Compares the rules that `modeRules` has written. */
  async modeCompareRules(options: ModeOptions, withAffinity: boolean): Promise<Comparison> {
    const result = new ComparisonBuilder(undefined);
    const { family } = options;
    const chains = allChains(options, withAffinity);
    await withTable(family, (tables) => compareChains(tables, chains, family, result, true));
    return result.result();
  },

  /** Microseconds that the process has spent in the kernel. */
  async modeKernelTime(): Promise<number> {
    return process.cpuUsage().system;
  },

  async modeWarnings(name: string): Promise<readonly string[]> {
    return agent(name).warnings;
  },

  /** The content of the table: elements by set, rules by chain; sorted, as text. */
  async modeState(family: IpFamily): Promise<Record<string, readonly string[]>> {
    return await withTable(family, async (tables) => {
      const state: Record<string, string[]> = {};
      for (const { name } of (await tables.sets()) ?? []) {
        const elements: string[] = [];
        await tables.visitElements(name, (element) =>
          elements.push(
            `${Buffer.from(elementKeyText(element), 'latin1').toString('hex')} : ${hexData(element)}`,
          ),
        );
        state[`set ${name}`] = elements.sort();
      }
      for (const name of (await tables.chains()) ?? []) state[`chain ${name}`] = [];
      for (const { chain, expressions } of await dumpRules(family, TABLE)) {
        state[`chain ${chain}`]?.push(expressions.join('; '));
      }
      return Object.fromEntries(Object.entries(state).sort(([a], [b]) => (a < b ? -1 : 1)));
    });
  },

  /** Objects of a table, without rules and elements. */
  modeObjects: dumpObjects,

  /** Declares objects of a table over netlink. */
  async modeDeclare(
    family: IpFamily,
    table: string,
    declarations: readonly NftDeclaration[],
  ): Promise<void> {
    const tables = new NfTables(family, table);
    try {
      await tables.transact([{ action: 'declare', declarations }]);
    } finally {
      await tables.close();
    }
  },

  /** Asks the kernel about a table with a set, and a rule that looks up a set. @returns what it refuses. */
  async modeCheck(family: IpFamily, lookedUp: string): Promise<string | undefined> {
    const { source } = setFields(family);
    const parts = rulePartsFor(family);
    const rule = { expressions: nftRuleBytes([parts.inSet([parts.source], lookedUp)]) };
    return await kernelRefusal(family, [
      {
        action: 'declare',
        declarations: [
          { kind: 'set', name: 'known', key: [source] },
          { kind: 'chain', name: 'base', base: baseAt('filter', 'forward', 0) },
        ],
      },
      { action: 'fill', chain: { name: 'base', rules: [rule] } },
    ]);
  },

  /** Whether the node supports mode nftables, by the kernel's answer to the whole table. */
  async modeSupport(): Promise<Pick<NftablesSupport, 'families' | 'hashProblem'>> {
    const { families, hashProblem } = await nftablesSupport();
    return { families, hashProblem };
  },

  /** Writes the static chains of network policy over netlink. */
  async modePolicyRules(options: PolicyTableOptions): Promise<void> {
    const chains = staticChains(options);
    const declarations = policyDeclarations(options, chains, new Map());
    const tables = new NfTables(options.family, POLICY_TABLE);
    try {
      await tables.transact([
        { action: 'declare', declarations },
        ...chains.map(replaceChainRules),
      ]);
    } finally {
      await tables.close();
    }
  },

  /** Rules of a table, one text each. */
  async modeRuleTexts(family: IpFamily, table: string): Promise<readonly string[]> {
    const rules = await dumpRules(family, table);
    return rules.map(({ chain, expressions }) => `${chain}: ${expressions.join('; ')}`);
  },

  /** Runs a script with nft, and ignores its errors. */
  async modeScript(input: string): Promise<void> {
    spawnSync('nft', ['-f', '-'], { input });
  },

  /** Deletes one of all elements, number `pick` modulo their count. */
  async modeDeleteElement(family: IpFamily, pick: number): Promise<void> {
    await withTable(family, async (tables) => {
      const all: { readonly set: string; readonly element: NftElement }[] = [];
      const names = ((await tables.sets()) ?? []).map(({ name }) => name);
      for (const set of [...MAP_NAMES, ...names.filter(isOnDemand)]) {
        await tables.visitElements(set, ({ data: _, ...element }) => all.push({ set, element }));
      }
      const picked = all[pick % Math.max(all.length, 1)];
      if (picked === undefined) return;
      const { set, element } = picked;
      await tables.transact([{ action: 'delete', set, elements: [element] }]);
    });
  },

  /** Writes a table with all kinds of chains, without elements. */
  async modeRules(options: ModeOptions, withAffinity: boolean): Promise<void> {
    const { family } = options;
    await withTable(family, (tables) =>
      tables.transact(tableOperations(allChains(options, withAffinity), [], family)),
    );
  },
};

function hexData(element: Parameters<typeof elementDataText>[0]): string {
  const { data } = element;
  return Buffer.isBuffer(data) ? data.toString('hex') : elementDataText(element);
}
