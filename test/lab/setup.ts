/**
 * A thread that goes from namespace to namespace while a lab is built: it sets sysctls before there
 * are interfaces, and at the end waits until every interface is up. Done so, neither costs
 * a process.
 */
import { writeFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { parentPort } from 'node:worker_threads';
import { messageOf } from './errors.ts';
import { enterNamespace } from './libc.ts';
import type { HostPlan } from './topology.ts';
import { waitFor } from './wait.ts';

/** What the thread is asked; it answers each with undefined, or the text of what failed. */
export interface SetupRequest {
  readonly step: 'sysctls' | 'interfaces';
  readonly hosts: readonly Pick<HostPlan, 'name' | 'namespace' | 'addresses' | 'forwards'>[];
}

const INTERFACES_UP_MS = 10_000;

function sysctls(forwards: boolean): [path: string, value: string][] {
  const forwarding: [string, string][] = [
    ['ipv4/ip_forward', '1'],
    ['ipv6/conf/all/forwarding', '1'],
    ['ipv6/conf/default/forwarding', '1'],
  ];
  return [
    // First, because it resets others.
    ...(forwards ? forwarding : []),
    ...['all', 'default'].flatMap((scope): [string, string][] => [
      // A new namespace may inherit the host's.
      [`ipv4/conf/${scope}/rp_filter`, '0'],
      // The client's gateway lies on the client's own link: it would be told of shorter ways.
      [`ipv4/conf/${scope}/send_redirects`, '0'],
      [`ipv4/conf/${scope}/accept_redirects`, '0'],
      [`ipv6/conf/${scope}/accept_redirects`, '0'],
      [`ipv6/conf/${scope}/accept_dad`, '0'],
      [`ipv6/conf/${scope}/accept_ra`, '0'],
    ]),
    // Every rejected packet is to be told of, not six and then one each second.
    ['ipv4/icmp_ratelimit', '0'],
    ['ipv4/icmp_ratemask', '0'],
    ['ipv6/icmp/ratelimit', '0'],
    ['ipv6/icmp/ratemask', '127'],
  ];
}

async function run({ step, hosts }: SetupRequest): Promise<void> {
  for (const { name, namespace, addresses, forwards } of hosts) {
    enterNamespace(namespace);
    if (step === 'sysctls') {
      for (const [path, value] of sysctls(forwards)) writeFileSync(`/proc/sys/net/${path}`, value);
    } else {
      // Node lists the interfaces of the calling thread's namespace that are up and running.
      await waitFor(
        `${name}'s interfaces are up`,
        () => {
          const up = Object.values(networkInterfaces()).flatMap((all) => all ?? []);
          const expected = [...addresses[4], ...addresses[6]];
          return expected.every((address) => up.some((one) => one.address === address));
        },
        INTERFACES_UP_MS,
      );
    }
  }
}

parentPort?.on('message', (request: SetupRequest) => {
  run(request).then(
    () => parentPort?.postMessage(undefined),
    (error: unknown) => parentPort?.postMessage(messageOf(error)),
  );
});
