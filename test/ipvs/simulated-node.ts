/** A kernel after the first sync of the ipvs mode. */
import type { IpFamily } from '../../api/objects.ts';
import type { MarkRange } from '../../config/mode-values.ts';
import { restoreInput } from '../../iptables/restore.ts';
import { Ruleset, TABLES } from '../../iptables/ruleset.ts';
import type { IpvsCompileOptions } from '../../ipvs/compile.ts';
import type { EntryItem, IpvsItem } from '../../ipvs/items.ts';
import { MarkAllocator, verdictMarks } from '../../ipvs/marks.ts';
import { IpvsPlan, type IpvsPlanOptions } from '../../ipvs/plan.ts';
import { ipvsStaticRules, type RuleOptions } from '../../ipvs/rules.ts';
import type { Route } from '../../services/route.ts';
import { type Chains, parseChains } from '../iptables/chain-walk.ts';
import { options } from '../iptables/options.ts';
import { SimulatedTable } from '../iptables/restore-simulator.ts';
import { SimulatedSets } from './simulated-sets.ts';
import { ipvsTable, type Kernel } from './tracer.ts';

const MARK_RANGE: MarkRange = { first: 0x1000, last: 0x3fff };

/** Rule options of `portwide run --proxy-mode ipvs --cluster-cidr …`. */
export function ruleOptions(fields: Partial<RuleOptions> = {}): RuleOptions {
  const { family, masqueradeAll, masqueradeBit, localDetector, randomFully } = options(fields);
  const markRange = fields.markRange ?? MARK_RANGE;
  return { family, masqueradeAll, masqueradeBit, localDetector, randomFully, markRange };
}

/** Compile options of the same agent. */
export function compileOptions(fields: Partial<IpvsCompileOptions> = {}): IpvsCompileOptions {
  const marks = new MarkAllocator(MARK_RANGE, [], []);
  return {
    family: 'IPv4',
    scheduler: 'rr',
    nodeAddresses: [],
    nodePortAddresses: fields.nodeAddresses ?? [],
    verdicts: verdictMarks(MARK_RANGE),
    isVipPort: () => false,
    markOf: (owner) => marks.allocate(owner),
    ...fields,
  };
}

const BUILTIN = ['PREROUTING', 'INPUT', 'FORWARD', 'OUTPUT', 'POSTROUTING'];

/** Rules of all tables as `iptables-save` would print them. */
export function rulesOf(
  fields: RuleOptions,
): Readonly<Record<'mangle' | 'nat' | 'filter', string[]>> {
  const ruleset = new Ruleset(
    { ...fields, nodeAddresses: [], resetsTcp: false },
    ipvsStaticRules(fields, false),
  );
  const nothing = { chains: new Map<string, string>(), foreign: new Set<string>() };
  const lines = { mangle: [''], nat: [''], filter: [''] };
  for (const table of TABLES) {
    const kernel = new SimulatedTable(BUILTIN);
    kernel.restore(restoreInput(ruleset.diff(table, nothing)));
    lines[table] = kernel.lines();
  }
  return lines;
}

const parsed = new Map<string, Kernel['chains']>();

/** Parsed chains; cached, because they do not depend on Routes. */
function chainsOf(fields: RuleOptions): Kernel['chains'] {
  const key = JSON.stringify(fields);
  const known = parsed.get(key);
  if (known !== undefined) return known;
  const { mangle, nat, filter } = rulesOf(fields);
  const chains = (lines: readonly string[]): Chains => parseChains(lines);
  const fresh = { mangle: chains(mangle), nat: chains(nat), filter: chains(filter) };
  parsed.set(key, fresh);
  return fresh;
}

/** The plan of the ipvs mode without Routes. */
export function plan(
  fields: Partial<RuleOptions>,
  allPorts: IpvsPlanOptions['allPorts'] = 'fwmark',
): IpvsPlan {
  const options = {
    ...ruleOptions(fields),
    nodePortSelection: ['all'],
    scheduler: 'rr',
    allPorts,
    onWarning: (_details: object, message: string) => {
      throw new Error(message);
    },
  };
  return new IpvsPlan(options, new MarkAllocator(MARK_RANGE, [], []));
}

/** Items that Routes need. */
export function itemsOf(
  routes: Iterable<Route>,
  family: IpFamily,
  addresses: readonly string[],
): IpvsItem[] {
  const full = plan({ family });
  full.setNodeAddresses({ addresses, primary: [] });
  full.update(routes, []);
  return [...full.desired.items()];
}

/** A kernel with rules, sets, services and addresses. */
export function kernelWith(
  items: readonly IpvsItem[],
  nodeAddresses: readonly string[],
  fields: Partial<RuleOptions>,
): Kernel {
  const rules = ruleOptions(fields);
  const entries = items.filter((item): item is EntryItem => item.kind === 'entry');
  const bound = items.flatMap((item) => (item.kind === 'address' ? [item.address] : []));
  return {
    chains: chainsOf(rules),
    sets: new SimulatedSets(rules.family, entries),
    services: ipvsTable(items),
    local: new Set([...nodeAddresses, ...bound]),
  };
}
