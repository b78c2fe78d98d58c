/** The step of a trace that says what rules of other programs do to the packet. */
import { socketAddress } from '../../api/addresses.ts';
import type { Protocol } from '../../api/objects.ts';
import { type Finding, findings, placeOf } from '../../preflight/foreign-rules.ts';
import type { BaseChain, TestPacket } from '../../preflight/packet-walk.ts';
import type { Fact } from '../../preflight/result.ts';
import { TimeSlice } from '../../sync/time-slice.ts';
import type { ComputedTrace, TraceStep } from '../api/trace.ts';

/** Endpoints whose packets are evaluated. */
const MAX_ENDPOINTS = 10;

const VERDICTS = ['drop', 'masquerade'] as const;
type ForeignVerdict = (typeof VERDICTS)[number];

const DOES = { drop: 'drops', masquerade: 'masquerades' } as const;

/** What a base chain does to packets to some endpoints. */
interface Effect {
  readonly verdict: ForeignVerdict;
  readonly finding: Finding;
  readonly targets: string[];
}

/**
 * Adds the step to a computed path; a path that the proxy or a policy ends has none. Yields to the event loop.
 * @param chains base chains of other programs.
 * @param nodeAddresses packets from them pass no hook forward, and packets to them hook input instead.
 */
export async function withForeignRules(
  path: ComputedTrace,
  protocol: Protocol,
  port: number,
  chains: Fact<readonly BaseChain[]>,
  nodeAddresses: readonly string[],
): Promise<ComputedTrace> {
  const { source, verdict, destination, uncertain } = path;
  const isTranslated = verdict === 'translated';
  if (source === null || !(isTranslated || verdict === 'untouched')) return path;
  if ('notSeen' in chains) {
    const text = `rules of other programs were not read: ${chains.notSeen}`;
    return { ...path, uncertain: [...uncertain, text] };
  }
  const untranslated = { address: destination, port, masqueraded: false };
  const targets = isTranslated ? path.endpoints.slice(0, MAX_ENDPOINTS) : [untranslated];
  const packets = targets.map(({ address, port: to, masqueraded }) => ({
    packet: { source, destination: address, port: to, protocol, isTranslated },
    target: socketAddress(address, to),
    // NAT of a connection is decided once.
    verdicts: masqueraded ? (['drop'] as const) : VERDICTS,
  }));
  try {
    const effects = await effectsOf(packets, chains.value, nodeAddresses);
    return withEffects(path, effects, targets.length, chains.value.length);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return { ...path, uncertain: [...uncertain, `rules of other programs: ${error.message}`] };
  }
}

interface EndpointPacket {
  readonly packet: TestPacket;
  readonly target: string;
  readonly verdicts: readonly ForeignVerdict[];
}

/** @throws RangeError if there are too many rules. */
async function effectsOf(
  packets: readonly EndpointPacket[],
  chains: readonly BaseChain[],
  nodeAddresses: readonly string[],
): Promise<Effect[]> {
  const effects = new Map<string, Effect>();
  const slice = new TimeSlice();
  for (const { packet, target, verdicts } of packets) {
    const hooks = hooksOf(packet, nodeAddresses);
    for (const verdict of verdicts) {
      const isHook = ({ hook }: BaseChain) =>
        hooks.includes(hook) && (hook === 'postrouting') === (verdict === 'masquerade');
      for (const finding of findings(chains.filter(isHook), [packet], verdict)) {
        const key = `${verdict} ${finding.isCertain} ${placeOf(finding.base, finding.ending)}`;
        const effect = effects.get(key) ?? { verdict, finding, targets: [] };
        effect.targets.push(target);
        effects.set(key, effect);
      }
    }
    // One walk may take most of a slice.
    await slice.yield();
  }
  return [...effects.values()];
}

function hooksOf(
  { source, destination }: TestPacket,
  nodeAddresses: readonly string[],
): BaseChain['hook'][] {
  if (nodeAddresses.includes(destination)) return ['input'];
  return nodeAddresses.includes(source) ? ['postrouting'] : ['forward', 'postrouting'];
}

function withEffects(
  path: ComputedTrace,
  effects: readonly Effect[],
  targets: number,
  chains: number,
): ComputedTrace {
  const certain = effects.filter(({ finding }) => finding.isCertain);
  const texts = certain.map((effect) => `${effectText(effect, targets)} the packet`);
  const [decision = `none of ${chains} base chains drops or masquerades the packet`, ...detail] =
    texts;
  const step: TraceStep = {
    step: 'foreignRules',
    title: 'Rules of other programs',
    decision,
    object: null,
    detail,
  };
  const possible = effects
    .filter(({ finding }) => !finding.isCertain)
    .map(
      ({ verdict, finding: { base, ending } }) =>
        `${placeOf(base, ending)} may ${verdict} the packet: it depends on sets or interfaces`,
    );
  const isDropped = certain.some(
    (effect) => effect.verdict === 'drop' && effect.targets.length === targets,
  );
  const result = path.steps.slice(-1).map((last) =>
    isDropped
      ? {
          ...last,
          decision: 'the packet is dropped by another program',
          object: null,
          detail: [],
        }
      : last,
  );
  return {
    ...path,
    verdict: isDropped ? 'dropped' : path.verdict,
    steps: [...path.steps.slice(0, -1), step, ...result],
    uncertain: [...path.uncertain, ...possible],
  };
}

function effectText({ verdict, finding, targets }: Effect, all: number): string {
  const some = targets.length < all ? ` (to ${targets.join(', ')})` : '';
  return `${placeOf(finding.base, finding.ending)}${some} ${DOES[verdict]}`;
}
