/** Probes many ports with a bounded number of open sockets. */
import type { ProbeProtocol, ProbeResult } from './outcome.ts';
import type { PortSelection } from './ports.ts';
import { type ProbeSettings, probeTcp, probeUdp } from './sockets.ts';
import { Tally } from './tally.ts';

export interface ProbePlan extends ProbeSettings {
  readonly selections: readonly Pick<PortSelection, 'protocol' | 'ports'>[];
  /** Probes of each port and protocol. */
  readonly count: number;
  /** Maximum number of open sockets. */
  readonly concurrency: number;
}

const PROBES: Readonly<Record<ProbeProtocol, typeof probeTcp>> = { TCP: probeTcp, UDP: probeUdp };

/** Number of probes of a plan. */
export function probesOf({ selections, count }: ProbePlan): number {
  return selections.reduce((sum, { ports }) => sum + ports.length * count, 0);
}

/**
 * Runs all probes, in the order of protocols, rounds and ports.
 * @param probe for tests.
 */
export async function runProbes(
  plan: ProbePlan,
  probe: (protocol: ProbeProtocol, port: number) => Promise<ProbeResult> = (protocol, port) =>
    PROBES[protocol](plan, port),
): Promise<Tally> {
  const tally = new Tally();
  const pending = probesInOrder(plan);
  const worker = async () => {
    for (const { protocol, port } of pending) {
      tally.add(protocol, port, await probe(protocol, port));
    }
  };
  // The workers share one iterator, so each probe runs once.
  await Promise.all(Array.from({ length: plan.concurrency }, worker));
  return tally;
}

function* probesInOrder({ selections, count }: ProbePlan) {
  for (const { protocol, ports } of selections) {
    for (let round = 0; round < count; round++) {
      for (const port of ports) yield { protocol, port };
    }
  }
}
