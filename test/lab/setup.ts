/**
 * A thread that enters each namespace while a lab is built. It sets sysctls before interfaces
 * exist, and finally waits until every interface is up. This avoids starting processes.
 */
import { writeFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { parentPort } from 'node:worker_threads';
import { messageOf } from './errors.ts';
import { enterNamespace } from './libc.ts';
import type { HostPlan } from './topology.ts';
import { waitFor } from './wait.ts';

/** A request to the thread. The answer is undefined, or an error message. */
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
    // First, because it resets other sysctls.
    ...(forwards ? forwarding : []),
    ...['all', 'default'].flatMap((scope): [string, string][] => [
      // A new namespace may inherit the host's value.
      [`ipv4/conf/${scope}/rp_filter`, '0'],
      // The client's gateway is on the client's own link and would send redirects.
      [`ipv4/conf/${scope}/send_redirects`, '0'],
      [`ipv4/conf/${scope}/accept_redirects`, '0'],
      [`ipv6/conf/${scope}/accept_redirects`, '0'],
      [`ipv6/conf/${scope}/accept_dad`, '0'],
      [`ipv6/conf/${scope}/accept_ra`, '0'],
    ]),
    // Every rejected packet must be reported, without the rate limit of one a second after six.
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
      // Node.js lists the interfaces that are up and running in the calling thread's namespace.
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
