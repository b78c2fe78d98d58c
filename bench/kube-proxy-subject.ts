/** Loads kube-proxy's rules the way kube-proxy does: one iptables-restore per sync. */
import { execa } from 'execa';
import type { Variant } from '../iptables/commands.ts';
import { serviceObjects } from './cluster.ts';
import { changeInput, fullInput, inputInParts, JUMPS } from './kube-proxy-rules.ts';
import type { Subject, SyncTiming } from './subject.ts';

const CHAINS_PER_TRANSACTION = 500;

/**
 * Rules for `services` ordinary Services; only the commands are timed.
 * @param inParts splits the first load into several transactions.
 */
export function createKubeProxy(variant: Variant, services: number, inParts: boolean): Subject {
  const indices = new Set(Array.from({ length: services }, (_, index) => index));

  const load = async (input: string): Promise<SyncTiming> => {
    const started = performance.now();
    await execa(`iptables-${variant}-restore`, ['-w', '5', '--noflush', '--counters'], { input });
    const total = (performance.now() - started) / 1000;
    return { total, load: total, written: input.match(/^:/gm)?.length ?? 0 };
  };
  return {
    start: async () => {
      await addJumps(variant);
      return await load(
        inParts ? inputInParts(indices, CHAINS_PER_TRANSACTION) : fullInput(indices),
      );
    },
    change: (kind, index, spare) => {
      // The Service's other chains remain until a later sync removes them.
      if (kind === 'remove') indices.delete(index);
      else indices.add(index);
      const last = kind === 'replace' ? spare : undefined;
      const addresses = serviceObjects(index, last).slice.endpoints.map(({ address }) => address);
      return load(changeInput(indices, kind === 'remove' ? [] : [{ index, addresses }]));
    },
    stop: async () => {},
  };
}

async function addJumps(variant: Variant): Promise<void> {
  const jump = ['-t', 'nat', '-C', 'PREROUTING', '-j', 'KUBE-SERVICES'];
  const { exitCode } = await execa(`iptables-${variant}`, jump, { reject: false });
  if (exitCode === 0) return;
  await execa(`iptables-${variant}-restore`, ['--noflush'], { input: JUMPS });
}
