/** The objects that Services are served from, as a running agent keeps them. */
import { EventEmitter } from 'node:events';
import { isLoopback } from '../api/addresses.ts';
import type { RunOptions } from '../config/settings.ts';
import { NodeCounter } from '../endpoints/node-counter.ts';
import { RouteTable } from '../proxier/route-table.ts';
import { selectsLoopback } from '../services/node-port-addresses.ts';
import type { NodeListener } from '../services/service-warnings.ts';
import type { NodeContext, ObjectContext } from './context.ts';

/** Where objects are put; empty at first. */
export function createObjects(node: NodeContext): ObjectContext {
  const { options, nodeName, nodePorts } = node;
  const changes: ObjectContext['changes'] = new EventEmitter();
  const table = new RouteTable({
    nodeName,
    allPortsEnabled: options.featureGates.AllPorts,
    warnsOfMismatches: options.manifests !== undefined,
    listeners: nodeListeners(options),
    isLoopbackServed: selectsLoopback(nodePorts, 'IPv4'),
    onChange: () => changes.emit('change'),
  });
  return { ...node, table, census: new NodeCounter(), changes };
}

/** What nodes listen on where nothing is configured otherwise. */
const NODE_DAEMONS: readonly NodeListener[] = [
  { name: 'ssh', port: 22, isOnLoopbackOnly: false },
  { name: 'the kubelet', port: 10250, isOnLoopbackOnly: false },
];

/** The agent's own TCP ports and the usual ones of a node: a Service that takes one cuts it off. */
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
