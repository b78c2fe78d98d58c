/** Counts of the results of probes, in memory that does not grow with the number of probes. */
import { getOrCreate } from '../api/collections.ts';
import {
  endpointName,
  OUTCOMES,
  type Outcome,
  type ProbeProtocol,
  type ProbeResult,
} from './outcome.ts';

/** Ports from first to last among the probed ports. */
export interface PortRun {
  readonly from: number;
  readonly to: number;
  /** Number of probed ports in the run; smaller than `to - from + 1` if not all ports between were probed. */
  readonly ports: number;
}

/** All results of one protocol with one outcome. */
export interface TallyRow {
  readonly protocol: ProbeProtocol;
  readonly outcome: Outcome;
  /** Number of probes with the outcome. */
  readonly probes: number;
  readonly runs: readonly PortRun[];
  /**
   * Endpoints (answers) or error codes with their number of probes, the most frequent first. Empty if the outcome also
   * has probes of other ports: answers are not counted by port.
   */
  readonly details: readonly { readonly text: string; readonly probes: number }[];
}

/** Distinct endpoints or errors that are counted separately. */
const MAX_DETAILS = 50;
const OTHERS = '(others)';
/** Runs without gaps. More than these, as of random ports, are joined across ports that were not probed. */
const MAX_RUNS_WITHOUT_GAPS = 20;

interface Counts {
  /** Number of probes of each port. */
  readonly ofPort: Uint16Array;
  probes: number;
  readonly details: Map<string, number>;
}

export class Tally {
  /** Outcomes of a protocol; an outcome without probes is absent. */
  readonly #counts = new Map<string, Counts>();

  add(protocol: ProbeProtocol, port: number, { outcome, text }: ProbeResult): void {
    const counts = getOrCreate(this.#counts, `${protocol} ${outcome}`, () => ({
      ofPort: new Uint16Array(65_536),
      probes: 0,
      details: new Map<string, number>(),
    }));
    counts.probes += 1;
    counts.ofPort[port] = (counts.ofPort[port] ?? 0) + 1;
    const isAnswer = outcome === 'answered' || outcome === 'unexpected';
    const detail = isAnswer ? endpointName(text) : text;
    if (detail === '') return;
    const isNew = !counts.details.has(detail);
    const key = isNew && counts.details.size >= MAX_DETAILS ? OTHERS : detail;
    counts.details.set(key, (counts.details.get(key) ?? 0) + 1);
  }

  /**
   * One row for each outcome that a protocol has. A port with several outcomes is in several rows.
   * @param ports all probed ports, ascending.
   */
  rows(protocol: ProbeProtocol, ports: readonly number[]): TallyRow[] {
    return OUTCOMES.flatMap((outcome) => {
      const counts = this.#counts.get(`${protocol} ${outcome}`);
      if (counts === undefined) return [];
      const runs = runsOf(ports, (port) => (counts.ofPort[port] ?? 0) > 0);
      if (runs.length === 0) return [];
      const probes = ports.reduce((sum, port) => sum + (counts.ofPort[port] ?? 0), 0);
      const details = (probes === counts.probes ? [...counts.details] : [])
        .map(([text, number]) => ({ text, probes: number }))
        .sort((a, b) => b.probes - a.probes || (a.text < b.text ? -1 : 1));
      return [{ protocol, outcome, probes, runs, details }];
    });
  }
}

function runsOf(ports: readonly number[], isSelected: (port: number) => boolean): PortRun[] {
  const exact = joined(ports, isSelected, ({ to }, port) => port === to + 1);
  return exact.length > MAX_RUNS_WITHOUT_GAPS ? joined(ports, isSelected, () => true) : exact;
}

/** Joins neighbours in `ports` that are selected. @param canJoin whether the next port can be in a run. */
function joined(
  ports: readonly number[],
  isSelected: (port: number) => boolean,
  canJoin: (run: PortRun, port: number) => boolean,
): PortRun[] {
  const runs: { from: number; to: number; ports: number }[] = [];
  let open: { from: number; to: number; ports: number } | undefined;
  for (const port of ports) {
    if (!isSelected(port)) {
      open = undefined;
    } else if (open === undefined || !canJoin(open, port)) {
      open = { from: port, to: port, ports: 1 };
      runs.push(open);
    } else {
      open.to = port;
      open.ports += 1;
    }
  }
  return runs;
}
