/**
 * Computes the path of the first packet of a connection from Routes, TrafficPlans and policies. `traffic/`, `endpoints/` and
 * `policy/model/explain.ts` decide; this file puts their decisions in words. Pure.
 */
import { cidrContains, isLoopback, socketAddress } from '../../api/addresses.ts';
import type { IpFamily, Protocol } from '../../api/objects.ts';
import { rangeText } from '../../api/ports.ts';
import type { EndpointWithoutSlice } from '../../endpoints/slice-owners.ts';
import type { BackendTraffic } from '../../proxier/kernel-rule.ts';
import type { Route } from '../../services/route.ts';
import {
  handlerOf,
  isSourceAllowed,
  type NodeSide,
  type PacketHandler,
  type SpokenPorts,
} from '../../traffic/first-packet.ts';
import type { Dispatch, TrafficPlan } from '../../traffic/plan.ts';
import type { EndpointStatus } from '../api/services.ts';
import type { ComputedTrace, TraceEndpoint, TraceStep, TraceVerdict } from '../api/trace.ts';
import type { RouteProblem } from '../views/services.ts';
import type { TraceClient } from './client.ts';
import { dispatchSteps } from './dispatch-steps.ts';
import { nodePortEnd } from './localhost-step.ts';
import type { Doubts } from './outcome.ts';
import {
  isAlwaysTracked,
  isTracked,
  ownedSteps,
  sourceSteps,
  speakerOf,
  speaksAs,
  trackedSourceSteps,
  untrackedDenial,
  untrackedEnd,
  untranslatedSource,
} from './owned-steps.ts';
import { type PolicyCheck, policySteps } from './policy-steps.ts';
import { type RefusedService, refusalOf, refusalStep } from './refusal-steps.ts';
import { rejectsOtherPorts, serviceStep } from './service-step.ts';

/** The connection to trace. */
export interface TraceQuestion {
  readonly family: IpFamily;
  readonly client: TraceClient;
  /** Before DNAT. */
  readonly destination: string;
  readonly protocol: Protocol;
  readonly port: number;
  /** undefined: not asked for. */
  readonly sourcePort?: number | undefined;
}

/** What the computation depends on, for one IP family. */
export interface TraceContext {
  /** Routes with the destination as VIP, and Routes with a node port. */
  readonly routes: readonly Route[];
  readonly nodeAddresses: readonly string[];
  readonly traffic: BackendTraffic;
  /** Routes by which the endpoint with an address owns UDP ports. */
  readonly udpRoutesOfOwner: (address: string) => readonly Route[];
  /** The endpoints of a Route, with the decision about each. */
  readonly endpointsOf: (route: Route) => readonly EndpointStatus[];
  /** Endpoints of a Route with owned ports that own nothing. */
  readonly withoutSlice: (route: Route) => readonly EndpointWithoutSlice[];
  /** Problems of clients of a Route. */
  readonly problemsOf: (route: Route) => readonly RouteProblem[];
  /** Services that ask for the destination and do not get it. */
  readonly refused: readonly RefusedService[];
  /** A cluster IP near the destination, which is then probably in the Service range; undefined: there is none. */
  readonly nearClusterIP: string | undefined;
  /** undefined without network policy. */
  readonly policy: PolicyCheck | undefined;
}

/** The end of a path before policies. */
export interface PathEnd {
  readonly steps: readonly TraceStep[];
  readonly verdict: Exclude<TraceVerdict, 'denied'>;
  readonly endpoints: readonly TraceEndpoint[];
  readonly uncertain: readonly string[];
}

/** A path, and what else decides about packets on it. */
export interface TracedPath {
  readonly path: ComputedTrace;
  /** Whether IPVS translates the packet, see `ModeTraffic`. */
  readonly forwardsWithIpvs: boolean;
  /** The VIP that replaces the source, if the source port is known and the source owns it. */
  readonly speaksAs: string | undefined;
  readonly doubts: Doubts;
}

