/** What the parts of a running agent share. It comes in stages; a part asks for those fields that it needs. */
import type { EventEmitter } from 'node:events';
import type { Logger } from 'pino';
import type { FlagTexts } from '../config/flags.ts';
import type { RunOptions } from '../config/settings.ts';
import type { NodeCensus } from '../endpoints/node-census.ts';
import type { Events } from '../events/recorder.ts';
import type { Metrics } from '../metrics/metrics.ts';
import type { RouteTable } from '../proxier/route-table.ts';
import type { AgentEvents } from './events.ts';
import type { ModeKind, OpenMode } from './mode.ts';
import type { Numbers } from './numbers.ts';
import type { OpenPolicy } from './policy.ts';

export interface Settings {
  readonly options: RunOptions;
  /** Flags as given. */
  readonly texts: FlagTexts;
  readonly log: Logger;
}

/** This node, and what it can do. */
export interface PreparedNode extends Settings {
  readonly nodeName: string;
  readonly kind: ModeKind;
  /** What `--nodeport-addresses` means in this mode. */
  readonly nodePorts: RunOptions['nodeportAddresses'];
  /** Milliseconds between two looks at the kernel. */
  readonly syncPeriod: number;
  readonly openMode: OpenMode;
  /** Undefined without `--network-policy`. */
  readonly openedPolicy: OpenPolicy | undefined;
}

/** The objects that Services are served from. */
export interface Objects extends PreparedNode {
  readonly table: RouteTable;
  readonly census: NodeCensus;
  /** Emits whenever an object has come, changed or gone, or all of a kind have been listed. */
  readonly changes: EventEmitter<{ change: [] }>;
}

/** With all that tells of what happens. */
export interface Context extends Objects {
  readonly numbers: Numbers;
  readonly metrics: Metrics;
  /** Events on this Node and on Services. */
  readonly events: AgentEvents;
  /** Events on any object; none with manifests. */
  readonly recorder: Events;
}
