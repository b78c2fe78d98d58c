/** The output of `portwide status`. Pure. */
import type { Problem, Time } from '../api/common.ts';
import type { FamilyStatus, KernelFeature, NodeStatus, ServiceCounts } from '../api/node-status.ts';
import { linesOf, type Section, sectionsText } from './sections.ts';
import { type Style, safe } from './style.ts';
import { type Column, tableText } from './table.ts';
import { age, ago, counted, NONE, shortDuration } from './units.ts';

const FAMILY_COLUMNS: readonly Column<FamilyStatus>[] = [
  { header: 'FAMILY', cell: ({ family }) => family },
  { header: 'LAST-SYNC', cell: ({ lastSync }, now) => ago(lastSync, now) },
  { header: 'DURATION', cell: ({ lastSyncSeconds }) => shortDuration(lastSyncSeconds) },
  {
    header: 'WRITTEN',
    cell: ({ lastWritten }) => (lastWritten === null ? NONE : `${lastWritten}`),
  },
  { header: 'FULL-SYNC', cell: ({ lastFullSync }, now) => ago(lastFullSync, now) },
  {
    header: 'WAITING',
    cell: ({ waitingSince }, now) => (waitingSince === null ? NONE : age(waitingSince, now)),
  },
  { header: 'FAILURES', cell: ({ failure }) => `${failure?.count ?? 0}` },
  {
    header: 'DRIFT',
    cell: ({ lastDrift }, now) => driftText(lastDrift, now),
  },
];

function driftText(drift: FamilyStatus['lastDrift'], now: number): string {
  return drift === null ? NONE : `${drift.count}, ${ago(drift.at, now)}: ${drift.change}`;
}

const FEATURE_COLUMNS: readonly Column<KernelFeature>[] = [
  { header: 'FEATURE', cell: ({ name }) => name },
  { header: 'OK', cell: ({ ok }) => (ok ? 'yes' : 'no'), isState: true },
  { header: 'VALUE', cell: ({ value }) => value },
  { header: 'NOTE', cell: ({ note }) => note || NONE },
];

const PROBLEM_COLUMNS: readonly Column<Problem>[] = [
  { header: 'REASON', cell: ({ reason }) => reason },
  { header: 'OBJECT', cell: ({ object, family }) => object ?? family ?? NONE },
  { header: 'MESSAGE', cell: ({ message }) => message },
];

/** Columns of one row for a node, for a table of several nodes. */
export const NODE_COLUMNS: readonly Column<NodeStatus>[] = [
  { header: 'STATE', cell: ({ state }) => state, isState: true },
  { header: 'MODE', cell: ({ mode }) => mode.name },
  { header: 'VERSION', cell: ({ version }) => version },
  { header: 'UPTIME', cell: ({ startedAt }, now) => age(startedAt, now) },
  { header: 'SERVICES', cell: ({ services }) => `${services.served}/${services.total}` },
  { header: 'REFUSED', cell: ({ services }) => `${services.refused}` },
  {
    header: 'LAST-SYNC',
    cell: ({ families }, now) => ago(earliest(families.map(({ lastSync }) => lastSync)), now),
  },
  {
    header: 'PROBLEMS',
    cell: ({ problems }) => [...new Set(problems.map(({ reason }) => reason))].join(',') || NONE,
  },
];

/** The earliest time; null if one is missing. */
function earliest(times: readonly (Time | null)[]): Time | null {
  return times.includes(null) ? null : (times.toSorted()[0] ?? null);
}

/** Lines of problems, without headers. */
export function problemLines(problems: readonly Problem[]): string[] {
  return linesOf(tableText(PROBLEM_COLUMNS, problems, 0, { noHeaders: true }));
}

