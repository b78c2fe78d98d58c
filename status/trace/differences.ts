/** Where the kernel treated packets otherwise than computed, in sentences. Pure. */
import { socketAddress } from '../../api/addresses.ts';
import type { ComputedTrace, LivePath, LiveTraceStep } from '../api/trace.ts';
import type { ForeignEffect, ForeignPath } from './foreign-steps.ts';

/** Sentences in one summary. */
const MAX_SENTENCES = 10;

/**
 * @param computedFor the computed path of each packet, which may depend on its source.
 * @returns one sentence for each kind of difference; empty if computed and live agree.
 */
export function differences(
  paths: readonly LivePath[],
  computedFor: (path: LivePath) => ForeignPath,
): string[] {
  const sentences = new Map<string, number[]>();
  for (const path of paths) {
    const { path: computed, effects } = computedFor(path);
    for (const sentence of differencesOf(computed, path, effectsOn(path, effects))) {
      sentences.set(sentence, [...(sentences.get(sentence) ?? []), path.packet]);
    }
  }
  return [...sentences]
    .slice(0, MAX_SENTENCES)
    .map(([sentence, packets]) => `${packetsText(packets)} ${sentence}`);
}

function packetsText(packets: readonly number[]): string {
  return packets.length === 1 ? `packet ${packets[0]}` : `packets ${packets.join(', ')}:`;
}

const COMPUTED: Readonly<Record<ComputedTrace['verdict'], string>> = {
  translated: 'reach an endpoint',
  rejected: 'be rejected',
  dropped: 'be dropped',
  denied: 'be denied by network policies',
  untouched: 'pass untranslated',
};

/** What the packet may meet: on the way to its endpoint, or before that is known. */
function effectsOn({ translatedTo }: LivePath, effects: readonly ForeignEffect[]) {
  return effects.filter(({ targets }) => translatedTo === null || targets.has(translatedTo));
}

function differencesOf(
  computed: ComputedTrace,
  path: LivePath,
  effects: readonly ForeignEffect[],
): string[] {
  const { result, decidedBy } = path;
  const drops = effects.filter(({ verdict }) => verdict === 'drop');
  const certain = drops.find(({ isCertain }) => isCertain);
  const should = certain === undefined ? COMPUTED[computed.verdict] : `be ${certain.text}`;
  if (result === 'lost') {
    // IPVS itself rejects packets to a Service without endpoints, by no rule.
    const isExpected = path.lostInIpvs && computed.verdict === 'rejected' && certain === undefined;
    const isForwarded = !computed.steps.some(({ step }) => step === 'forwarding');
    if (!isForwarded && path.passed.at(-1) === 'prerouting') return [];
    return isExpected ? [] : [lostText(path, should)];
  }
  if (result === 'dropped' || result === 'rejected') {
    const isOwn = decidedBy?.owner !== 'other';
    const isExpected = isOwn
      ? isExpectedEnd(computed, path, certain !== undefined)
      : drops.some((each) => isBy(each, decidedBy));
    if (isExpected) return [];
    const foreign = isOwn ? '' : ', which another program wrote';
    return [
      `was ${result} by ${decidedBy === null ? 'the kernel' : ruleText(decidedBy)}${foreign}; computed: it should ${should}`,
    ];
  }
  const passes = computed.verdict === 'translated' || computed.verdict === 'untouched';
  // Before its translation, nothing is known about the endpoint of a packet.
  const isOfEndpoint = computed.verdict === 'translated' && path.translatedTo === null;
  return passes && (certain === undefined || isOfEndpoint)
    ? translationDifferences(computed, path, effects)
    : [`got through to ${path.translatedTo ?? path.destination}; computed: it should ${should}`];
}

function isExpectedEnd(
  { verdict, endpoints }: ComputedTrace,
  { result, decidedBy, translatedTo }: LivePath,
  isForeign: boolean,
): boolean {
  if (result === 'rejected') return verdict === 'rejected' && !isForeign;
  if (decidedBy?.owner !== 'network policy') return verdict === 'dropped' && !isForeign;
  const target = endpoints.find(
    ({ address, port }) => socketAddress(address, port) === translatedTo,
  );
  return verdict === 'denied' || target?.policy === 'deny';
}

function isBy({ table, chains }: ForeignEffect, step: LiveTraceStep): boolean {
  return table === step.table && chains.has(step.chain);
}

function translationDifferences(
  computed: ComputedTrace,
  path: LivePath,
  effects: readonly ForeignEffect[],
): string[] {
  const { translatedTo, masqueradedAs, translatedBy, masqueradedBy } = path;
  if (computed.verdict === 'untouched') {
    return translatedTo === null
      ? []
      : [
          `was translated to ${translatedTo}${byText(translatedBy)}; computed: no Service has the destination`,
        ];
  }
  if (translatedTo === null) return ['was not translated; computed: it should reach an endpoint'];
  const endpoint = computed.endpoints.find(
    ({ address, port }) => socketAddress(address, port) === translatedTo,
  );
  if (endpoint === undefined) {
    const why =
      translatedBy === null
        ? ' by conntrack, as an entry of an earlier packet says'
        : byText(translatedBy);
    return [
      `was translated to ${translatedTo}${why}; computed: that is no endpoint for this client`,
    ];
  }
  if (endpoint.policy === 'deny')
    return [`got through to ${translatedTo}; computed: network policies deny it`];
  // The kernel masquerades at the last hook, which packets to processes of this node do not pass.
  if (path.result !== 'left' && path.result !== 'pod') return [];
  if (computed.speaksAs.some(({ vip }) => vip === masqueradedAs)) return [];
  // The address of the node may replace itself, and later packets of a connection pass no rule that masquerades.
  const keepsSource = masqueradedAs === null && masqueradedBy === null && translatedBy !== null;
  if (endpoint.masqueraded ? !keepsSource : masqueradedAs === null) return [];
  const isComputed = effects.some(
    (each) =>
      each.verdict === 'masquerade' &&
      each.isCertain &&
      // Conntrack masquerades later packets of the connection.
      (masqueradedBy === null || isBy(each, masqueradedBy)),
  );
  if (isComputed) return [];
  return masqueradedAs === null
    ? ['kept its source address; computed: it should be masqueraded']
    : [
        `was masqueraded as ${masqueradedAs}${byText(masqueradedBy)}; computed: it should keep its source address`,
      ];
}

function lostText({ passed, translatedTo, lostInIpvs }: LivePath, should: string): string {
  if (lostInIpvs)
    return `was lost in IPVS, which has no endpoint for it or cannot reach it: see ipvsadm -Ln; computed: it should ${should}`;
  const last = passed.at(-1);
  const where = last === undefined ? 'before any hook ended' : `after hook ${last}`;
  const target = translatedTo === null ? '' : ` (translated to ${translatedTo})`;
  return `was lost ${where}${target}, and no nf_tables rule dropped it: check the route, ip_forward and rp_filter; computed: it should ${should}`;
}

function byText(step: LiveTraceStep | null): string {
  if (step === null) return '';
  const foreign = step.owner === 'other' ? ', which another program wrote' : '';
  return ` by ${ruleText(step)}${foreign}`;
}

/** Table, chain and rule of a step. */
export function ruleText({ table, chain, rule, handle, text, verdict }: LiveTraceStep): string {
  if (handle === null) return `the policy of chain ${chain} in table ${table} (${verdict})`;
  const number = rule === null ? 'a rule' : `rule ${rule}`;
  return `${number} of chain ${chain} in table ${table} (handle ${handle}${text === null ? '' : `: ${text}`})`;
}
