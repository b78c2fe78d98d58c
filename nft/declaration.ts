/**
 * Sets, maps, chains, counters and flowtables as values, which the agent declares over netlink. The text is for
 * `portwide render`. Sets have the fields that rules look up.
 */
import type { IpFamily } from '../api/objects.ts';
import type { NftDeclaration } from '../netlink/nftables/declaration.ts';
import { HOOKS, type Hook, PRIORITY } from '../netlink/nftables/hooks.ts';
import { META_KEY } from '../netlink/nftables/rule.ts';
import type { NftSetDeclaration } from '../netlink/nftables/set.ts';
import {
  DATATYPE,
  type NftField,
  typeofConnectionId,
  typeofMeta,
  typeofPayload,
  typeofRandom,
} from '../netlink/nftables/set-description.ts';
import type { NftBaseChain } from '../netlink/nftables/types.ts';
import { nftFamily } from './rule.ts';

/** A field of a key or of data. */
export interface SetField extends NftField {
  /** As in `typeof`. */
  readonly text: string;
}

/** Number of values of a field `index`. */
const INDEXES = 65_536;
/** IFNAMSIZ */
const NAME_LENGTH = 16;

function fieldsOf(family: IpFamily) {
  const ip = nftFamily(family);
  const field = (text: string, datatype: number, length: number, description: Buffer) =>
    ({ text, datatype, length, byteOrder: 'network', typeof: description }) satisfies SetField;
  const inHostOrder = (each: Omit<SetField, 'byteOrder'>): SetField => ({
    ...each,
    byteOrder: 'host',
  });
  const address = (text: `${'ip' | 'ip6'} ${'saddr' | 'daddr'}`) =>
    field(text, DATATYPE[family], family === 'IPv4' ? 4 : 16, typeofPayload(text));
  const port = (text: 'th sport' | 'th dport') =>
    field(text, DATATYPE.port, 2, typeofPayload(text));
  const device = (text: string, key: number) =>
    inHostOrder(field(text, DATATYPE.interfaceName, NAME_LENGTH, typeofMeta(key)));
  return {
    source: address(`${ip} saddr`),
    destination: address(`${ip} daddr`),
    sourcePort: port('th sport'),
    port: port('th dport'),
    protocol: field('meta l4proto', DATATYPE.protocol, 1, typeofMeta(META_KEY.protocol)),
    index: inHostOrder(
      field(`numgen random mod ${INDEXES}`, DATATYPE.integer, 4, typeofRandom(INDEXES)),
    ),
    /**
     * 32 bits in network order, printed in decimal. The type `mark` is unsuitable: it has host byte order, which nft 1.0.6
     * reads and prints byte-swapped in interval sets.
     */
    connectionId: field('ct id', DATATYPE.integer, 4, typeofConnectionId()),
    inputInterface: device('meta iifname', META_KEY.inputName),
    outputInterface: device('meta oifname', META_KEY.outputName),
  } satisfies Readonly<Record<string, SetField>>;
}

const FIELDS = { IPv4: fieldsOf('IPv4'), IPv6: fieldsOf('IPv6') } as const;

/** The fields of keys and data, by what they are in a packet. */
export function setFields(family: IpFamily): (typeof FIELDS)[IpFamily] {
  return FIELDS[family];
}

/** A set, or a map with data. */
export interface SetDeclaration extends NftSetDeclaration {
  readonly kind: 'set';
  readonly key: readonly SetField[];
  readonly data?: 'verdict' | readonly SetField[] | undefined;
}

/** An object that exists before it is used. */
export type Declaration = SetDeclaration | Exclude<NftDeclaration, { readonly kind: 'set' }>;

/** The declaration in nft syntax. nft has no words for an ordered set, and writes its keys field by field. */
export function declarationText(declared: Declaration): string {
  const { name } = declared;
  switch (declared.kind) {
    case 'set':
      return setText(declared);
    case 'chain':
      return `chain ${name} { ${declared.base === undefined ? '' : baseChainText(declared.base, priorityText(declared.base))} }`;
    case 'counter':
      return `counter ${name} { }`;
    case 'flowtable':
      return `flowtable ${name} { hook ingress priority ${declared.priority === PRIORITY.filter ? 'filter' : declared.priority}; counter; }`;
  }
}

function setText(set: SetDeclaration): string {
  const { name, key, data, size, timeoutSeconds } = set;
  const flags = [
    ...(set.isInterval === true ? ['interval'] : []),
    ...(set.isDynamic === true ? ['dynamic'] : []),
    ...(set.hasTimeouts === true ? ['timeout'] : []),
  ];
  const options = [
    ...(flags.length === 0 ? [] : [`flags ${flags.join()}`]),
    ...(size === undefined ? [] : [`size ${size}`]),
    ...(timeoutSeconds === undefined ? [] : [`timeout ${durationText(timeoutSeconds)}`]),
  ];
  const value =
    data === 'verdict' ? ' : verdict' : data === undefined ? '' : ` : ${typeText(data)}`;
  return `${data === undefined ? 'set' : 'map'} ${name} { typeof ${typeText(key)}${value};${options.map((option) => ` ${option};`).join('')} }`;
}

function typeText(fields: readonly SetField[]): string {
  return fields.map(({ text }) => text).join(' . ');
}

const HOUR = 3600;

function durationText(seconds: number): string {
  return seconds % HOUR === 0 ? `${seconds / HOUR}h` : `${seconds}s`;
}

/** A base chain in nft syntax. */
export function baseChainText(
  { type, hook, priority, policy }: NftBaseChain,
  priorityName = String(priority),
): string {
  const where = `hook ${HOOKS[hook] ?? hook} priority ${priorityName}`;
  return `type ${type} ${where}; policy ${policy === 0 ? 'drop' : 'accept'};`;
}

/** Hooks at which nft takes the name of a priority. */
const NAMED_PRIORITIES: readonly (readonly [keyof typeof PRIORITY, readonly Hook[]])[] = [
  ['filter', HOOKS],
  ['dstnat', ['prerouting']],
  ['srcnat', ['postrouting']],
];

function priorityText({ hook, priority }: NftBaseChain): string {
  const named = NAMED_PRIORITIES.find(
    ([name, hooks]) => PRIORITY[name] === priority && hooks.some((each) => each === HOOKS[hook]),
  );
  return named?.[0] ?? String(priority);
}
