/** The step of a trace that says what rules of other programs do to the packet. */
import { familyOf, isLoopback, socketAddress } from '../../api/addresses.ts';
import type { IpFamily, Protocol } from '../../api/objects.ts';
import { HOOKS, PRIORITY } from '../../netlink/nftables/hooks.ts';
import { SPEAKER_PRIORITY } from '../../nft/speaker-priority.ts';
import {
  type Finding,
  findingSteps,
  notEvaluated,
  placeOf,
} from '../../preflight/foreign-rules.ts';
import { type BaseChain, dependenceOf, type TestPacket } from '../../preflight/packet-walk.ts';
import type { Fact } from '../../preflight/result.ts';
import { BackgroundSlice } from '../../sync/precedence.ts';
import { finishInSlices } from '../../sync/time-slice.ts';
import type { ComputedTrace, TraceEndpoint, TraceStep } from '../api/trace.ts';
import { reachesText } from './compute.ts';

/** Seconds after which the step says how old the rules are: an operator may have changed them and asks again. */
const OLD = 3;
/** Endpoints whose packets are evaluated. */
const MAX_ENDPOINTS = 10;

type ForeignVerdict = 'drop' | 'masquerade';

/** Stands for the source of a client outside, whose address is unknown. */
const ANY_ADDRESS: Readonly<Record<IpFamily, string>> = { IPv4: '0.0.0.0', IPv6: '::' };

/** What a rule does, and what a packet then is. */
const WORDS = {
  drop: { does: 'drops', may: 'drop', is: 'dropped' },
  reject: { does: 'rejects', may: 'reject', is: 'rejected' },
  masquerade: { does: 'masquerades', may: 'masquerade', is: 'masqueraded' },
} as const;

/** What a base chain does to packets to some endpoints. */
interface Effect {
  readonly verdict: ForeignVerdict;
  readonly finding: Finding;
  /** A packet may pass a chain twice: with IPVS before and after its translation. */
  readonly targets: Set<string>;
  /** Chains that decide so about one of the packets. */
  readonly deciding: Set<string>;
}

/** A drop or masquerade by another program, to compare with what the kernel does. */
export interface ForeignEffect {
  readonly verdict: ForeignVerdict;
  /** Family and name of the table, such as `ip filter`. */
  readonly table: string;
  /** One of the chains has the rule or policy. */
  readonly chains: ReadonlySet<string>;
  /** `address:port` of packets that meet it. */
  readonly targets: ReadonlySet<string>;
  readonly isCertain: boolean;
  /** Completes "it should be". */
  readonly text: string;
}

/** A path with what rules of other programs do. */
export interface ForeignPath<Path = ComputedTrace> {
  readonly path: Path;
  readonly effects: readonly ForeignEffect[];
}

interface EvaluatedPath extends ForeignPath {
  /** Whether a rule that is not known well enough may drop packets. */
  readonly mayFail: boolean;
}

/** What decides which hooks a packet passes, and how old the rules are. */
export interface HookContext {
  /** Packets from them pass no hook forward, and packets to them hook input instead. */
  readonly nodeAddresses: readonly string[];
  /** IPVS takes packets at hook input, before it translates them, and sends them to endpoints through hook output. */
  readonly forwardsWithIpvs: boolean;
  /** The VIP that replaces the source, see `TracedPath`. */
  readonly speaksAs?: string | undefined;
  /** Seconds since the rules were read. */
  readonly foreignRulesAge: number;
}

/**
 * Adds the step to a computed path; a path that the proxy or a policy ends has none. Yields to the event loop.
 * @param chains base chains of other programs.
 */