/** @param isWide also prints kernel features without a note. */
export function nodeStatusText(status: NodeStatus, style: Style, isWide: boolean): string {
  const { problems, waitingFor, families, kernel, policy } = status;
  const now = Date.parse(status.now);
  const features = kernel.features.filter(({ ok, note }) => isWide || !ok || note !== '');
  const sections: Section[] = [
    ['Node', safe(`${status.nodeName}${status.zone === null ? '' : `, zone ${status.zone}`}`)],
    ['State', style(status.state)],
    ...(problems.length === 0 ? [] : [['Problems', problemLines(problems)] as const]),
    ...(waitingFor.length === 0 ? [] : [['Waiting for', safe(waitingFor.join(', '))] as const]),
    ['Version', safe(`${status.version}, started ${ago(status.startedAt, now)}`)],
    ['Mode', safe(`${status.mode.name} (${status.mode.reason})`)],
    ['Source', safe(sourceText(status))],
    ['Services', serviceCountsText(status.services)],
    ['Policies', safe(policyText(policy, now))],
    ['Kernel', safe(kernel.release)],
    ['Features', linesOf(tableText(FEATURE_COLUMNS, features, now, { style }))],
    ['Syncs', linesOf(tableText(FAMILY_COLUMNS, families, now))],
  ];
  return sectionsText(sections.filter(([label]) => label !== 'Features' || features.length > 0));
}

function sourceText({ nodeName, source: { kind, location, hasNode, kinds } }: NodeStatus): string {
  const states = kinds.map(({ kind: each, synced, watching }) => {
    if (!synced) return `${each} not listed yet`;
    // An older agent does not say whether it has the Node.
    if (each === 'Node' && hasNode === false) return `no Node ${nodeName}`;
    const name = each === 'Node' ? `Node ${nodeName}` : each;
    return watching === false ? `${name} without a watch` : `${name} ok`;
  });
  return `${kind} ${location}: ${states.join(', ')}`;
}

/** Names of the states in the order of a line, see `ServiceState`. */
const STATE_NAMES = [
  ['served', 'served'],
  ['partial', 'partly without endpoints'],
  ['noEndpoints', 'without endpoints'],
  ['partlyRefused', 'partly refused'],
  ['refused', 'refused'],
  ['ignored', 'ignored'],
] as const;

function serviceCountsText(counts: ServiceCounts): string {
  const { total, allPorts, portRanges, pendingChanges, routes } = counts;
  const states = STATE_NAMES.flatMap(([state, name]) => {
    // An older agent does not count all states.
    const count = (counts as Partial<ServiceCounts>)[state] ?? 0;
    return count === 0 && state !== 'served' && state !== 'refused' ? [] : [`${count} ${name}`];
  });
  return [
    `${total}: ${states.join(', ')}`,
    `${allPorts} with all ports, ${portRanges} with port ranges`,
    `${counted(routes, 'Route')}, ${counted(pendingChanges, 'pending change')}`,
  ].join('; ');
}

function policyText(policy: NodeStatus['policy'], now: number): string {
  if (policy === null) return 'off (--network-policy)';
  const { policies, faulty, isolatedPods, lastSync, lastDrift } = policy;
  const counts = [
    `${counted(policies, 'policy', 'policies')} (${faulty} faulty)`,
    counted(isolatedPods, 'isolated pod'),
  ];
  const text = `${counts.join(', ')}, last sync ${ago(lastSync, now)}`;
  // An older agent does not report it.
  return lastDrift == null ? text : `${text}, drift ${driftText(lastDrift, now)}`;
}

/**
 * What changed between two answers, one line each, for `--watch`. Routine syncs are no changes.
 * @returns empty if nothing did.
 */
export function statusChanges(before: NodeStatus, after: NodeStatus, style: Style): string[] {
  const old = problemTexts(before);
  const current = problemTexts(after);
  const lines = [
    ...(before.startedAt === after.startedAt ? [] : ['the agent was restarted']),
    ...(before.state === after.state ? [] : [`state ${style(after.state)}`]),
    ...[...current].filter((text) => !old.has(text)).map((text) => `new problem: ${text}`),
    ...[...old].filter((text) => !current.has(text)).map((text) => `resolved: ${text}`),
  ];
  return lines.map((line) => `${safe(after.now)}   ${line}\n`);
}

/**
 * Texts of problems without the parts that change with each attempt, such as a count.
 */
function problemTexts({ problems }: NodeStatus): Set<string> {
  return new Set(
    problems.map(({ reason, message, object, family }) => {
      const steady = message.replace(/ \(\d+ attempts\)/, '');
      return safe([reason, object ?? family, steady].filter((part) => part !== null).join(' '));
    }),
  );
}
