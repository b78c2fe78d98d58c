import { isLoopback } from '../api/addresses.ts';
import type { RunOptions } from '../config/settings.ts';
import type { NodeListener } from '../services/service-warnings.ts';

/** What nodes listen on where nothing is configured otherwise. */
const USUAL: readonly NodeListener[] = [
  { name: 'ssh', port: 22, isOnLoopbackOnly: false },
  { name: 'the kubelet', port: 10250, isOnLoopbackOnly: false },
];

/** The agent's own TCP ports and the usual ones of a node: a Service that takes one cuts it off. */
export function nodeListeners({
  healthzBindAddress,
  metricsBindAddress,
}: Pick<RunOptions, 'healthzBindAddress' | 'metricsBindAddress'>): NodeListener[] {
  const own = [
    ['/healthz (--healthz-bind-address)', healthzBindAddress],
    ['/metrics (--metrics-bind-address)', metricsBindAddress],
  ] as const;
  return [
    ...USUAL,
    ...own.flatMap(([name, address]) =>
      address === undefined
        ? []
        : [{ name, port: address.port, isOnLoopbackOnly: isLoopback(address.host) }],
    ),
  ];
}
