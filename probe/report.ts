/** Output of `portwide probe`: text, JSON and JUnit XML. */
import { OUTCOMES, type ProbeProtocol } from './outcome.ts';
import type { PortGroup, PortSelection } from './ports.ts';
import type { PortRun, Tally, TallyRow } from './tally.ts';

export interface ProbeReport {
  readonly vip: string;
  readonly seed: number;
  /** At most one of each protocol. */
  readonly selections: readonly PortSelection[];
  readonly tally: Tally;
  /** Milliseconds from the first to the last probe. */
  readonly duration: number;
}

/** Whether every probe was answered as expected. */
export function isAllAnswered(report: ProbeReport): boolean {
  return rowsOf(report).every(({ outcome }) => outcome === 'answered');
}

/** Ranges in one cell of the text table. JSON has all. */
const MAX_SHOWN_RUNS = 20;
const MAX_SHOWN_DETAILS = 10;

/** Reports of one command: one for an address, one for each VIP of a Service. */
export interface ProbeReports {
  /** `namespace/name`; undefined if an address was given. */
  readonly service: string | undefined;
  readonly reports: readonly ProbeReport[];
}

/** A table for each VIP, with one row for each protocol and outcome. */
export function reportText({ reports }: ProbeReports): string {
  return reports.map(tableOf).join('\n');
}

function tableOf(report: ProbeReport): string {
  const { vip, seed, duration, selections } = report;
  const table = [
    ['PROTOCOL', 'OUTCOME', 'PROBES', 'PORTS', 'ENDPOINTS OR ERRORS'],
    ...rowsOf(report).map((row) => [
      row.protocol,
      row.outcome,
      String(row.probes),
      runsText(row.runs),
      detailsText(row),
    ]),
  ];
  const groups = selections.flatMap((selection) => selection.groups);
  const isRandom = groups.some(({ name }) => name.startsWith('random:'));
  const repeat = isRandom ? ` Random ports: repeat with --seed=${seed}.` : '';
  return `${alignColumns(table)}Probed ${vip} in ${(duration / 1000).toFixed(1)} s.${repeat}\n`;
}

/** The report as an object; for a Service, an object with a report for each VIP. */
export function reportJson({ service, reports }: ProbeReports): string {
  const documents = reports.map(documentOf);
  const allAnswered = reports.every(isAllAnswered);
  const document = service === undefined ? documents[0] : { service, allAnswered, vips: documents };
  return `${JSON.stringify(document, undefined, 2)}\n`;
}

function documentOf(report: ProbeReport) {
  const { vip, seed, duration } = report;
  return {
    vip,
    seed,
    seconds: duration / 1000,
    allAnswered: isAllAnswered(report),
    results: rowsOf(report),
  };
}

/**
 * JUnit XML: a test suite for each VIP, with a test case for each protocol and item of `--ports`, which fails if a port
 * did not answer.
 */
export function reportJunit({ service, reports }: ProbeReports): string {
  const suites = reports.map(testsuite);
  const duration = reports.reduce((sum, report) => sum + report.duration, 0);
  const name = service === undefined ? 'portwide probe' : `portwide probe ${service}`;
  const counts = countsOf(suites.flatMap(({ cases }) => cases));
  return [
    '<?xml version="1.0" encoding="UTF-8"?>',
    `<testsuites name="${escapeXml(name)}" ${counts} time="${secondsOf(duration)}">`,
    ...suites.map(({ xml }) => xml),
    '</testsuites>',
    '',
  ].join('\n');
}

interface TestCase {
  readonly isFailed: boolean;
  readonly xml: string;
}

function testsuite(report: ProbeReport) {
  const { vip, seed, selections, duration } = report;
  const cases = selections.flatMap(({ protocol, groups }) =>
    groups.map((group) => testcase(report, protocol, group)),
  );
  const xml = [
    `  <testsuite name="${escapeXml(vip)}" ${countsOf(cases)} skipped="0" time="${secondsOf(duration)}">`,
    `    <properties><property name="seed" value="${seed}"/></properties>`,
    ...cases.map((each) => each.xml),
    '  </testsuite>',
  ].join('\n');
  return { cases, xml };
}

function countsOf(cases: readonly TestCase[]): string {
  const failures = cases.filter(({ isFailed }) => isFailed).length;
  return `tests="${cases.length}" failures="${failures}" errors="0"`;
}

/** @param duration milliseconds. */
function secondsOf(duration: number): string {
  return (duration / 1000).toFixed(3);
}

function testcase(
  { vip, tally }: ProbeReport,
  protocol: ProbeProtocol,
  group: PortGroup,
): TestCase {
  const name = escapeXml(group.name);
  const head = `    <testcase classname="${escapeXml(`portwide.probe.${vip}.${protocol}`)}" name="${name}"`;
  const failed = tally.rows(protocol, group.ports).filter(({ outcome }) => outcome !== 'answered');
  if (failed.length === 0) return { isFailed: false, xml: `${head}/>` };
  const probes = failed.reduce((sum, row) => sum + row.probes, 0);
  const types = OUTCOMES.filter((outcome) => failed.some((row) => row.outcome === outcome));
  const text = failed.map((row) => {
    const details = detailsText(row);
    return `${row.outcome}: ${runsText(row.runs)}${details === '' ? '' : ` (${details})`}`;
  });
  return {
    isFailed: true,
    xml: [
      `${head}>`,
      `      <failure message="${probes} probes without the expected answer" type="${types.join(', ')}">${escapeXml(text.join('\n'))}</failure>`,
      '    </testcase>',
    ].join('\n'),
  };
}

/** Escapes text for XML 1.0, which has no form for most control characters. */
export function escapeXml(text: string): string {
  const ENTITIES: Readonly<Record<string, string>> = {
    '&': '&amp;',
    '<': '&lt;',
    '>': '&gt;',
    '"': '&quot;',
    "'": '&apos;',
  };
  return text
    .replace(/[^\t\n\r\x20-\ud7ff\ue000-\ufffd]/g, '?')
    .replace(/[&<>"']/g, (character) => ENTITIES[character] ?? '');
}

function rowsOf({ selections, tally }: ProbeReport): TallyRow[] {
  return selections.flatMap(({ protocol, ports }) => tally.rows(protocol, ports));
}

/** `443,20000-20100`; `22-65501 (200 ports)` if not all ports between were probed. */
function runsText(runs: readonly PortRun[]): string {
  const shown = runs.slice(0, MAX_SHOWN_RUNS).map(({ from, to, ports }) => {
    if (from === to) return String(from);
    return ports === to - from + 1 ? `${from}-${to}` : `${from}-${to} (${ports} ports)`;
  });
  const more = runs.length - shown.length;
  return shown.join(',') + (more > 0 ? ` and ${more} more ranges` : '');
}

function detailsText({ details }: TallyRow): string {
  const shown = details.slice(0, MAX_SHOWN_DETAILS).map(({ text, probes }) => `${text} ${probes}`);
  const more = details.length - shown.length;
  return shown.join(', ') + (more > 0 ? `, and ${more} more` : '');
}

function alignColumns(rows: readonly (readonly string[])[]): string {
  const widths = rows[0]?.map((_, column) =>
    Math.max(...rows.map((row) => row[column]?.length ?? 0)),
  );
  const line = (row: readonly string[]) =>
    row.map((cell, column) => cell.padEnd(widths?.[column] ?? 0)).join('  ');
  return rows.map((row) => `${line(row).trimEnd()}\n`).join('');
}
