/** What the status API reads from the running agent. Reading changes nothing. */
import type { IpFamily, Kind, ObjectKey } from '../api/objects.ts';
import type { UnboundHealthPort } from '../health/health-check-servers.ts';
import type { RemainingState } from '../metrics/portwide.ts';
import type { BaseChain } from '../preflight/packet-walk.ts';
import type { Fact } from '../preflight/result.ts';
import type { Backend } from '../proxier/backend.ts';
import type { RouteTable } from '../proxier/route-table.ts';
import type { SourceFault } from '../sources/source.ts';
import type { NodeChecks } from './api/checks.ts';
import type { KernelFeature, NodeStatus } from './api/node-status.ts';
import type { RecentEvents } from './recent-events.ts';
import type { SeriesRecorder } from './series.ts';
import type { SyncActivity } from './sync-activity.ts';
import type { Traffic } from './traffic/traffic.ts';
import type { PolicySources } from './views/policies.ts';
import type { WatchActivity } from './watch-activity.ts';

export interface StatusSources {
  readonly version: string;
  readonly nodeName: string;
  /** Milliseconds since 1970. */
  readonly startedAt: number;
  /** Path; undefined if the agent has none. */
  readonly statusSocket: string | undefined;
  readonly mode: NodeStatus['mode'];
  /** Directory of manifests; undefined with an API server. */
  readonly manifests: string | undefined;
  readonly families: readonly IpFamily[];
  /** Objects and manifests that currently cannot be read. */
  readonly sourceFaults: () => Iterable<SourceFault>;
  /** Health check node ports that cannot be bound. */
  readonly unboundHealthPorts: () => Iterable<UnboundHealthPort>;
  /** State of another proxy or mode that is still on the node. */
  readonly remainingState: () => Iterable<RemainingState>;
  /** What the agent waits for at its start; empty afterwards. */
  readonly missingInputs: () => readonly string[];
  readonly table: Pick<
    RouteTable,
    | 'revision'
    | 'node'
    | 'serviceKeys'
    | 'inspect'
    | 'topology'
    | 'pods'
    | 'nodeAddresses'
    | 'refusals'
    | 'routes'
    | 'routeCounts'
    | 'changeCounts'
    | 'unsynced'
    | 'serviceCount'
    | 'udpRoutesOfOwner'
  >;
  /** The kinds of objects that the agent reads. */
  readonly kinds: readonly Kind[];
  /** The backends; empty before the mode has started. */
  readonly backends: () => readonly Backend[];
  /** All addresses of this node. */
  readonly nodeAddresses: () => readonly string[];
  readonly syncs: SyncActivity;
  readonly watches: WatchActivity;
  readonly events: RecentEvents;
  readonly series: SeriesRecorder;
  readonly traffic: Pick<Traffic, 'top' | 'flows' | 'lookup' | 'connections'>;
  /** Reads features of the kernel and of programs. */
  readonly kernelFeatures: () => Promise<readonly KernelFeature[]>;
  readonly kernelRelease: string;
  /**
   * Base chains of other programs, and the milliseconds since the agent began to read them.
   * @param maxAge milliseconds; older ones are read again. Default: for as long as reading them costs little.
   */
  readonly foreignChains: (maxAge?: number) => Promise<{
    readonly value: Fact<readonly BaseChain[]>;
    readonly age: number;
  }>;
  /** The sysctl that disables forwarding of packets in a family; undefined: the node forwards. */
  readonly disabledForwarding: (family: IpFamily) => Promise<string | undefined>;
  /** What `portwide check` finds with the flags of this agent. */
  readonly nodeChecks: () => Promise<NodeChecks>;
  /** undefined without network policy. */
  readonly policy: PolicySources | undefined;
}

/** `namespace/name` */
export function serviceKeyOf(namespace: string, name: string): ObjectKey {
  return `${namespace}/${name}`;
}