export async function withForeignRules(
  path: ComputedTrace,
  protocol: Protocol,
  port: number,
  chains: Fact<readonly BaseChain[]>,
  context: HookContext,
): Promise<EvaluatedPath> {
  const { verdict, destination, uncertain } = path;
  const isTranslated = verdict === 'translated';
  if (!(isTranslated || verdict === 'untouched')) return { path, effects: [], mayFail: false };
  if ('notSeen' in chains) {
    const text = `rules of other programs were not read: ${chains.notSeen}`;
    return { path: { ...path, uncertain: [...uncertain, text] }, effects: [], mayFail: true };
  }
  const isUntracked = isUntrackedPath(path, protocol) || context.speaksAs !== undefined;
  const isSourceUnknown = path.source === null;
  const source = path.source ?? ANY_ADDRESS[path.family];
  const entering = { source, isSourceUnknown, destination, port, protocol, isTranslated: false };
  const endpoints = isTranslated ? path.endpoints.slice(0, MAX_ENDPOINTS) : [];
  const passes = isTranslated
    ? endpoints.map(({ address, port: to, masqueraded }) =>
        passOf(
          entering,
          {
            ...{ ...entering, destination: address, port: to, isTranslated, isUntracked },
            isMasqueraded: masqueraded,
          },
          masqueraded,
          context,
        ),
      )
    : [
        passOf(entering, { ...entering, isUntracked }, false, {
          ...context,
          forwardsWithIpvs: false,
        }),
      ];
  const limits = [...notEvaluated(chains.value), ...tooManyEndpoints(path.endpoints.length)];
  const limited = { ...path, uncertain: [...uncertain, ...limits] };
  try {
    const evaluation = await evaluationOf(passes, chains.value);
    const { foreignRulesAge: age } = context;
    const notes = age < OLD ? [] : [`as these rules were ${age} seconds ago`];
    const evaluated = withEffects(limited, evaluation, passes.length, notes);
    const effects = evaluation.effects.map(foreignEffect);
    const mayFail = effects.some(({ verdict, isCertain }) => verdict === 'drop' && !isCertain);
    return { path: evaluated, effects, mayFail };
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    const text = `rules of other programs: ${error.message}`;
    return {
      path: { ...limited, uncertain: [...limited.uncertain, text] },
      effects: [],
      mayFail: true,
    };
  }
}

/** UDP packets to the owner of a port are not tracked. */
function isUntrackedPath({ steps, verdict }: ComputedTrace, protocol: Protocol): boolean {
  return (
    protocol === 'UDP' && verdict === 'translated' && steps.some(({ step }) => step === 'slice')
  );
}

function tooManyEndpoints(count: number): string[] {
  if (count <= MAX_ENDPOINTS) return [];
  return [
    `rules of other programs are evaluated for ${MAX_ENDPOINTS} of ${count} endpoints, and may do something else to the others`,
  ];
}

const { srcnat: MASQUERADE } = PRIORITY;

/** A packet on its way to one target, and what rules at the hooks on its way may do. */
interface Pass {
  readonly target: string;
  readonly checks: readonly {
    readonly verdict: ForeignVerdict;
    readonly hook: BaseChain['hook'];
    readonly packet: TestPacket;
    /** Only chains at these priorities see this packet; undefined: all. */
    readonly at?: Priorities;
  }[];
}

type Priorities = (priority: number) => boolean;

/** Before and after the translation of the destination. */
interface Sides {
  readonly isBefore: Priorities;
  readonly isAfter: Priorities;
}

/**
 * NAT translates at priority dstnat, and IPVS right after it at hook output. Packets that are not tracked are rewritten at
 * priority raw (`nftables/owned-chains.ts`).
 */
function sidesOf({ isUntracked = false }: TestPacket): Sides {
  const translation = isUntracked ? PRIORITY.raw : PRIORITY.dstnat;
  return {
    isBefore: (priority) => priority < translation,
    isAfter: (priority) => priority >= translation,
  };
}

function passOf(
  entering: TestPacket,
  leaving: TestPacket,
  masqueraded: boolean,
  { nodeAddresses, forwardsWithIpvs, speaksAs }: HookContext,
): Pass {
  const isOfNode = (address: string) => nodeAddresses.includes(address) || isLoopback(address);
  const { isBefore, isAfter } = sidesOf(leaving);
  const isToNode = isOfNode(leaving.destination);
  const isFromNode = isOfNode(leaving.source);
  /** A packet that stays on the node goes through interface lo. */
  const staying = { ...leaving, isLoopback: isFromNode && isToNode };
  const isCaught = forwardsWithIpvs && !isFromNode;
  const drop = { verdict: 'drop', hook: 'input', packet: isCaught ? entering : staying } as const;
  const drops = isToNode || isCaught ? spokenChecks(drop, SPEAKER_PRIORITY.input, speaksAs) : [];
  const forwarded =
    isToNode || isFromNode || forwardsWithIpvs ? [] : [{ ...drop, hook: 'forward' } as const];
  // Rules at hook output see the interface of the route to the first destination, also after the translation. VIPs of
  // IPVS are addresses of the node, and IPVS sends packets to other hosts through hook output a second time.
  const routed = { isLoopback: forwardsWithIpvs || isOfNode(entering.destination) };
  const isSentAgain = forwardsWithIpvs && !isToNode;
  const sent = { verdict: 'drop', hook: 'output' } as const;
  const entered = { ...sent, packet: { ...entering, ...routed }, at: isBefore };
  const left = isSentAgain
    ? { ...sent, packet: leaving }
    : ({ ...sent, packet: { ...leaving, ...routed }, at: isAfter } as const);
  const outputs = [...(isFromNode ? [entered] : []), ...(isFromNode || isSentAgain ? [left] : [])];
  // A packet from elsewhere to the node does not pass hook postrouting.
  const last =
    isToNode && !isFromNode ? [] : leavingChecks(staying, masqueraded, nodeAddresses, speaksAs);
  // A packet that stays on the node enters it a second time, translated.
  const returned = isToNode ? [{ ...entry, packet: staying }] : [];
  const first = isFromNode ? returned : entryChecks(entering, leaving, forwardsWithIpvs);
  return {
    target: socketAddress(leaving.destination, leaving.port),
    checks: [...first, ...drops, ...forwarded, ...outputs, ...last],
  };
}

