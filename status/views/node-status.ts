/** The state of the agent and of its node as a resource of the status API. */
import type { IpFamily, ObjectKey } from '../../api/objects.ts';
import type { Problem } from '../api/common.ts';
import type { FamilyStatus, NodeStatus, ServiceCounts, SourceStatus } from '../api/node-status.ts';
import type { PolicyStatus } from '../api/policies.ts';
import type { ServiceState } from '../api/services.ts';
import type { StatusSources } from '../sources.ts';
import { policyStatus } from './policies.ts';
import { hasEndpoints } from './services.ts';
import { timeText } from './text.ts';
import { UNBOUND_HEALTH_PORT, unboundHealthPortProblem } from './unbound-health-port.ts';
import { unreadableProblem } from './unreadable.ts';

/** Refused Services to list. */
const MAX_REFUSALS = 50;
/** Faulty objects and manifests to list, and health check node ports that cannot be bound. */
const MAX_FAULTS = 50;
/** Milliseconds after which a closed watch or a waiting change is a problem. */
const PATIENCE = 30_000;

/** @param now milliseconds since 1970. */
export async function nodeStatus(sources: StatusSources, now: number): Promise<NodeStatus> {
  const { table, policy } = sources;
  const waitingFor = [...sources.missingInputs()];
  const families = sources.families.map((family) => familyStatus(sources, family));
  const source = sourceStatus(sources);
  const features = await sources.kernelFeatures();
  const policies = policy === undefined ? null : policyStatus(policy);
  const areNamesObserved = policy?.names.isNotObserving() !== true;
  const isStarting =
    waitingFor.length > 0 || families.length === 0 || families.some(({ lastSync }) => !lastSync);
  const refusals = [...table.refusals()];
  const problems = [
    ...families.flatMap((family) => familyProblems(family, now)),
    ...sourceProblems(sources, now),
    ...limited('Unreadable', sources.sourceFaults(), unreadableProblem),
    ...limited(UNBOUND_HEALTH_PORT, sources.unboundHealthPorts(), unboundHealthPortProblem),
    ...features.filter(({ ok }) => !ok).map(featureProblem),
    ...[...sources.remainingState()].flatMap(({ problem: text }) =>
      text === undefined ? [] : [problem('Leftover', text)],
    ),
    ...policyProblems(policies, areNamesObserved),
    ...refusals.slice(0, MAX_REFUSALS).map(
      ({ serviceKey, reason, field, message }): Problem => ({
        reason: `Refused${reason}`,
        message: `${field}: ${message}`,
        object: `Service ${serviceKey}`,
        family: null,
      }),
    ),
  ];
  return {
    version: sources.version,
    nodeName: sources.nodeName,
    zone: table.topology.zone ?? null,
    startedAt: timeText(sources.startedAt),
    statusSocket: sources.statusSocket ?? null,
    now: timeText(now),
    mode: sources.mode,
    state: stateOf(isStarting, problems),
    problems,
    waitingFor,
    families,
    source,
    kernel: { release: sources.kernelRelease, features },
    services: serviceCounts(sources),
    refusals: refusals.slice(0, MAX_REFUSALS).map(({ serviceKey, reason, field, message }) => ({
      service: serviceKey,
      reason,
      field,
      message,
    })),
    policy: policies,
  };
}

function stateOf(isStarting: boolean, problems: readonly Problem[]): NodeStatus['state'] {
  if (problems.length > 0) return 'degraded';
  return isStarting ? 'starting' : 'healthy';
}

function problem(reason: string, message: string, family: IpFamily | null = null): Problem {
  return { reason, message, object: null, family };
}

function familyStatus({ syncs, backends }: StatusSources, family: IpFamily): FamilyStatus {
  const { lastSync, lastFullSync, waitingSince, failure, drift } = syncs.family(family);
  const backend = backends().find((each) => each.family === family);
  return {
    family,
    lastSync: lastSync === undefined ? null : timeText(lastSync.at),
    lastSyncSeconds: lastSync?.seconds ?? null,
    lastFullSync: lastFullSync === undefined ? null : timeText(lastFullSync.at),
    lastFullSyncSeconds: lastFullSync?.seconds ?? null,
    lastWritten: lastSync?.written ?? null,
    waitingSince: waitingSince === undefined ? null : timeText(waitingSince),
    failure: failure === undefined ? null : { ...failure, at: timeText(failure.at) },
    lastDrift:
      drift === undefined
        ? null
        : { at: timeText(drift.at), change: drift.message, count: drift.count },
    watchesChanges: backend?.watchesChanges === true,
  };
}

function familyProblems(status: FamilyStatus, now: number): Problem[] {
  const { family, failure, waitingSince } = status;
  if (failure !== null) {
    const times = failure.count === 1 ? '' : ` (${failure.count} attempts)`;
    return [problem('SyncFailed', `rules cannot be written${times}: ${failure.message}`, family)];
  }
  if (waitingSince === null || now - Date.parse(waitingSince) < PATIENCE) return [];
  return [problem('SyncWaits', `a change waits for a sync since ${waitingSince}`, family)];
}

