/** Creates the stores of API objects of a running agent. */
import { EventEmitter } from 'node:events';
import { isLoopback } from '../api/addresses.ts';
import { SERVING_KINDS } from '../api/objects.ts';
import type { RunOptions } from '../config/settings.ts';
import { NodeCounter } from '../endpoints/node-counter.ts';
import { RouteTable } from '../proxier/route-table.ts';
import { selectsLoopback } from '../services/node-port-addresses.ts';
import type { NodeListener } from '../services/service-warnings.ts';
import { systemTimers } from '../sync/timers.ts';
import type { NodeContext, ObjectContext } from './context.ts';
import { watchesServiceCidrs } from './inputs.ts';
import { modeLimits } from './mode.ts';
import { createStatusActivity } from './status.ts';

/** Creates the empty stores of objects. */
export function createObjects(node: NodeContext): ObjectContext {
  const { options, nodeName, nodePorts, modeDefinition, supportedMode } = node;
  const limits = modeLimits(modeDefinition.name);
  const changes: ObjectContext['changes'] = new EventEmitter();
  const table = new RouteTable({
    nodeName,
    // Without their list, the first sync would withdraw the rules that drop packets to unallocated cluster IPs.
    awaitedKinds: [
      ...SERVING_KINDS,
      ...(watchesServiceCidrs(node) ? (['ServiceCIDR'] as const) : []),
    ],
    allPortsEnabled: options.featureGates.AllPorts,
    externalIPsEnabled: options.featureGates.AllowServiceExternalIPs,
    modeWithoutOwnedPorts: limits.modeWithoutOwnedPorts,
    consistentHashProblem: limits.consistentHashProblem ?? supportedMode.consistentHashProblem,
    rangeLimit: modeDefinition.rangeLimit?.(options),
    warnsOfMismatches: options.manifests !== undefined,
    listeners: nodeListeners(options),
    isLoopbackServed: selectsLoopback(nodePorts, 'IPv4'),
    timers: systemTimers,
    onChange: () => changes.emit('change'),
  });
  const status = createStatusActivity();
  return { ...node, table, nodeCounter: new NodeCounter(), changes, status };
}

/** TCP listeners of other programs on a node with a default configuration. */
const NODE_DAEMONS: readonly NodeListener[] = [
  { name: 'ssh', port: 22, isOnLoopbackOnly: false },
  { name: 'the kubelet', port: 10250, isOnLoopbackOnly: false },
];

/** TCP listeners of the node and the agent. A Service on the same address and port makes them unreachable. */
function nodeListeners({ healthzBindAddress, metricsBindAddress }: RunOptions): NodeListener[] {
  const own = [
    ['/healthz (--healthz-bind-address)', healthzBindAddress],
    ['/metrics (--metrics-bind-address)', metricsBindAddress],
  ] as const;
  return [
    ...NODE_DAEMONS,
    ...own.flatMap(([name, address]) =>
      address === undefined
        ? []
        : [{ name, port: address.port, isOnLoopbackOnly: isLoopback(address.host) }],
    ),
  ];
}