const entry = { verdict: 'drop', hook: 'prerouting' } as const;

/** IPVS translates after hook prerouting. */
function entryChecks(
  entering: TestPacket,
  leaving: TestPacket,
  forwardsWithIpvs: boolean,
): Pass['checks'] {
  if (forwardsWithIpvs) return [{ ...entry, packet: entering }];
  const { isBefore, isAfter } = sidesOf(leaving);
  return [
    { ...entry, packet: entering, at: isBefore },
    { ...entry, packet: leaving, at: isAfter },
  ];
}

/** @param speaksAs source of the packet from a priority on; undefined: it does not change. */
function spokenChecks(
  check: Pass['checks'][number],
  from: number,
  speaksAs: string | undefined,
): Pass['checks'] {
  if (speaksAs === undefined) return [check];
  const spoken = { ...check.packet, source: speaksAs };
  return [
    { ...check, at: (priority) => priority < from },
    { ...check, packet: spoken, at: (priority) => priority >= from },
  ];
}

/** Hook postrouting. NAT of a connection is decided once. */
function leavingChecks(
  packet: TestPacket,
  masqueraded: boolean,
  nodeAddresses: readonly string[],
  speaksAs: string | undefined,
): Pass['checks'] {
  const drop = { verdict: 'drop', hook: 'postrouting' } as const;
  // Untracked packets pass no nat chain.
  if (packet.isUntracked === true)
    return spokenChecks({ ...drop, packet }, SPEAKER_PRIORITY.postrouting, speaksAs);
  if (!masqueraded)
    return [
      { ...drop, packet },
      { ...drop, verdict: 'masquerade', packet },
    ];
  const source = nodeAddresses.find((address) => familyOf(address) === familyOf(packet.source));
  return [
    { ...drop, packet, at: (priority) => priority < MASQUERADE },
    {
      ...drop,
      packet: source === undefined ? packet : { ...packet, source, isSourceUnknown: false },
      at: (priority) => priority >= MASQUERADE,
    },
  ];
}

/** What rules do to packets, and the base chains that were evaluated. */
interface Evaluation {
  readonly effects: readonly Effect[];
  readonly chains: ReadonlySet<BaseChain>;
  /** Hooks that packets pass, whether or not chains are there. */
  readonly hooks: readonly BaseChain['hook'][];
}

/** @throws RangeError if there are too many rules. */
async function evaluationOf(
  passes: readonly Pass[],
  chains: readonly BaseChain[],
): Promise<Evaluation> {
  const hooks = new Set<BaseChain['hook']>();
  const evaluated = new Set<BaseChain>();
  const effects = new Map<string, Effect>();
  const slice = new BackgroundSlice();
  for (const { target, checks } of passes) {
    for (const { verdict, hook, packet, at } of checks) {
      const ofHook = chains.filter(
        (chain) => chain.hook === hook && (at === undefined || at(chain.priority)),
      );
      hooks.add(hook);
      for (const base of ofHook) evaluated.add(base);
      const found = await finishInSlices(findingSteps(ofHook, [packet], verdict), slice);
      for (const finding of found) {
        const key = `${verdict} ${finding.isCertain} ${placeText(finding)}`;
        const known = effects.get(key);
        const effect = known ?? { verdict, finding, targets: new Set(), deciding: new Set() };
        effect.targets.add(target);
        for (const deciding of finding.chains) effect.deciding.add(deciding);
        effects.set(key, effect);
      }
    }
  }
  const passed = HOOKS.filter((hook) => hooks.has(hook));
  return { effects: [...effects.values()], chains: evaluated, hooks: passed };
}

