/** Steps of a packet to a port that a pod owns, and of what an owner sends. Pure. */
import { socketAddress } from '../../api/addresses.ts';
import { hasPort, rangeText } from '../../api/ports.ts';
import type { EndpointWithoutSlice } from '../../endpoints/slice-owners.ts';
import { type OwnedSlices, type Route, vipsOf } from '../../services/route.ts';
import { winnerText } from '../../services/vip-conflicts.ts';
import {
  type MasqueradeReason,
  ownedMasqueradeOf,
  type SliceDecision,
  type SpokenPorts,
  sliceDecision,
  spokenPortsOf,
} from '../../traffic/first-packet.ts';
import type { TraceStep } from '../api/trace.ts';
import { detectorText } from './client.ts';
import type { PathEnd, TraceContext, TraceQuestion } from './compute.ts';
import { MASQUERADE } from './dispatch-steps.ts';

/** Ports in one sentence. */
const MAX_PORTS = 10;
/** Endpoints in the details of one step. */
const MAX_ENDPOINTS = 10;

/** The path to the owner of the port. @param owned of the Route that serves the port. */
export function ownedSteps(
  question: TraceQuestion,
  { traffic, udpRoutesOfOwner, withoutSlice }: TraceContext,
  route: Route,
  owned: OwnedSlices,
): PathEnd {
  const object = `Service ${route.serviceKey}`;
  const decision = sliceDecision(owned, question);
  const slice: TraceStep = {
    step: 'slice',
    title: 'Slice',
    decision: sliceText(decision, owned),
    object,
    detail: [
      `${owned.portsPerPod} ports for each pod, from ${owned.ranges.map(rangeText).join(', ')}`,
      ...(decision.why === 'vacant' ? whyVacant(decision, withoutSlice(route)) : []),
    ],
  };
  if (decision.why !== 'owned') {
    return { steps: [slice], verdict: 'rejected', endpoints: [], uncertain: [] };
  }
  const { protocol, port, client } = question;
  const { owner } = decision;
  const isUdp = protocol === 'UDP';
  const masquerade: MasqueradeReason | undefined = isUdp
    ? undefined
    : ownedMasqueradeOf(owner, client, traffic.options);
  const target = socketAddress(owner.address, port);
  const step = (
    id: TraceStep['step'],
    title: string,
    text: string,
    detail: readonly string[] = [],
  ): TraceStep => ({ step: id, title, decision: text, object, detail });
  const speaker = spokenPortsOf(udpRoutesOfOwner(owner.address), owner.address).find(({ ports }) =>
    ports.some((range) => hasPort(range, 'UDP', port)),
  );
  const answer = answerStep(question, owned, speaker);
  const sees = `the endpoint sees ${client.address ?? 'the source address'}`;
  const steps = isUdp
    ? [
        step('translation', 'Translation', `the destination becomes ${target}`, [
          'UDP packets of owned ports are not tracked: no conntrack entry, in either direction',
        ]),
        step('masquerade', 'Masquerade', sees, [
          'UDP packets to owned ports are never masqueraded',
        ]),
        step('answer', 'Answer', answer.decision, answer.detail),
      ]
    : [
        step('translation', 'Translation', `the destination becomes ${target} (DNAT)`),
        step(
          'masquerade',
          'Masquerade',
          masquerade?.masqueraded === true
            ? `the endpoint sees an address of this node instead of ${client.address ?? 'the source address'}`
            : sees,
          [
            ...(masquerade === undefined ? [] : [MASQUERADE[masquerade.why]]),
            detectorText(traffic.options.localDetector),
          ],
        ),
      ];
  return {
    steps: [slice, ...steps],
    verdict: 'translated',
    endpoints: [
      {
        address: owner.address,
        port,
        local: owner.node !== 'other',
        masqueraded: masquerade?.masqueraded ?? false,
        policy: null,
        foreignRules: null,
      },
    ],
    uncertain:
      isUdp && client.address === owner.address
        ? ['the client is the owner itself: a pod need not reach its own UDP port through the VIP']
        : [],
  };
}

/** Why endpoints with the ordinal of a vacant slice do not own it. */
function whyVacant(
  { ordinal }: SliceDecision,
  withoutSlice: readonly EndpointWithoutSlice[],
): string[] {
  const others = withoutSlice.filter((other) => other.ordinal === ordinal);
  if (others.length === 0) return [`no endpoint has ordinal ${ordinal}`];
  return others
    .slice(0, MAX_ENDPOINTS)
    .map(({ address, reason }) => `endpoint ${address} with ordinal ${ordinal} ${reason}`);
}

function sliceText(decision: SliceDecision, { udpVip }: OwnedSlices): string {
  const { slice, ordinal, owner, why } = decision;
  const name = slice === undefined ? '' : `${rangeText(slice)} is slice ${ordinal}`;
  switch (why) {
    case 'owned':
      return `${name}, and its owner is ${owner.address}`;
    case 'not serving':
      return `${name}, and its owner ${owner.address} does not serve: the packet is rejected`;
    case 'vacant':
      return `${name}, which is vacant (no endpoint owns it): the packet is rejected`;
    case 'left over':
      return 'the port is left over at the end of its range and belongs to no pod: the packet is rejected';
    case 'other VIP':
      return udpVip === undefined
        ? 'another Service has the VIP as which owners would speak: the packet is rejected'
        : `owned UDP ports are served on ${udpVip} only: the packet is rejected`;
  }
}

