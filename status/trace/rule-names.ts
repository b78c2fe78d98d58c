/** Says what the rules are for that a traced packet matched. */
import { IP_FAMILIES } from '../../api/objects.ts';
import { addressFamily } from '../../netlink/core/address.ts';
import { MalformedMessage, NetlinkError } from '../../netlink/core/error.ts';
import { type ListedRule, listRules, readRuleText } from '../../netlink/nftables/rule-list.ts';
import type { TraceEvent } from '../../netlink/nftables/trace.ts';
import { TRACE_TABLE } from '../../netlink/nftables/trace-table.ts';
import { FAMILY_NAMES, type NftTable } from '../../netlink/nftables/types.ts';
import { POLICY_TABLES } from '../../policy/compile/policy-table.ts';
import type { Backend } from '../../proxier/backend.ts';
import type { RulePurpose } from '../../proxier/kernel-rule.ts';
import type { RuleOwner } from '../api/trace.ts';

/** What a matched rule does besides its verdict. */
export type RuleAction = 'reject' | 'masquerade' | 'translate';

export interface NamedRule {
  readonly owner: RuleOwner;
  /** Family and name. */
  readonly table: string;
  /** Position in the chain, from 1; null if the rule is gone. */
  readonly rule: number | null;
  readonly purpose: string | null;
  readonly text: string | null;
  readonly action: RuleAction | undefined;
}

const ACTIONS: Readonly<Record<string, RuleAction>> = {
  reject: 'reject',
  REJECT: 'reject',
  masq: 'masquerade',
  MASQUERADE: 'masquerade',
  SNAT: 'masquerade',
  DNAT: 'translate',
  REDIRECT: 'translate',
  redir: 'translate',
  nat: 'translate',
};

const REWRITE_ACTIONS = { destination: 'translate', source: 'masquerade' } as const;

/** Foreign rules whose text one trace reads. */
const MAX_FOREIGN_TEXTS = 5;

/** Names rules for one trace. Reads each chain once, and again if it has changed. */
export class RuleNames {
  readonly #backends: readonly Backend[];
  readonly #chains = new Map<string, readonly ListedRule[]>();
  readonly #texts = new Map<string, string | undefined>();

  constructor(backends: readonly Backend[]) {
    this.#backends = backends;
  }

  async name(event: TraceEvent): Promise<NamedRule> {
    const { family, table: name, chain, handle } = event;
    const table = `${FAMILY_NAMES[family] ?? family} ${name}`;
    const rules = handle === undefined ? [] : await this.#rules({ family, name }, chain, handle);
    const index = rules.findIndex((each) => each.handle === handle);
    const listed = rules[index];
    const purpose = this.#purpose(event, index);
    const owner = ownerOf(event, purpose);
    const isFinal = event.verdict?.kind === 'drop' && owner === 'other';
    const text =
      purpose?.text ??
      (isFinal ? await this.#foreignText({ family, name }, chain, listed) : undefined);
    const action =
      (purpose?.rewrites && REWRITE_ACTIONS[purpose.rewrites]) ??
      listed?.operations.map((each) => ACTIONS[each]).find((each) => each);
    const service = purpose?.service === undefined ? '' : ` (Service ${purpose.service})`;
    return {
      owner,
      table,
      rule: listed === undefined ? null : index + 1,
      purpose: purpose === undefined ? null : purpose.purpose + service,
      text: text ?? listed?.comment ?? null,
      action,
    };
  }

  /** The purpose of the rule, or of the chain that it jumps to from a built-in chain. */
  #purpose({ family, table, chain, verdict }: TraceEvent, index: number): RulePurpose | undefined {
    if (table === TRACE_TABLE) return undefined;
    const ipFamily = IP_FAMILIES.find((each) => addressFamily(each) === family);
    if (ipFamily !== undefined && POLICY_TABLES.includes(table))
      return { purpose: policyPurpose(chain), text: undefined, service: undefined };
    const backend = this.#backends.find((each) => each.family === ipFamily);
    const rule = { table, chain, index: index < 0 ? undefined : index };
    const own = backend?.describeRule?.(rule);
    if (own !== undefined || verdict?.chain === undefined) return own;
    const target = backend?.describeRule?.({ table, chain: verdict.chain, index: undefined });
    return target && { ...target, text: undefined };
  }

  async #rules(table: NftTable, chain: string, handle: number): Promise<readonly ListedRule[]> {
    const key = `${table.family} ${table.name} ${chain}`;
    const known = this.#chains.get(key);
    if (known?.some((each) => each.handle === handle)) return known;
    const rules = await readRules(table, chain);
    this.#chains.set(key, rules);
    return rules;
  }

  async #foreignText(
    table: NftTable,
    chain: string,
    rule: ListedRule | undefined,
  ): Promise<string | undefined> {
    if (rule === undefined) return undefined;
    const key = `${table.family} ${table.name} ${chain} ${rule.handle}`;
    if (!this.#texts.has(key)) {
      if (this.#texts.size === MAX_FOREIGN_TEXTS) return undefined;
      this.#texts.set(key, await textOf(table, rule));
    }
    return this.#texts.get(key);
  }
}

/** The trace goes on without the text of a rule that cannot be read. */
async function textOf(table: NftTable, rule: ListedRule): Promise<string | undefined> {
  try {
    return await readRuleText(table, rule);
  } catch (error) {
    if (error instanceof NetlinkError || error instanceof MalformedMessage) return undefined;
    throw error;
  }
}

async function readRules(table: NftTable, chain: string): Promise<readonly ListedRule[]> {
  try {
    return (await listRules(table, chain)) ?? [];
  } catch (error) {
    // The trace goes on without names.
    if (error instanceof NetlinkError) return [];
    throw error;
  }
}

function ownerOf({ table, family }: TraceEvent, purpose: RulePurpose | undefined): RuleOwner {
  if (table === TRACE_TABLE) return 'trace';
  if (purpose === undefined) return 'other';
  return POLICY_TABLES.includes(table) && family !== 1 ? 'network policy' : 'portwide';
}

/** See `policy/compile/policy-table.ts`. */
function policyPurpose(chain: string): string {
  const denied = /^deny-(admin|network-policy|baseline)-(ingress|egress)$/.exec(chain);
  if (denied !== null) return `drops packets that a policy denies (${denied[2]}, ${denied[1]})`;
  const set = /^(ingress|egress)-\d+/.exec(chain);
  if (set !== null) return `${set[1]} rules of the policies that apply to the pod`;
  if (chain === 'untracked')
    return 'evaluates UDP packets that are not tracked, and allows answers';
  if (chain === 'remember-answers') return 'allows the packet, and from now on its answers';
  return 'finds the policies that apply to source and destination';
}
