/** The resources of network policy in the status API; only with --network-policy. */
import { canonicalAddress } from '../api/addresses.ts';
import { compareText } from '../api/collections.ts';
import { InvalidObject } from '../api/errors.ts';
import type { ObjectKey } from '../api/objects.ts';
import type { Pod } from '../api/policy-objects.ts';
import { readDomainName } from '../api/read-domain-name.ts';
import { rootField } from '../api/read-field.ts';
import { isDnsLabel, isDnsSubdomain } from '../api/read-name.ts';
import { type Access, accessOf, PoliciesChangeError } from '../policy/model/access.ts';
import {
  type ConnectionEnd,
  type ConnectionQuery,
  explain,
  UnknownPodError,
} from '../policy/model/explain.ts';
import type { PolicyModel } from '../policy/model/model.ts';
import { DIRECTIONS, type Direction } from '../policy/model/terms.ts';
import { BackgroundSlice } from '../sync/precedence.ts';
import type {
  PodAccess,
  PodAccessList,
  PodGroup,
  PolicyExplanation,
  PolicySummary,
} from './api/policies.ts';
import { NotFound, type Resources, resource, Unanswerable } from './http/handler.ts';
import { PAGE_PARAMETERS, pageOf } from './http/paging.ts';
import { BadParameter, integer, oneOf, parsed } from './http/parameters.ts';
import type { StatusSources } from './sources.ts';
import { TRACE_PARAMETERS } from './trace/question.ts';
import { familyExplanation, localPod, podAccess } from './views/access.ts';
import { type PolicySources, policySummaries } from './views/policies.ts';

/** Most groups of pods of one answer of `access`; the peers are computed for each. */
const MAX_POD_GROUPS = 4;
/** Most other pods of a group that are named. */
const MAX_OTHERS = 100;

const NAMESPACE = parsed('a namespace', (text) => (isDnsLabel(text) ? text : undefined));
const POD = parsed('namespace/name of a pod', (text) => (isPodKey(text) ? text : undefined));
const FIRST_POD = parsed(
  'field "nextPod" of the previous answer: a pod of parameter namespace, which must be given, too',
  (text) => (isPodKey(text) ? text : undefined),
);
const FROM = parsed('an IP address, or namespace/name of a pod', readPodOrAddress);
const TO = parsed('an IP address, namespace/name of a pod, or a domain name', readEnd);

export function policyResources(
  policy: PolicySources,
  { table, nodeName }: Pick<StatusSources, 'table' | 'nodeName'>,
): Resources {
  const { model, names } = policy;
  return {
    '/api/v1/policies': resource({
      summary: 'Network policies in order of evaluation; only with --network-policy',
      response: 'PolicyList',
      parameters: {
        ...PAGE_PARAMETERS,
        namespace: NAMESPACE,
        state: oneOf<PolicySummary['state']>('ok', 'faulty'),
      },
      handle: (given) => {
        const isSelected = ({ namespace, state }: PolicySummary) =>
          (given.namespace ?? namespace) === namespace && (given.state ?? state) === state;
        return pageOf(policySummaries(policy).filter(isSelected), given);
      },
    }),
    '/api/v1/pods': resource({
      summary: 'Pods of this node, and the network policies that apply; only with --network-policy',
      response: 'LocalPodList',
      parameters: { ...PAGE_PARAMETERS, namespace: NAMESPACE },
      handle: (given) => {
        const { items, ...page } = pageOf(podsOf(model, given.namespace), given);
        return { ...page, items: items.map((pod) => localPod(model, pod)) };
      },
    }),
    '/api/v1/access': resource({
      summary:
        'Who may connect to pods of this node, and where they may connect to, by their policies',
      response: 'PodAccessList',
      parameters: {
        ...PAGE_PARAMETERS,
        pod: POD,
        namespace: NAMESPACE,
        firstPod: FIRST_POD,
        direction: oneOf<Direction>(...DIRECTIONS),
      },
      handle: async (given, { signal }): Promise<PodAccessList> => {
        const { groups, nextPod } = selectedGroups(model, given);
        const directions = given.direction === undefined ? DIRECTIONS : [given.direction];
        const rows: PodAccess[] = [];
        const slice = new BackgroundSlice();
        for (const { pod } of groups) {
          for (const direction of directions) {
            for (const access of await accessOrRefusal(model, pod, direction, signal)) {
              rows.push(podAccess(pod, access));
              // A row may have the names of 10,000 pods.
              await slice.yield();
              signal.throwIfAborted();
            }
          }
        }
        return { ...pageOf(rows, given), podGroups: groups, nextPod };
      },
    }),
    '/api/v1/policies/explain': resource({
      summary: 'Whether network policies allow a connection, and which policy decides',
      response: 'PolicyExplanation',
      parameters: {
        from: FROM,
        to: TO,
        protocol: TRACE_PARAMETERS.protocol,
        port: integer(1, 65_535),
      },
      handle: async ({ from, to, protocol = 'TCP', port }): Promise<PolicyExplanation> => {
        if (from === undefined) throw new BadParameter('from', 'is missing');
        if (to === undefined) throw new BadParameter('to', 'is missing');
        if (port === undefined) throw new BadParameter('port', 'is missing');
        if ('address' in to) await rejectServiceAddress(table, to.address);
        // Other nodes inspect the DNS answers to their pods.
        const source = 'pod' in from ? model.pod(from.pod) : model.podAt(from.address);
        const cache = source?.nodeName === nodeName ? { isFqdnAddress: names.hasPeer } : {};
        const families = explained(model, { from, to, protocol, port, ...cache });
        const isAllowed = families.every(({ verdict }) => verdict === 'allow');
        return { port, protocol, verdict: isAllowed ? 'allow' : 'deny', families };
      },
    }),
  };
}