export function computeTrace(question: TraceQuestion, context: TraceContext): TracedPath {
  const { forwardsWithIpvs, translatesByRules } = context.traffic;
  const node: NodeSide = {
    addresses: context.nodeAddresses,
    isNodePortAddress: context.traffic.isNodePortAddress,
  };
  const handler = handlerOf(context.routes, question, node);
  const isByRules = 'route' in handler && translatesByRules?.(handler.route) === true;
  const local = handler.by === 'nothing' ? nodePortEnd(question, context) : undefined;
  const served =
    local === undefined
      ? handlerEnd(question, context, handler)
      : { ...local, endpoints: [], uncertain: [] };
  const owned = speaksAs(question, context);
  const spoken = isAlwaysTracked(question, context, served) ? [] : owned;
  const speaker = speakerOf(spoken, question);
  const end = speaker !== undefined && isTracked(served) ? untrackedEnd(served) : served;
  const sources =
    spoken === owned ? sourceSteps(spoken, question) : trackedSourceSteps(owned, question);
  const refusal = refusalOf(handler, question, context.refused);
  const unserved =
    local === undefined
      ? isUnserved(question, context, end, handler, refusal)
      : local.verdict === 'untouched' && !local.isServed;
  return {
    ...computePath(question, context, { ...end, refusal, unserved }, spoken, sources),
    forwardsWithIpvs: forwardsWithIpvs && !isByRules,
    speaksAs: speaker?.vip,
  };
}

/** @param spoken the VIPs that replace the source. @param sources steps about the source. */
function computePath(
  question: TraceQuestion,
  context: TraceContext,
  end: MeantEnd,
  spoken: readonly SpokenPorts[],
  sources: readonly TraceStep[],
): Pick<TracedPath, 'path' | 'doubts'> {
  const { family, client, destination } = question;
  const policies = policySteps(question, end, context.policy, context.nodeAddresses[0]);
  const verdict = policies.isDenied ? 'denied' : end.verdict;
  const refusals = end.refusal === undefined ? [] : [refusalStep(end.refusal, destination)];
  const result = resultStep(verdict, end, policies.endpoints, question, context.nodeAddresses);
  const answered = untrackedDenial(question, end, policies.isDenied);
  const untranslated = question.sourcePort === undefined ? untranslatedSource(end, spoken) : [];
  const path: ComputedTrace = {
    family,
    source: client.address ?? null,
    destination,
    steps: [...refusals, client.step, ...end.steps, ...policies.steps, ...sources, result],
    verdict,
    unserved: end.unserved,
    endpoints: policies.endpoints,
    speaksAs: spoken.map(({ vip, ports }) => ({ vip, ports: ports.map(rangeText) })),
    uncertain: [
      ...client.uncertain,
      ...end.uncertain,
      ...policies.uncertain,
      ...answered,
      ...untranslated,
    ],
  };
  // Only clients outside are dropped by traffic policy Local, and not all sources by source ranges.
  const byClient = verdict === 'dropped' ? client.uncertain : [];
  const isAny = (...texts: readonly (readonly string[])[]) => texts.flat().length > 0;
  const doubts = {
    mayPass: isAny(byClient, policies.uncertain, answered),
    mayFail: client.isVip || isAny(end.uncertain, policies.uncertain, untranslated),
  };
  return { path, doubts };
}

/** The end of a path whose packet may be meant for a Service that does not get it. */
interface MeantEnd extends PathEnd {
  readonly refusal: RefusedService | undefined;
  /** See `ComputedTrace`. */
  readonly unserved: boolean;
}

function isUnserved(
  { destination }: TraceQuestion,
  { nodeAddresses, nearClusterIP }: TraceContext,
  { verdict }: PathEnd,
  { by }: PacketHandler,
  refusal: RefusedService | undefined,
): boolean {
  if (refusal?.isNamed === true) return true;
  if (verdict !== 'untouched' || by === 'health check') return false;
  if (isLoopback(destination) || nodeAddresses.includes(destination)) return false;
  return by === 'other ports' || refusal !== undefined || nearClusterIP !== undefined;
}

function handlerEnd(
  question: TraceQuestion,
  context: TraceContext,
  handler: PacketHandler,
): PathEnd {
  const service = serviceStep(handler, question, context);
  switch (handler.by) {
    case 'vip':
      return served(
        question,
        context,
        service,
        handler.route,
        handler.plan,
        handler.vip.dispatch,
        handler.vip,
      );
    case 'node port':
      return served(
        question,
        context,
        service,
        handler.route,
        handler.plan,
        handler.nodePort.dispatch,
      );
    case 'health check':
      return end([service], 'untouched');
    case 'outside ranges':
      return end([service], 'rejected');
    case 'other ports':
      return end(
        [service],
        rejectsOtherPorts(handler.routes, question, context) ? 'rejected' : 'untouched',
      );
    case 'nothing': {
      const isDropped = context.traffic.serviceCidrs.some((cidr) =>
        cidrContains(cidr, question.destination),
      );
      return end([service], isDropped ? 'dropped' : 'untouched');
    }
  }
}

