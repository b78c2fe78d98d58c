/** Sends many probes, to measure how they are distributed over hosts. */

import type { BurstRequest, ProbeRequest } from './messages.ts';
import type { BurstTally, ProbeOutcome } from './outcomes.ts';
import { probeTcp } from './tcp.ts';
import { probeUdp } from './udp.ts';

/** Runs `count` probes, `concurrency` at a time, over the ports in turn. */
export async function burst(request: BurstRequest): Promise<BurstTally> {
  const { protocol, address, ports, count, concurrency, timeoutMs, localAddress } = request;
  const probe = protocol === 'TCP' ? probeTcp : probeUdp;
  const outcomes: ProbeOutcome[] = [];
  let started = 0;
  const lane = async () => {
    while (started < count) {
      const port = ports[started % ports.length] ?? 0;
      started += 1;
      const one: ProbeRequest = {
        address,
        port,
        timeoutMs,
        ...(localAddress ? { localAddress } : {}),
      };
      outcomes.push(await probe(one));
    }
  };
  await Promise.all(Array.from({ length: Math.min(concurrency, count) }, lane));
  return tally(outcomes);
}

function tally(outcomes: readonly ProbeOutcome[]): BurstTally {
  const answered: Record<string, number> = {};
  const errors: Record<string, number> = {};
  let refused = 0;
  let timeout = 0;
  for (const outcome of outcomes) {
    if (outcome.outcome === 'answered') {
      answered[outcome.reply.host] = (answered[outcome.reply.host] ?? 0) + 1;
    } else if (outcome.outcome === 'error') {
      errors[outcome.code] = (errors[outcome.code] ?? 0) + 1;
    } else if (outcome.outcome === 'refused') refused += 1;
    else timeout += 1;
  }
  return { answered, refused, timeout, errors };
}