/** @throws BadParameter for an address of a Service: policies are evaluated after DNAT. */
async function rejectServiceAddress(
  table: StatusSources['table'],
  address: string | undefined,
): Promise<void> {
  if (address === undefined) return;
  const slice = new BackgroundSlice();
  for (const key of [...table.serviceKeys]) {
    if (slice.isOver()) await slice.yield();
    if (table.inspect(key)?.addresses.includes(address) !== true) continue;
    throw new BadParameter(
      'to',
      `belongs to Service ${key}. Policies are evaluated after DNAT: use a backend pod and its target port`,
    );
  }
}

/** Pods of this node in order of their keys. */
function podsOf(model: PolicyModel, namespace: string | undefined): Pod[] {
  return [...model.subjects()]
    .filter((pod) => (namespace ?? pod.namespace) === pod.namespace)
    .sort((a, b) => compareText(a.key, b.key));
}

interface AccessQuery {
  readonly pod: ObjectKey | undefined;
  readonly namespace: string | undefined;
  readonly firstPod: ObjectKey | undefined;
}

/**
 * The pods whose peers are listed. Pods with the same policies are one group, so that a namespace with hundreds of pods
 * has a few.
 * @throws BadParameter, NotFound
 */
function selectedGroups(
  model: PolicyModel,
  { pod, namespace, firstPod }: AccessQuery,
): Pick<PodAccessList, 'nextPod'> & { readonly groups: readonly PodGroup[] } {
  if (pod === undefined && namespace === undefined)
    throw new BadParameter('pod', 'is missing; give a pod or a namespace');
  if (firstPod !== undefined && firstPod.split('/')[0] !== namespace)
    throw new BadParameter('firstPod', 'must be a pod of the namespace of parameter namespace');
  const pods = podsOf(model, namespace);
  if (pod !== undefined) {
    if (!pods.some(({ key }) => key === pod))
      throw new NotFound(`no pod ${pod} that policies can select is on this node`);
    return { groups: [{ pod, others: [], total: 1 }], nextPod: null };
  }
  const groups = [...Map.groupBy(pods, (each) => model.policyKeyOf(each)).values()].map(
    ([first, ...others]): PodGroup => ({
      pod: first?.key ?? '',
      others: others.slice(0, MAX_OTHERS).map(({ key }) => key),
      total: others.length + 1,
    }),
  );
  const rest = groups.filter(
    (each) => firstPod === undefined || compareText(each.pod, firstPod) >= 0,
  );
  return { groups: rest.slice(0, MAX_POD_GROUPS), nextPod: rest[MAX_POD_GROUPS]?.pod ?? null };
}

/** @throws Unanswerable; AbortError if the client has gone. */
async function accessOrRefusal(
  model: PolicyModel,
  pod: ObjectKey,
  direction: Direction,
  signal: AbortSignal,
): Promise<readonly Access[]> {
  try {
    return await accessOf(model, pod, direction, { signal });
  } catch (error) {
    if (error instanceof PoliciesChangeError)
      throw new Unanswerable(409, error.message, { cause: error });
    throw error;
  }
}

/** @throws BadParameter, NotFound */
function explained(model: PolicyModel, query: ConnectionQuery): PolicyExplanation['families'] {
  try {
    const families = explain(model, query).map(familyExplanation);
    if (families.length > 0) return families;
  } catch (error) {
    if (error instanceof UnknownPodError) throw new NotFound(error.message);
    throw error;
  }
  throw new BadParameter('to', 'has no address of an IP family that the source has');
}

function isPodKey(text: string): boolean {
  const [namespace = '', name = '', ...rest] = text.split('/');
  return rest.length === 0 && isDnsLabel(namespace) && isDnsSubdomain(name);
}

function readPodOrAddress(text: string): ConnectionQuery['from'] | undefined {
  const address = canonicalAddress(text);
  if (address !== undefined) return { address };
  return isPodKey(text) ? { pod: text } : undefined;
}

function readEnd(text: string): ConnectionEnd | undefined {
  const end = readPodOrAddress(text);
  if (end !== undefined) return end;
  try {
    const name = readDomainName(rootField('', text));
    return name.startsWith('*') ? undefined : { name };
  } catch (error) {
    if (error instanceof InvalidObject) return undefined;
    throw error;
  }
}