function end(steps: readonly TraceStep[], verdict: PathEnd['verdict']): PathEnd {
  return { steps, verdict, endpoints: [], uncertain: [] };
}

function served(
  question: TraceQuestion,
  context: TraceContext,
  service: TraceStep,
  route: Route,
  plan: TrafficPlan,
  dispatch: Dispatch,
  vip?: TrafficPlan['vips'][number],
): PathEnd {
  const sources = vip && sourceRangesStep(vip, question.client, route);
  if (sources?.isAllowed === false) return end([service, sources.step], 'dropped');
  const rest =
    route.owned === undefined
      ? dispatchSteps({ question, context, route, plan, dispatch })
      : ownedSteps(question, context, route, route.owned);
  return {
    ...rest,
    steps: [service, ...(sources === undefined ? [] : [sources.step]), ...rest.steps],
    uncertain: [...(sources?.uncertain ?? []), ...rest.uncertain],
  };
}

/** @returns undefined if all sources are allowed. */
function sourceRangesStep(
  vip: TrafficPlan['vips'][number],
  client: TraceClient,
  { serviceKey }: Route,
) {
  if (vip.sources === undefined) return undefined;
  const isAllowed = isSourceAllowed(vip, client);
  const ranges = [...vip.sources.ranges, ...vip.sources.ownVips].join(', ');
  const field = 'spec.loadBalancerSourceRanges';
  const decisions = {
    true: `${client.address} is in ${field}`,
    false: `${client.address} is not in ${field}: the packet is dropped`,
    undefined: `only sources in ${field} are allowed`,
  };
  const step: TraceStep = {
    step: 'sourceRanges',
    title: 'Source ranges',
    decision: decisions[`${isAllowed}`],
    object: `Service ${serviceKey}`,
    detail: [`allowed: ${ranges}`],
  };
  const uncertain =
    isAllowed === undefined ? [`the packet is dropped unless its source is in ${ranges}`] : [];
  return { isAllowed, step, uncertain };
}

const RESULTS: Readonly<Record<Exclude<TraceVerdict, 'translated' | 'untouched'>, string>> = {
  rejected: 'the packet is rejected (ICMP port unreachable)',
  dropped: 'the packet is dropped without an answer',
  denied: 'network policies deny the connection: the packet is dropped without an answer',
};

function resultStep(
  verdict: TraceVerdict,
  { steps, unserved }: MeantEnd,
  endpoints: readonly TraceEndpoint[],
  { destination, protocol, port }: TraceQuestion,
  nodeAddresses: readonly string[],
): TraceStep {
  const decider = steps.at(-1)?.object ?? null;
  const base = { step: 'result', title: 'Result', object: decider } as const;
  if (verdict === 'untouched' && unserved) {
    const where =
      isLoopback(destination) || nodeAddresses.includes(destination)
        ? 'stays on this node, which refuses it unless a process listens on the port'
        : 'goes on untranslated, where the routes of this node lead it';
    return { ...base, decision: `no endpoint gets the packet: it ${where}`, detail: [] };
  }
  if (verdict === 'untouched') {
    const decision = `the packet goes to ${socketAddress(destination, port)}/${protocol} itself`;
    return { ...base, decision, detail: [] };
  }
  if (verdict !== 'translated') return { ...base, decision: RESULTS[verdict], detail: [] };
  return { ...base, decision: reachesText(endpoints), detail: [] };
}

/** The result of a translated packet, some of whose endpoints may be out of reach. */
export function reachesText(endpoints: readonly TraceEndpoint[]): string {
  const all = endpoints.length;
  const allowed = endpoints.filter(({ policy }) => policy !== 'deny').length;
  const dropped = endpoints.filter(({ foreignRules }) => foreignRules === 'drop').length;
  const [target = ''] = endpoints.map(({ address, port: to }) => socketAddress(address, to));
  const failures = [
    ...(allowed < all ? [`policies allow ${allowed} of ${all} endpoints`] : []),
    ...(dropped > 0
      ? [`rules of other programs drop packets to ${dropped} of ${all} endpoints`]
      : []),
  ];
  const some = failures.length === 0 ? '' : ', so some connections fail';
  const reached = `the packet reaches ${all === 1 ? target : `one of ${all} endpoints`}`;
  return `${[reached, ...failures].join('; ')}${some}`;
}