function withEffects(
  path: ComputedTrace,
  { effects, chains, hooks }: Evaluation,
  targets: number,
  notes: readonly string[],
): ComputedTrace {
  const certain = effects.filter(({ finding }) => finding.isCertain);
  const possible = effects.filter(({ finding }) => !finding.isCertain);
  const texts = certain.map((effect) => `${effectText(effect, targets)} the packet`);
  const [decision = noneText(possible, chains.size, hooks), ...detail] = texts;
  const step: TraceStep = {
    step: 'foreignRules',
    title: 'Rules of other programs',
    decision,
    object: null,
    detail: [...detail, ...notes],
  };
  const drops = certain.filter((effect) => effect.verdict === 'drop');
  const dropped = new Set(drops.flatMap((effect) => [...effect.targets]));
  const endpoints = path.endpoints.map((endpoint, index): TraceEndpoint => {
    if (index >= targets) return endpoint;
    const isDropped = dropped.has(socketAddress(endpoint.address, endpoint.port));
    return { ...endpoint, foreignRules: isDropped ? 'drop' : 'pass' };
  });
  // An endpoint beyond the limit was not evaluated, and may be open.
  const isOpen = endpoints.some((each) => each.policy !== 'deny' && each.foreignRules !== 'drop');
  const isDropped = dropped.size > 0 && !isOpen;
  const isDenied = endpoints.some(({ policy }) => policy === 'deny');
  const isRejected = drops.every((effect) => wordsOf(effect) === WORDS.reject) && !isDenied;
  const verdict = isRejected ? 'rejected' : 'dropped';
  const last = path.steps.slice(-1).map((result): TraceStep => {
    if (dropped.size === 0) return withPossibleDrop(result, possible);
    if (!isDropped)
      return withPossibleDrop({ ...result, decision: reachesText(endpoints) }, possible);
    const text = isDenied
      ? 'the packet is dropped: by network policies to some endpoints, by other programs to the others'
      : `the packet is ${verdict} by another program`;
    return { ...result, decision: text, object: null, detail: [] };
  });
  return {
    ...path,
    verdict: isDropped ? verdict : path.verdict,
    endpoints,
    steps: [...path.steps.slice(0, -1), step, ...last],
    uncertain: [
      ...path.uncertain,
      ...possible.map(
        (effect) =>
          `${placeText(effect.finding)} may ${wordsOf(effect).may} the packet: it depends on ${path.source === null ? 'the source address, ' : ''}${dependenceOf(effect.finding.ending)}`,
      ),
    ],
  };
}

/** The step if no rule certainly does something. */
function noneText(
  possible: readonly Effect[],
  chains: number,
  hooks: readonly BaseChain['hook'][],
): string {
  const at = `${chains} base chains at ${hooks.join(', ')}`;
  if (possible.length === 0) return `none of ${at} drops or masquerades the packet`;
  const count = new Set(possible.map(({ finding }) => finding.base)).size;
  const verdicts = [...new Set(possible.map((effect) => wordsOf(effect).may))].join(' or ');
  return `${count} of ${at} may ${verdicts} the packet`;
}

function withPossibleDrop(result: TraceStep, possible: readonly Effect[]): TraceStep {
  if (!possible.some(({ verdict }) => verdict === 'drop')) return result;
  return { ...result, decision: `${result.decision}, unless a rule of another program drops it` };
}

function foreignEffect(effect: Effect): ForeignEffect {
  const { verdict, finding, targets, deciding } = effect;
  return {
    verdict,
    // Without the variant of iptables.
    table: finding.base.table.replace(/ \(.*/, ''),
    chains: deciding,
    targets,
    isCertain: finding.isCertain,
    text: `${wordsOf(effect).is} by ${placeText(finding)}`,
  };
}

function effectText(effect: Effect, all: number): string {
  const { finding, targets } = effect;
  const some = targets.size < all ? ` (to ${[...targets].join(', ')})` : '';
  return `${placeText(finding)}${some} ${wordsOf(effect).does}`;
}

function wordsOf({ verdict, finding }: Effect): (typeof WORDS)[keyof typeof WORDS] {
  return verdict === 'drop' && finding.ending.rule?.isReject === true
    ? WORDS.reject
    : WORDS[verdict];
}

/** The chain that decides, and its rule. */
function placeText({ base, ending }: Finding): string {
  const name = ending.rule?.name;
  return `${placeOf(base, ending)}${name === undefined ? '' : `, ${name}`}`;
}
