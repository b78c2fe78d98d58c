/** Traces as text for terminals. Pure. */
import type {
  LivePath,
  LiveTraceLine,
  LiveTraceStep,
  LiveTraceSummary,
  TraceAnswer,
  TraceOutcome,
  TracePath,
  TraceStep,
} from '../api/trace.ts';
import { ruleText } from '../trace/differences.ts';
import { safe } from './style.ts';

/** The computed paths as numbered lists of steps. */
export function traceAnswerText({ paths, protocol, port }: TraceAnswer): string {
  return paths.map((path) => pathText(path, `${port}/${protocol}`)).join('\n');
}

const OUTCOMES: Readonly<Record<TraceOutcome, string>> = {
  reached: 'connections arrive',
  partly: 'connections to some endpoints fail',
  failed: 'connections fail',
  uncertain: 'uncertain',
};

function pathText(
  { family, source, destination, steps, uncertain, outcome }: TracePath,
  port: string,
): string {
  return lines([
    `Computed, ${family}: ${source ?? 'a client outside'} to ${destination} port ${port}`,
    ...steps.flatMap((step, index) => stepLines(step, index + 1)),
    ...uncertain.map((text) => `  uncertain: ${text}`),
    `  Outcome: ${OUTCOMES[outcome]}`,
  ]);
}

function stepLines({ title, decision, object, detail }: TraceStep, number: number): string[] {
  const by = object === null ? '' : ` [${object}]`;
  return [
    `  ${String(number).padStart(2)}. ${title}: ${decision}${by}`,
    ...detail.map((line) => `        ${line}`),
  ];
}

/** One line of a live trace. */
export function liveLineText(line: LiveTraceLine): string {
  switch (line.event) {
    case 'armed':
      return armedText(line);
    case 'step':
      return liveStepText(line);
    case 'summary':
      return summaryText(line);
  }
}

function armedText({
  filter,
  seconds,
  maxPackets,
  otherFamily,
}: Extract<LiveTraceLine, { readonly event: 'armed' }>): string {
  const { family, destination, protocol, port, exceptPods, source, fromNode } = filter;
  const isOutside = source === null && !fromNode;
  const pods = exceptPods === null ? '' : ` and from pods (${exceptPods})`;
  return lines([
    `Live: tracing ${family} packets to ${destination} port ${port}/${protocol} for ${seconds} seconds, at most ${maxPackets}; connect now`,
    ...(isOutside ? [`  note: packets from this node${pods} are left out`] : []),
    ...(otherFamily === null
      ? []
      : [
          `  note: ${otherFamily.family} is not traced; for it use ${otherFamily.destination} --port ${port} --proto ${protocol.toLowerCase()}`,
        ]),
  ]);
}

function liveStepText(step: LiveTraceStep): string {
  const { packet, table, chain, rule, verdict, purpose, text, owner, source, destination } = step;
  const place = `${table} ${chain}${rule === null ? '' : ` rule ${rule}`}`;
  const what = purpose ?? (owner === 'other' ? 'another program' : owner);
  const headers =
    source === null ? [] : [`  packet ${packet}: ${source} to ${destination}${interfaces(step)}`];
  return lines([
    ...headers,
    `    ${place}: ${verdict} (${what})`,
    ...(text === null ? [] : [`        ${text}`]),
  ]);
}

function interfaces({ inInterface, outInterface }: LiveTraceStep): string {
  const from = inInterface === null ? '' : `, from ${inInterface}`;
  return from + (outInterface === null ? '' : `, to ${outInterface}`);
}

const ENDS: Readonly<Record<LiveTraceSummary['ended'], string>> = {
  time: 'the time is over',
  packets: 'enough packets were traced',
  events: 'the kernel reported more than the agent keeps',
  client: 'the client has gone',
};

function summaryText({ paths, ended, lost, others, differences, notes }: LiveTraceSummary): string {
  return lines([
    `Live result (${ENDS[ended]}):`,
    ...paths.map((path) => `  packet ${path.packet}: ${resultText(path)}`),
    ...(others === 0 ? [] : [`  ${others} other packets came from pods or this node`]),
    ...(lost === 0 ? [] : [`  ${lost} events of the kernel were lost`]),
    ...notes.map((note) => `  note: ${note}`),
    ...(differences.length > 0
      ? ['Differences:', ...differences.map((sentence) => `  ${sentence}`)]
      : paths.length > 0
        ? ['Kernel and computed path agree.']
        : []),
  ]);
}

const RESULTS: Readonly<Record<LivePath['result'], string>> = {
  pod: 'went to a pod of this node',
  left: 'left the node',
  delivered: 'was delivered to a process of this node',
  dropped: 'was dropped',
  rejected: 'was rejected',
  lost: 'was lost',
};

function resultText({
  result,
  translatedTo,
  masqueradedAs,
  decidedBy,
  lostInIpvs,
}: LivePath): string {
  const changes = [
    ...(translatedTo === null ? [] : [`translated to ${translatedTo}`]),
    ...(masqueradedAs === null ? [] : [`masqueraded as ${masqueradedAs}`]),
  ];
  const by = decidedBy === null ? '' : ` by ${ruleText(decidedBy)}`;
  const where = lostInIpvs ? ' in IPVS' : '';
  return `${RESULTS[result]}${where}${by}${changes.length === 0 ? '' : `; ${changes.join(', ')}`}`;
}

function lines(all: readonly string[]): string {
  return all.map((line) => `${safe(line)}\n`).join('');
}
