/** All measurements of one shape of rules at one size. */
import type { Variant } from '../iptables/commands.ts';
import { type Changes, type Job, type Report, runJob, type Shape } from './jobs.ts';
import { type Network, withNetwork } from './network.ts';
import { bareNode, type PacketPath, packetPath } from './packets.ts';
import type { Timing } from './subject.ts';

/** Seconds after which a start counts as late. */
export const LIMIT = 120;
const CHANGES = 11;

/** What was measured; what came late, or follows from it, is missing. */
export interface Measured {
  readonly starts: readonly Report[];
  readonly restarts: readonly Timing[];
  readonly changes: Changes | undefined;
  readonly packets: PacketPath;
  /** New connections before there were rules. */
  readonly bare: readonly number[];
  readonly late: { readonly start: boolean; readonly restart: boolean };
}

export interface Case {
  readonly shape: Shape;
  readonly variant: Variant;
  readonly services: number;
  readonly runs: number;
}

/**
 * Starts, and starts again with the rules in place, `runs` times, each in namespaces of its own.
 * The last run goes on with changes and packets. Should kube-proxy's rules be late, these
 * come after a load in several transactions.
 */
export async function measure(
  { shape, variant, services, runs }: Case,
  progress: (text: string) => void,
): Promise<Measured> {
  const job: Job = { shape, variant, services, changes: 0, inParts: false, limit: LIMIT };
  const starts: Report[] = [];
  const restarts: Timing[] = [];
  const late = { start: false, restart: false };
  let changes: Changes | undefined;
  const packets = { first: [] as number[], last: [] as number[], direct: [] as number[] };
  const bare: number[] = [];

  const start = async (network: Network, what: string, fields: Partial<Job> = {}) => {
    const report = await runJob(network.node, { ...job, ...fields });
    progress(`${what}: ${report?.start.total.toFixed(2) ?? `> ${LIMIT}`} s`);
    changes ??= report?.changes;
    return report;
  };
  const connect = async (network: Network) => {
    const { first, last, direct } = await packetPath(network, services);
    packets.first.push(...first);
    packets.last.push(...last);
    packets.direct.push(...direct);
  };

  for (let run = 1; run <= runs && !late.start && !late.restart; run++) {
    await withNetwork(async (network) => {
      bare.push(...(await bareNode(network)));
      const first = await start(network, `full sync ${run} of ${runs}`);
      late.start = first === undefined;
      if (first === undefined) return;
      starts.push(first);
      const again = await start(network, `restart ${run} of ${runs}`, {
        changes: run === runs ? CHANGES : 0,
      });
      late.restart = again === undefined;
      if (again !== undefined) restarts.push(again.start);
      await connect(network);
    });
  }
  if (late.start && shape === 'kube-proxy') {
    await withNetwork(async (network) => {
      const fields = { inParts: true, changes: CHANGES };
      if ((await start(network, 'load in parts', fields)) !== undefined) await connect(network);
    });
  }
  return { starts, restarts, changes, packets, bare, late };
}