function sourceStatus({ manifests, watches, table, kinds }: StatusSources): SourceStatus {
  const isManifests = manifests !== undefined;
  return {
    kind: isManifests ? 'manifests' : 'API server',
    location: manifests ?? watches.server ?? '',
    hasNode: table.node !== undefined,
    kinds: [...new Set([...kinds, ...watches.kinds.keys()])].map((kind) => ({
      kind,
      synced: !table.unsynced.has(kind),
      watching: isManifests ? null : watches.kinds.get(kind)?.isOpen === true,
    })),
  };
}

function sourceProblems({ manifests, watches }: StatusSources, now: number): Problem[] {
  if (manifests !== undefined) return [];
  const closed = [...watches.kinds].filter(
    ([, { isOpen, since }]) => !isOpen && now - since >= PATIENCE,
  );
  if (closed.length === 0) return [];
  const since = timeText(Math.min(...closed.map(([, state]) => state.since)));
  const kinds = closed.map(([kind]) => `${kind}s`).join(', ');
  return [
    problem(
      'WatchDown',
      `no watch of ${kinds} since ${since}; rules stay as they are. Check the API server ${watches.server ?? ''}`.trim(),
    ),
  ];
}

/** The problem of each fault; beyond `MAX_FAULTS` only their number. */
function limited<Fault>(
  reason: string,
  faults: Iterable<Fault>,
  problemOf: (fault: Fault) => Problem,
): Problem[] {
  const problems: Problem[] = [];
  let count = 0;
  for (const fault of faults) {
    count += 1;
    if (count <= MAX_FAULTS) problems.push(problemOf(fault));
  }
  if (count > MAX_FAULTS) {
    problems.push(problem(reason, `and ${count - MAX_FAULTS} more, see the log`));
  }
  return problems;
}

function featureProblem({ name, value, note }: { name: string; value: string; note: string }) {
  return problem('Kernel', `${name} ${value}: ${note}`);
}

/** Derived from all Routes, so it is kept until the table changes. */
const stateCounts = new WeakMap<object, { revision: number; counts: StateCounts }>();
type StateCounts = Pick<ServiceCounts, 'total' | ServiceState>;

/** As `serviceState`, but without a look at each Service. */
function countStates(table: StatusSources['table']): StateCounts {
  const { revision } = table;
  const known = stateCounts.get(table);
  if (known?.revision === revision) return known.counts;
  const withRefusals = new Set<ObjectKey>();
  for (const { serviceKey } of table.refusals()) withRefusals.add(serviceKey);
  const withRoutes = new Set<ObjectKey>();
  const filled = new Set<ObjectKey>();
  const empty = new Set<ObjectKey>();
  for (const route of table.routes()) {
    const { serviceKey } = route;
    withRoutes.add(serviceKey);
    if (!withRefusals.has(serviceKey)) (hasEndpoints(route) ? filled : empty).add(serviceKey);
  }
  const total = table.serviceCount;
  const partial = commonSize(empty, filled);
  const partlyRefused = commonSize(withRefusals, withRoutes);
  const counts: StateCounts = {
    total,
    served: filled.size - partial,
    partial,
    noEndpoints: empty.size - partial,
    partlyRefused,
    refused: withRefusals.size - partlyRefused,
    ignored: total - withRoutes.size - (withRefusals.size - partlyRefused),
  };
  stateCounts.set(table, { revision, counts });
  return counts;
}

function commonSize(a: ReadonlySet<ObjectKey>, b: ReadonlySet<ObjectKey>): number {
  let size = 0;
  for (const key of a) if (b.has(key)) size += 1;
  return size;
}

function serviceCounts({ table }: StatusSources): ServiceCounts {
  const { all, ranges } = table.routeCounts.allPortsServices();
  const { Service, EndpointSlice } = table.changeCounts;
  return {
    ...countStates(table),
    allPorts: all,
    portRanges: ranges,
    pendingChanges: Service.pending + EndpointSlice.pending,
    routes: table.routeCounts.routes().reduce((sum, { count }) => sum + count, 0),
  };
}

function policyProblems(status: PolicyStatus | null, areNamesObserved: boolean): Problem[] {
  if (status === null) return [];
  const { failure, faulty } = status;
  return [
    ...(failure === null
      ? []
      : [problem('PolicyFailed', `network policies cannot be written: ${failure.message}`)]),
    ...(faulty === 0
      ? []
      : [problem('PolicyFaulty', `${faulty} policies have a part that fails closed`)]),
    ...(areNamesObserved
      ? []
      : [
          problem(
            'DnsNotInspected',
            'policies have domain names, and DNS answers are not inspected, so no new address is allowed; set --fqdn-resolvers if Service kube-system/kube-dns has no cluster IP, or see the log',
          ),
        ]),
  ];
}