/** The VIPs as which a pod speaks from its UDP ports; empty for other sources and protocols. */
export function speaksAs(
  { client, protocol }: TraceQuestion,
  { udpRoutesOfOwner }: TraceContext,
): SpokenPorts[] {
  return protocol === 'UDP' && client.address !== undefined
    ? spokenPortsOf(udpRoutesOfOwner(client.address), client.address)
    : [];
}

/** The source of an owner's answers: the VIP of the oldest Service by which it owns the port. */
function answerStep(
  { destination, port }: TraceQuestion,
  asked: OwnedSlices,
  speaker: SpokenPorts | undefined,
): Pick<TraceStep, 'decision' | 'detail'> {
  const vip = speaker?.vip ?? destination;
  const decision = `answers leave as ${socketAddress(vip, port)}, straight from the node of the owner`;
  if (speaker === undefined || vip === destination) return { decision, detail: [] };
  const { serviceKey, owned } = speaker.route;
  const winner = winnerText({ serviceKey, priority: owned?.priority ?? '' }, asked);
  return {
    decision,
    detail: [
      `the pod also owns the port by ${winner}, and speaks as its VIP: a client gets no answer from ${socketAddress(destination, port)}`,
    ],
  };
}

/** The VIP as which a packet leaves; undefined if the source port is not known, or not owned. */
export function speakerOf(
  spoken: readonly SpokenPorts[],
  { sourcePort }: Pick<TraceQuestion, 'sourcePort'>,
): SpokenPorts | undefined {
  if (sourcePort === undefined) return undefined;
  return spoken.find(({ ports }) => ports.some((range) => hasPort(range, 'UDP', sourcePort)));
}

/** The end of an untracked packet from an owned source port to an ordinary Service: only tracked packets are translated. */
export function untrackedEnd({ steps, uncertain }: PathEnd): PathEnd {
  const service = steps.filter(({ step }) => step === 'service' || step === 'sourceRanges');
  const lost: TraceStep = {
    step: 'translation',
    title: 'Translation',
    decision:
      'the source owns its port, so the packet is not tracked, and no Service translates it: it is lost',
    object: null,
    detail: [],
  };
  return { steps: [...service, lost], verdict: 'dropped', endpoints: [], uncertain };
}

function sourceStep(spoken: readonly SpokenPorts[], sourcePort: number): TraceStep {
  const speaker = speakerOf(spoken, { sourcePort });
  const decision =
    speaker === undefined
      ? `the source does not own port ${sourcePort}, which is not changed`
      : `the source becomes ${socketAddress(speaker.vip, sourcePort)}, and the packet is not tracked`;
  const object = speaker === undefined ? null : `Service ${speaker.route.serviceKey}`;
  return { step: 'speaker', title: 'Owned source ports', decision, object, detail: [] };
}

/**
 * Whether packets are tracked also from ports that their source owns: on a VIP with owned UDP ports, all packets that no
 * owner gets (`nftables/owned-chains.ts`).
 */
export function isAlwaysTracked(
  { destination }: TraceQuestion,
  { routes }: TraceContext,
  { steps, verdict }: PathEnd,
): boolean {
  const isToOwner = verdict === 'translated' && steps.some(({ step }) => step === 'slice');
  if (isToOwner) return false;
  return routes.some(
    (route) =>
      route.owned?.ranges.some(({ protocol }) => protocol === 'UDP') === true &&
      vipsOf(route).includes(destination),
  );
}

/** The step of an owner whose packets are tracked from all ports, see `isAlwaysTracked`. */
export function trackedSourceSteps(
  spoken: readonly SpokenPorts[],
  { destination, protocol, port }: TraceQuestion,
): TraceStep[] {
  if (spoken.length === 0) return [];
  return [
    {
      step: 'speaker',
      title: 'Owned source ports',
      decision: `no owner gets packets to ${socketAddress(destination, port)}/${protocol}, so they are tracked, and their source does not become a VIP`,
      object: null,
      detail: [],
    },
  ];
}

/** What becomes of the source, if the pod sends from a port that it owns. */
export function sourceSteps(
  spoken: readonly SpokenPorts[],
  { sourcePort }: Pick<TraceQuestion, 'sourcePort'>,
): TraceStep[] {
  if (sourcePort !== undefined && spoken.length > 0) return [sourceStep(spoken, sourcePort)];
  return spoken.map(({ route, vip, ports }) => {
    const more = ports.length > MAX_PORTS ? ' and others' : '';
    const from = ports.slice(0, MAX_PORTS).map(rangeText).join(', ') + more;
    return {
      step: 'speaker',
      title: 'Owned source ports',
      decision: `from ${from} the source becomes ${vip}, and the packet is not tracked; other source ports are not changed`,
      object: `Service ${route.serviceKey}`,
      detail: [],
    };
  });
}

/** Only tracked packets are translated to endpoints of ordinary Services. */
export function untranslatedSource(end: PathEnd, spoken: readonly SpokenPorts[]): string[] {
  return isTracked(end) && spoken.length > 0
    ? [
        'from UDP ports that the source owns, the packet is not tracked, and no Service translates it: it is lost',
      ]
    : [];
}

/** Whether NAT translates the packet, which needs connection tracking. */
export function isTracked({ steps, verdict }: PathEnd): boolean {
  return verdict === 'translated' && !steps.some(({ step }) => step === 'slice');
}

/** Untracked packets may be answers, which policies of the other direction allow. */
export function untrackedDenial(
  { protocol }: TraceQuestion,
  { steps }: PathEnd,
  isDenied: boolean,
) {
  const isOwned = steps.some(({ step }) => step === 'slice');
  return isDenied && isOwned && protocol === 'UDP'
    ? [
        'the packet passes if policies allow the owner to send to the source, which it may then answer',
      ]
    : [];
}
