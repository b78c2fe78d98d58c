/** Random nf_tables transactions, well-formed and malformed, which a test runs inside a network namespace. */
import type { IpFamily } from '../../../api/objects.ts';
import { encodeAttributes } from '../../../netlink/core/attribute.ts';
import { NETLINK_NETFILTER } from '../../../netlink/core/descriptor.ts';
import { NetlinkError } from '../../../netlink/core/error.ts';
import { readU16, u32, writeU16, writeU32 } from '../../../netlink/core/host-order.ts';
import type { NetlinkRequest, PackedMessages } from '../../../netlink/core/message.ts';
import { NetlinkSocket } from '../../../netlink/core/socket.ts';
import { newChainRequest } from '../../../netlink/nftables/chain.ts';
import { encodeComment } from '../../../netlink/nftables/comment.ts';
import { declarationRequest, type NftDeclaration } from '../../../netlink/nftables/declaration.ts';
import { elementKeyAttribute } from '../../../netlink/nftables/element.ts';
import { HOOKS } from '../../../netlink/nftables/hooks.ts';
import {
  deleteSetRequest,
  deleteTableRequest,
  newRuleRequest,
  newTableRequest,
  nftRequest,
} from '../../../netlink/nftables/message.ts';
import * as rules from '../../../netlink/nftables/rule.ts';
import { encodedRuleText } from '../../../netlink/nftables/rule-text.ts';
import {
  NfTables,
  type NftElement,
  type NftOperation,
  NftRefusedError,
  type NftRule,
  type NftVerdict,
} from '../../../netlink/nftables/tables.ts';
import { TransactionWriter } from '../../../netlink/nftables/transaction.ts';
import { setFields } from '../../../nft/declaration.ts';
import { Random } from '../../random.ts';

const FAMILY: IpFamily = 'IPv4';
const AF_INET = 2;
const TABLE = { family: AF_INET, name: 'pw' };
const NFPROTO = [1, 2, 3, 5, 7, 10, 200];
const CHAINS = ['c0', 'c1', 'c2', 'c3', 'c4', 'c5'];
const SETS = ['s0', 's1', 's2', 's3', 's4', 's5'];
const COUNTERS = ['n0', 'n1'];
const FLOWTABLE = 'f0';
const { source, destination, protocol, port, index, connectionId } = setFields(FAMILY);
const FIELDS = [source, destination, protocol, port, index, connectionId];
/** Registers that most rules write first, each with the three that follow. */
const LOADED = [0, 4, 8];
/** Number of transactions after which all objects are read. */
const READ_AFTER = 250;

/** Transactions by outcome: `accepted`, or the error as text with the names of objects and numbers left out. */
export type FuzzOutcomes = Readonly<Record<string, number>>;

export const fuzzCalls = {
  /** Sends random operations, encoded as the agent encodes them. @throws whatever is no error of the kernel. */
  async nftFuzzOperations(seed: number, count: number): Promise<FuzzOutcomes> {
    const random = new Random(seed);
    const outcomes = new Outcomes();
    const tables = new NfTables(FAMILY, TABLE.name);
    for (let at = 1; at <= count; at++) {
      try {
        await tables.transact(random.many(1, 4, () => operation(random)));
        outcomes.add('accepted');
      } catch (error) {
        if (!(error instanceof NftRefusedError)) throw error;
        outcomes.add(error.message);
      }
      if (at % READ_AFTER === 0) await readAll(tables);
    }
    await tables.close();
    return outcomes.counts();
  },

  /** Sends random messages; some are damaged. @throws whatever is no error of the kernel. */
  async nftFuzzMessages(seed: number, count: number): Promise<FuzzOutcomes> {
    const random = new Random(seed);
    const outcomes = new Outcomes();
    const tables = new NfTables(FAMILY, TABLE.name);
    const socket = new NetlinkSocket(NETLINK_NETFILTER);
    for (let at = 1; at <= count; at++) {
      const writer = new TransactionWriter(TABLE.family, TABLE.name);
      for (const each of random.many(1, 4, () => request(random)))
        writer.append(random.chance(0.7) ? damaged(random, each) : each);
      const packed = writer.finish();
      if (random.chance(0.05)) damageHeader(random, packed);
      try {
        const [refusal] = await socket.transaction(async () => packed);
        if (refusal !== undefined && refusal.index >= packed.starts.length)
          throw new Error(`message ${refusal.index} of ${packed.starts.length}`);
        outcomes.add(refusal === undefined ? 'accepted' : refusal.error.code);
      } catch (error) {
        if (!(error instanceof NetlinkError)) throw error;
        outcomes.add(error.message.replace(/^netlink message \d+/, 'all'));
      }
      if (at % READ_AFTER === 0) await readAll(tables);
    }
    await socket.close();
    await tables.close();
    return outcomes.counts();
  },
};

