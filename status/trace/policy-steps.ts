/** Steps of network policies. They are evaluated after DNAT and before masquerade. Pure. */

import { isLoopback, socketAddress } from '../../api/addresses.ts';
import type { Protocol } from '../../api/objects.ts';
import type { DirectionVerdict, Explanation } from '../../policy/model/explain.ts';
import type { TraceEndpoint, TraceStep } from '../api/trace.ts';
import type { PathEnd, TraceQuestion } from './compute.ts';

/** Evaluates network policies, see `explain`; undefined if the addresses have no common family. */
export type PolicyCheck = (connection: {
  /** What policies of the source see; undefined: an unknown address outside the cluster. */
  readonly from: string | undefined;
  /** What policies of the destination see: another node sees an address of this node if the source is masqueraded. */
  readonly seenAs: string | undefined;
  readonly to: string;
  readonly protocol: Protocol;
  readonly port: number;
}) => Evaluated | undefined;

type Evaluated = Pick<Explanation, 'verdict' | 'egress' | 'ingress'>;

export interface PolicyResult {
  readonly steps: readonly TraceStep[];
  readonly endpoints: readonly TraceEndpoint[];
  /** Every endpoint is denied. */
  readonly isDenied: boolean;
  readonly uncertain: readonly string[];
}

/** Endpoints whose policies are listed. */
const MAX_LINES = 50;

export function policySteps(
  { client, destination, protocol, port }: TraceQuestion,
  { verdict, endpoints }: PathEnd,
  check: PolicyCheck | undefined,
  nodeAddress: string | undefined,
): PolicyResult {
  // A node may connect to its own pods from each of its addresses; policies know the addresses of its Node object.
  const isLocalhost = client.address !== undefined && isLoopback(client.address);
  const from = isLocalhost ? nodeAddress : client.address;
  const isSent = verdict === 'translated' || verdict === 'untouched';
  if (check === undefined || !isSent)
    return { steps: [], endpoints, isDenied: false, uncertain: [] };
  const untranslated = { address: destination, port, local: true, masqueraded: false };
  const targets = verdict === 'translated' ? endpoints : [untranslated];
  const checked = targets.map(({ address, port: to, local, masqueraded }) => {
    const seenAs = masqueraded && !local ? (nodeAddress ?? from) : from;
    return {
      target: socketAddress(address, to),
      explained: check({ from, seenAs, to: address, protocol, port: to }),
    };
  });
  const verdicts = checked.map(({ explained }) =>
    explained === undefined ? 'allow' : verdictOf(explained, from),
  );
  const uncertain = checked.flatMap(({ explained }) =>
    explained === undefined ? [] : [...explained.egress.uncertain, ...explained.ingress.uncertain],
  );
  const what = from === undefined ? 'the source address' : 'the addresses of a domain name';
  return {
    steps: (['egress', 'ingress'] as const).map((direction) =>
      directionStep(direction, checked, from),
    ),
    endpoints: endpoints.map((endpoint, index) => ({
      ...endpoint,
      policy: verdicts[index] ?? 'allow',
    })),
    isDenied: verdicts.every((each) => each === 'deny'),
    uncertain: [...new Set(uncertain)].map(
      (rule) => `${rule} may decide otherwise: it depends on ${what}`,
    ),
  };
}

/** Of an unknown source, only that is a verdict which all addresses outside the cluster get. */
function verdictOf(
  { verdict, ingress }: Evaluated,
  from: string | undefined,
): 'allow' | 'deny' | 'depends' {
  return from === undefined && ingress.uncertain.length > 0 ? 'depends' : verdict;
}

interface Checked {
  readonly target: string;
  readonly explained: Evaluated | undefined;
}

interface Found {
  readonly target: string;
  readonly verdict: DirectionVerdict;
}

function directionStep(
  direction: 'egress' | 'ingress',
  checked: readonly Checked[],
  from: string | undefined,
): TraceStep {
  const found = checked.flatMap(({ target, explained }) =>
    explained === undefined ? [] : [{ target, verdict: explained[direction] }],
  );
  const depending = from === undefined ? found.filter(isUncertain) : [];
  const denied = found.filter(
    (each) => each.verdict.verdict === 'deny' && !depending.includes(each),
  );
  const [first] = [...denied, ...depending, ...found];
  const end = direction === 'egress' ? 'the source' : 'the endpoint';
  return {
    step: `${direction}Policy`,
    title: direction === 'egress' ? 'Egress policy' : 'Ingress policy',
    decision: `policies of ${end} ${decisionText(found.length, denied.length, depending.length)}`,
    object: first?.verdict.policies[0] ?? null,
    detail: [...detailLines(found), ...notLearnedLines(found)],
  };
}

function isUncertain({ verdict }: Found): boolean {
  return verdict.uncertain.length > 0;
}

function decisionText(all: number, denied: number, depending: number): string {
  if (depending > 0) return 'decide by the source address, which is unknown';
  if (denied === 0) return 'allow the connection';
  return denied === all ? 'deny the connection' : `deny ${denied} of ${all} endpoints`;
}

/** Rules that do not match because the agent saw no DNS answer with the address. */
function notLearnedLines(found: readonly Found[]): string[] {
  return found
    .flatMap(({ target, verdict }) =>
      verdict.notLearned.map(
        (rule) =>
          `${rule} does not match: this agent saw no DNS answer for it with the address of ${target}`,
      ),
    )
    .slice(0, MAX_LINES);
}

/** One line if all endpoints have the same reason. */
function detailLines(found: readonly Found[]): string[] {
  const reasons = new Set(found.map(({ verdict }) => verdict.reason));
  if (reasons.size === 1) return [...reasons];
  return found
    .slice(0, MAX_LINES)
    .map(({ target, verdict }) => `${target}: ${verdict.verdict}, ${verdict.reason}`);
}
