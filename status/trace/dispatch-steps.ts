/** Steps of a packet that a Service handles: endpoints, affinity, translation, masquerade. Pure. */
import { socketAddress } from '../../api/addresses.ts';
import type { HashInput } from '../../api/load-balancing.ts';
import type { Endpoint } from '../../endpoints/select.ts';
import type { Route } from '../../services/route.ts';
import { SLOTS } from '../../traffic/consistent-hash.ts';
import {
  type HashedEndpoint,
  hashedEndpoint,
  type MasqueradeReason,
  masqueradeOf,
  poolOf,
} from '../../traffic/first-packet.ts';
import type { Dispatch, EndpointPool, TrafficPlan } from '../../traffic/plan.ts';
import type { EndpointStatus } from '../api/services.ts';
import type { TraceEndpoint, TraceStep } from '../api/trace.ts';
import { endpointText } from '../views/text.ts';
import { detectorText } from './client.ts';
import type { PathEnd, TraceContext, TraceQuestion } from './compute.ts';

/** Endpoints to list in one step. */
const MAX_LINES = 50;

export interface DispatchQuestion {
  readonly question: TraceQuestion;
  readonly context: TraceContext;
  readonly route: Route;
  readonly plan: TrafficPlan;
  readonly dispatch: Dispatch;
}

export function dispatchSteps(given: DispatchQuestion): PathEnd {
  const { question, context, plan, dispatch } = given;
  const served = poolOf(dispatch, question.client);
  const endpoints = endpointsStep(given, served);
  if (served.endpoints.length === 0) {
    const isDropped = dispatch.untranslatedVerdict === 'drop';
    return {
      steps: [endpoints],
      verdict: isDropped ? 'dropped' : 'rejected',
      endpoints: [],
      uncertain: [],
    };
  }
  if (question.port === 0) {
    const step = translationStep(given, 'port 0 is never translated: the packet is dropped', []);
    return { steps: [endpoints, step], verdict: 'dropped', endpoints: [], uncertain: [] };
  }
  const hashed = hashedEndpoint(plan, served, question.client, question.sourcePort);
  const pool = hashed === undefined ? served : { ...served, endpoints: [hashed.endpoint] };
  const reasons = pool.endpoints.map((endpoint) =>
    masqueradeOf(dispatch, question.client, endpoint, context.traffic.options),
  );
  const targets = pool.endpoints.map(
    (endpoint, index): TraceEndpoint => ({
      address: endpoint.address,
      port: endpoint.port ?? question.port,
      local: endpoint.isRemote !== true,
      masqueraded: reasons[index]?.masqueraded ?? false,
      policy: null,
      foreignRules: null,
    }),
  );
  return {
    steps: [
      endpoints,
      ...affinitySteps(plan),
      ...hashSteps(given, served, hashed),
      targetStep(given, targets),
      masqueradeStep(given, pool, reasons),
    ],
    verdict: 'translated',
    endpoints: targets,
    uncertain: [],
  };
}

function endpointsStep(
  { question, context, route, dispatch }: DispatchQuestion,
  pool: EndpointPool,
): TraceStep {
  const all = context.endpointsOf(route);
  const used = pool.endpoints.length;
  const who = clientsText(dispatch, question, pool);
  const none =
    dispatch.untranslatedVerdict === 'drop'
      ? 'endpoints exist, but none for this client on this node: the packet is dropped'
      : 'no endpoint serves: the packet is rejected';
  return {
    step: 'endpoints',
    title: 'Endpoints',
    decision: `${used} of ${all.length} endpoints for ${who}${used === 0 ? `; ${none}` : ''}`,
    object: `Service ${route.serviceKey}`,
    detail: limited(all.map((endpoint) => endpointLine(endpoint, pool.set))),
  };
}

function clientsText(
  { podsAndNode, others, masquerade }: Dispatch,
  { client }: TraceQuestion,
  pool: EndpointPool,
): string {
  const field =
    masquerade === 'non-pods' ? 'spec.internalTrafficPolicy' : 'spec.externalTrafficPolicy';
  if (podsAndNode === undefined) {
    return `all clients (${field}: ${others.set === 'local' ? 'Local' : 'Cluster'})`;
  }
  const isInside = client.isPod || client.isNode;
  if (pool === podsAndNode)
    return `pods and this node (${field}: Local applies to other clients only)`;
  const fallback = isInside
    ? 'pods and this node, for which there is no other endpoint'
    : 'clients outside the cluster';
  return `${fallback} (${field}: Local)`;
}

function endpointLine(status: EndpointStatus, set: EndpointPool['set']): string {
  const decision = set === 'local' ? status.localPolicy : status.cluster;
  const text = endpointText({ address: status.address, port: status.port ?? undefined });
  const where = status.node === null ? '' : ` on ${status.node}`;
  return `${text}${where}: ${decision.used ? 'used' : 'not used'}, ${decision.reason}`;
}