class Outcomes {
  readonly #counts = new Map<string, number>();

  add(text: string): void {
    const key = text.replaceAll(/\b[csnf]\d\b/g, 'x').replaceAll(/element [0-9a-f]+|\d+/g, '#');
    this.#counts.set(key, (this.#counts.get(key) ?? 0) + 1);
  }

  counts(): FuzzOutcomes {
    return Object.fromEntries([...this.#counts].sort(([a], [b]) => (a < b ? -1 : 1)));
  }
}

/** Reads all objects of the table, whatever the kernel has accepted. */
async function readAll(tables: NfTables): Promise<void> {
  await tables.tableFlags();
  await tables.chainsWithHooks();
  await tables.counters();
  await tables.flowtables();
  for (const { expressions } of (await tables.rules()) ?? []) encodedRuleText(expressions);
  for (const { name } of (await tables.sets()) ?? [])
    await tables.visitElements(name, () => undefined);
}

function operation(random: Random): NftOperation {
  switch (random.integer(0, 9)) {
    case 0:
    case 1:
      return {
        action: 'declare',
        replacesTable: random.chance(0.02),
        declarations: random.many(0, 3, () => declaration(random)),
      };
    case 2:
    case 3:
    case 4:
      return {
        action: random.chance(0.7) ? 'add' : 'delete',
        set: random.pick(SETS),
        isOrdered: random.chance(0.2),
        elements: random.many(1, 4, () => element(random)),
      };
    case 5:
    case 6:
    case 7: {
      const name = random.pick(CHAINS);
      return {
        action: 'fill',
        chain: { name, rules: random.many(0, 2, () => rule(random, name)) },
      };
    }
    case 8:
      return { action: 'remove', chains: random.many(1, 2, () => random.pick(CHAINS)) };
    default:
      return random.pick<NftOperation>([
        { action: 'attach', flowtable: FLOWTABLE, devices: ['lo', 'absent'] },
        { action: 'detach', flowtable: FLOWTABLE, devices: ['lo'] },
        { action: 'delete-flowtable', flowtable: FLOWTABLE },
        { action: 'delete-table', table: random.chance(0.2) ? TABLE.name : 'absent' },
      ]);
  }
}

function declaration(random: Random): NftDeclaration {
  const kind = random.integer(0, 9);
  if (kind < 5)
    return {
      kind: 'set',
      name: random.pick(SETS),
      key: random.many(1, 4, () => random.pick(FIELDS)),
      data: random.chance(0.3) ? undefined : random.pick(['verdict', [source], [source, port]]),
      isInterval: random.chance(0.3),
      isOrdered: random.chance(0.2),
      isDynamic: random.chance(0.2),
      hasTimeouts: random.chance(0.2),
      timeoutSeconds: random.chance(0.5) ? undefined : random.pick([1, 3600]),
      size: random.chance(0.5) ? undefined : random.pick([1, 100]),
    };
  if (kind < 8)
    return {
      kind: 'chain',
      name: random.pick(CHAINS),
      base: random.chance(0.6)
        ? undefined
        : {
            type: random.pick(['filter', 'nat', 'route', 'absent']),
            hook: random.integer(0, HOOKS.length),
            priority: random.integer(-400, 400),
            policy: random.integer(0, 2),
          },
    };
  if (kind === 8) return { kind: 'counter', name: random.pick(COUNTERS), packets: 5n };
  return { kind: 'flowtable', name: FLOWTABLE, priority: random.integer(-10, 10) };
}

const bytes = (random: Random, length: number) =>
  Buffer.from(random.many(length, length, () => random.integer(0, 255)));

/** Mostly of few distinct keys, so that elements meet again. */
function value(random: Random): Buffer {
  const words = random.integer(1, 5);
  if (random.chance(0.05)) return bytes(random, random.integer(1, 64));
  return Buffer.concat(random.many(words, words, () => u32(random.integer(0, 3))));
}

function element(random: Random): NftElement {
  const key = value(random);
  return {
    key,
    ...(random.chance(0.3) ? { keyEnd: random.chance(0.8) ? key : value(random) } : {}),
    ...(random.chance(0.5) ? { data: random.chance(0.5) ? verdict(random) : value(random) } : {}),
    ...(random.chance(0.1) ? { timeoutMs: random.integer(0, 10_000) } : {}),
    ...(random.chance(0.1) ? { userdata: encodeComment('random') } : {}),
  };
}

/** @param from The chain of the rule: jumps lead to later chains, because the kernel follows all paths; few do not. */
function verdict(random: Random, from = 'c0'): NftVerdict {
  const kind = random.pick(['accept', 'drop', 'return', 'jump', 'goto'] as const);
  if (kind !== 'jump' && kind !== 'goto') return { kind };
  const later = CHAINS.slice(CHAINS.indexOf(from) + 1);
  const isAny = later.length === 0 || random.chance(0.02);
  return { kind, chain: random.pick(isAny ? [...CHAINS, 'absent'] : later) };
}

function rule(random: Random, chain: string): NftRule {
  const register = () => (random.chance(0.02) ? random.integer(0, 40) : random.pick(LOADED));
  const makers = [
    () =>
      rules.payload(register(), random.pick([1, 2]), random.integer(0, 40), random.integer(1, 16)),
    () => rules.writeAddressField(register(), FAMILY, 16, 4),
    () => rules.notrack(),
    () => rules.meta(register(), random.integer(0, 30)),
    () => rules.setMark(register()),
    () => rules.setTrace(register()),
    () =>
      rules.ct(
        register(),
        random.integer(0, 30),
        random.chance(0.3) ? undefined : random.pick([0, 1]),
      ),
    () => rules.cmp(register(), bytes(random, random.integer(1, 16)), random.chance(0.5)),
    () => rules.cmpGreater(register(), bytes(random, 8)),
    () => rules.toNetworkOrder(register(), random.pick([2, 4, 8])),
    () => rules.flowOffload(FLOWTABLE),
    () => rules.bitwise(register(), bytes(random, 4), bytes(random, random.pick([4, 4, 8]))),
    () => rules.range(register(), bytes(random, 2), bytes(random, 2)),
    () => rules.immediate(register(), bytes(random, 4)),
    () => rules.counterReference(random.pick(COUNTERS)),
    () => rules.log(random.integer(0, 65_535), 'random'),
    () => rules.limit(random.integer(0, 1000), random.integer(0, 1000)),
    () => rules.lookup(random.pick(SETS), register(), random.chance(0.5)),
    () => rules.lookupData(random.pick(SETS), register(), register()),
    () => rules.lookupVerdict(random.pick(SETS), register()),
    () => rules.numgenRandom(register(), random.integer(0, 100), random.integer(0, 100)),
    () =>
      rules.jenkinsHash(register(), random.integer(0, 16), register(), random.integer(0, 9), 1, 0),
    () => rules.dnat(FAMILY, register(), random.chance(0.5) ? register() : undefined),
    () => rules.masq(),
    () => rules.reject(FAMILY),
    () => rules.rejectTcpReset(),
    () => rules.fibAddressType(register(), random.pick(['source', 'destination'])),
    () => rules.fibWayBack(register()),
    () => rules.queueTarget(random.integer(0, 65_535)),
    () =>
      rules.dynsetUpdate(
        random.pick(SETS),
        register(),
        random.chance(0.5) ? undefined : register(),
        1000,
      ),
    () => ({ type: 1, value: [{ type: 1, value: Buffer.from('absent\0') }] }),
  ];
  // The kernel refuses to read a register that no expression of the rule has written (Linux 6.4).
  const loads = random.chance(0.8)
    ? LOADED.map((to) => rules.immediate(to, bytes(random, 16)))
    : [];
  const expressions = [...loads, ...random.many(0, 2, () => random.pick(makers)())];
  if (random.chance(0.4)) expressions.push(rules.verdict(verdict(random, chain)));
  return {
    expressions: rules.encodeRule(expressions),
    userdata: random.chance(0.2) ? encodeComment('random') : undefined,
  };
}

function request(random: Random): NetlinkRequest {
  const chain = random.pick(CHAINS);
  switch (random.integer(0, 7)) {
    case 0:
      return newTableRequest(TABLE);
    case 1:
    case 2:
      return declarationRequest(TABLE, declaration(random));
    case 3:
      return newChainRequest(TABLE, chain);
    case 4:
      return newRuleRequest(TABLE, chain, rule(random, chain));
    case 5: {
      const verb = random.pick(['NEW', 'DEL'] as const);
      const set = { type: 2, value: Buffer.from(`${random.pick(SETS)}\0`) };
      return nftRequest(verb, 'element', TABLE, [set, elementKeyAttribute(element(random))], 0x400);
    }
    case 6:
      return deleteSetRequest(TABLE, random.pick(SETS));
    default:
      return random.chance(0.1) ? deleteTableRequest(TABLE) : newTableRequest(TABLE);
  }
}

/** A message with something wrong in it. */
function damaged(random: Random, { type, flags = 0, payload }: NetlinkRequest): NetlinkRequest {
  const changed = Buffer.from(payload);
  /** The offset of what is an attribute at the outermost level, or looks like one. */
  const at = 4 * random.integer(1, Math.max(1, changed.length / 4 - 1));
  switch (random.integer(0, 7)) {
    case 0:
      return { type, flags, payload: changed.subarray(0, random.integer(4, changed.length)) };
    case 1:
      writeU16(changed, random.pick([0, 1, 3, 4, 5, 0xffff, random.integer(0, 100)]), at);
      return { type, flags, payload: changed };
    case 2:
      writeU16(
        changed,
        readU16(changed, at + 2) ^ random.pick([1, 2, 7, 0x20, 0x4000, 0x8000]),
        at + 2,
      );
      return { type, flags, payload: changed };
    case 3:
      changed[random.integer(0, changed.length - 1)] = random.integer(0, 255);
      return { type, flags, payload: changed };
    case 4:
      return { type: (type & 0xff00) | random.integer(0, 40), flags, payload };
    case 5:
      return { type: random.integer(0, 0xffff), flags, payload };
    case 6:
      return { type, flags: random.integer(0, 0xffff), payload };
    default:
      changed[0] = random.pick(NFPROTO);
      return {
        type,
        flags,
        payload: Buffer.concat([
          changed,
          encodeAttributes([{ type: 99, value: bytes(random, 9) }]),
        ]),
      };
  }
}

/** Damages the length or the type of a message, so that the kernel may stop to read the batch. */
function damageHeader(random: Random, { bytes: batch, starts }: PackedMessages): void {
  const start = random.pick(starts);
  if (random.chance(0.5)) writeU32(batch, random.pick([0, 15, 16, 19, 21, 0xffffffff]), start);
  else writeU16(batch, random.pick([0, 2, 16, 17]), start + 4);
}
