/** Writes policy tables with the names of an earlier release, for tests of the takeover. */
import type { IpFamily } from '../../api/objects.ts';
import { align, encodeAttributes, NLA_F_NESTED, NLA_HDRLEN } from '../../netlink/core/attribute.ts';
import { readU16 } from '../../netlink/core/host-order.ts';
import {
  NfTables,
  type NftChainRules,
  type NftElement,
  type NftOperation,
  type NftRule,
} from '../../netlink/nftables/tables.ts';
import type { RuleTable } from '../../nft/table.ts';
import { LEGACY_NAMES, POLICY_TABLE, STAGING_TABLE } from '../../policy/compile/policy-table.ts';
import type { PolicyTables } from '../../policy/enforce/rebuild.ts';

/** Patterns of names in this release, and the names of the earlier one. */
const RENAMED: readonly (readonly [pattern: string, old: string])[] = [
  [STAGING_TABLE, LEGACY_NAMES.stagingTable],
  ['commit-marker', LEGACY_NAMES.commitMarker],
  ['fqdn-peers', 'learned'],
  ['fqdn-cache', LEGACY_NAMES.fqdnCache],
  ['hairpin-pods', 'own'],
  ['unparsable-ports-(deny-[a-z-]+)', 'unreadable-$1'],
  ['((?:in|e)gress-\\d+)-lower-tiers', '$1-rest'],
];
const OLD = ['portwide-policy-guard', 'complete', 'learned', 'answers', 'own'].concat([
  'unreadable-deny-[a-z-]+',
  '(?:in|e)gress-\\d+-rest',
]);

/** A name as a whole word: hyphens belong to names. */
function word(pattern: string): RegExp {
  return new RegExp(`(?<![\\w-])${pattern}(?![\\w-])`, 'g');
}

function oldNames(text: string): string {
  return RENAMED.reduce((old, [pattern, name]) => old.replaceAll(word(pattern), name), text);
}

/** Names in an nft listing that only this release, or only the earlier one has. */
export function tableNames(listing: string) {
  const found = (patterns: readonly string[]) =>
    patterns.filter((pattern) => word(pattern).test(listing));
  return { current: found(RENAMED.map(([pattern]) => pattern)), old: found(OLD) };
}

/** The tables of an agent of the earlier release. */
export function openLegacyTables(family: IpFamily): PolicyTables {
  const main = withOldNames(new NfTables(family, POLICY_TABLE));
  const staging = withOldNames(new NfTables(family, LEGACY_NAMES.stagingTable));
  return { main, staging, legacyStaging: new NfTables(family, 'portwide-policy-none') };
}

function withOldNames(table: NfTables): RuleTable {
  const { transact, visitElements } = table;
  table.transact = (operations) => transact.call(table, operations.map(oldOperation));
  table.visitElements = (set, ...args) => visitElements.call(table, oldNames(set), ...args);
  return table;
}

function oldOperation(operation: NftOperation): NftOperation {
  switch (operation.action) {
    case 'declare':
      return {
        ...operation,
        declarations: operation.declarations.map((each) => ({
          ...each,
          name: oldNames(each.name),
        })),
      };
    case 'fill':
      return { action: 'fill', chain: oldChain(operation.chain) };
    case 'remove':
      return { action: 'remove', chains: operation.chains.map(oldNames) };
    case 'delete-table':
    case 'attach':
    case 'detach':
    case 'delete-flowtable':
      return operation;
    default: {
      const { action, set, elements } = operation;
      return { action, set: oldNames(set), elements: elements.map(oldElement) };
    }
  }
}

function oldElement(element: NftElement): NftElement {
  const { data } = element;
  if (data === undefined || Buffer.isBuffer(data) || !('chain' in data)) return element;
  return { ...element, data: { ...data, chain: oldNames(data.chain) } };
}

function oldChain({ name, rules }: NftChainRules): NftChainRules {
  const renamed = [...rules].map(
    (rule): NftRule => ({ ...rule, expressions: oldAttributes(rule.expressions) }),
  );
  return { name: oldNames(name), rules: renamed };
}

/** Replaces strings in netlink attributes, which end with a zero byte. */
function oldAttributes(bytes: Buffer): Buffer {
  const attributes: { type: number; value: Buffer }[] = [];
  for (let at = 0; at < bytes.length; ) {
    const end = at + readU16(bytes, at);
    const type = readU16(bytes, at + 2);
    const value = bytes.subarray(at + NLA_HDRLEN, end);
    attributes.push({ type, value: type & NLA_F_NESTED ? oldAttributes(value) : oldString(value) });
    at = align(end);
  }
  return encodeAttributes(attributes);
}

function oldString(value: Buffer): Buffer {
  const text = value.toString('latin1');
  if (!/^[a-z\d-]+\0$/.test(text)) return value;
  return Buffer.from(`${oldNames(text.slice(0, -1))}\0`, 'latin1');
}