function affinitySteps({ affinitySeconds, serviceKey }: TrafficPlan): TraceStep[] {
  if (affinitySeconds === 0) return [];
  return [
    {
      step: 'affinity',
      title: 'Session affinity',
      decision: `a client that connected in the last ${affinitySeconds} seconds gets the same endpoint again`,
      object: `Service ${serviceKey}`,
      detail: ['spec.sessionAffinity: ClientIP'],
    },
  ];
}

const HASH_INPUTS: Readonly<Record<HashInput, string>> = {
  'client-address': "the client's address selects",
  'client-address-and-port': "the client's address and source port select",
};

/** @param hashed undefined if it is not known. */
function hashSteps(
  { plan: { consistentHash: input, serviceKey }, question }: DispatchQuestion,
  { endpoints }: EndpointPool,
  hashed: HashedEndpoint | undefined,
): TraceStep[] {
  if (input === undefined || endpoints.length < 2) return [];
  const { address = '' } = question.client;
  const client = input === 'client-address' ? address : socketAddress(address, question.sourcePort);
  const decision =
    hashed === undefined
      ? `${HASH_INPUTS[input]} the endpoint`
      : `client ${client} has slot ${hashed.slot} of ${SLOTS}, which belongs to ${endpointText(hashed.endpoint)}`;
  return [
    {
      step: 'hash',
      title: 'Consistent hashing',
      decision,
      object: `Service ${serviceKey}`,
      detail: ['portwide.dev/load-balancing'],
    },
  ];
}

function targetStep(given: DispatchQuestion, targets: readonly TraceEndpoint[]): TraceStep {
  const texts = targets.map(({ address, port }) => socketAddress(address, port));
  const decision =
    texts.length === 1
      ? `the destination becomes ${texts[0]} (DNAT)`
      : `the destination becomes one of ${texts.length} endpoints ${given.plan.consistentHash === undefined ? 'at random' : 'by hash'} (DNAT)`;
  return translationStep(given, decision, texts.length === 1 ? [] : limited(texts));
}

function translationStep(
  { route }: DispatchQuestion,
  decision: string,
  detail: readonly string[],
): TraceStep {
  const object = `Service ${route.serviceKey}`;
  return { step: 'translation', title: 'Translation', decision, object, detail };
}

/** Reasons for people. */
export const MASQUERADE: Readonly<Record<MasqueradeReason['why'], string>> = {
  all: 'clients of external addresses and node ports are masqueraded (spec.externalTrafficPolicy: Cluster)',
  'masquerade-all': '--masquerade-all',
  'non-pod': 'the source is not a pod, and the pod could not reply through this node otherwise',
  node: "this node's own connection, whose source may be the VIP",
  hairpin: 'the endpoint is the client itself (hairpin)',
  'remote owner':
    'the source is not a pod, and the owner is on another node: its answer must come back through this node',
  'local owner': 'the owner is on this node, so its answer passes this node',
  pod: 'the source is a pod',
  'no detector': 'pods cannot be detected, so clients of cluster IPs keep their address',
  'traffic policy': 'spec.externalTrafficPolicy: Local keeps the source address',
};

function masqueradeStep(
  { question, context, route }: DispatchQuestion,
  { endpoints }: EndpointPool,
  reasons: readonly MasqueradeReason[],
): TraceStep {
  const by = (masqueraded: boolean) =>
    endpoints.filter((_, index) => reasons[index]?.masqueraded === masqueraded);
  const [yes, no] = [by(true), by(false)];
  const whys = [...new Set(reasons.map(({ why }) => why))];
  return {
    step: 'masquerade',
    title: 'Masquerade',
    decision: masqueradeText(yes, no, question),
    object: `Service ${route.serviceKey}`,
    detail: [
      ...whys.map((why) => MASQUERADE[why]),
      detectorText(context.traffic.options.localDetector),
    ],
  };
}

function masqueradeText(
  yes: readonly Endpoint[],
  no: readonly Endpoint[],
  { client }: TraceQuestion,
): string {
  const source = client.address ?? 'the source address';
  if (no.length === 0) return `the endpoint sees an address of this node instead of ${source}`;
  if (yes.length === 0) return `the endpoint sees ${source}`;
  return `${yes.map(endpointText).join(', ')} sees an address of this node; the others see ${source}`;
}

function limited(lines: readonly string[]): string[] {
  if (lines.length <= MAX_LINES) return [...lines];
  return [...lines.slice(0, MAX_LINES), `and ${lines.length - MAX_LINES} more`];
}
