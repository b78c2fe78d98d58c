/** What the parts of a running agent share. It comes in stages; a part asks for those fields that it needs. */
import type { EventEmitter } from 'node:events';
import type { Logger } from 'pino';
import type { FlagTexts } from '../config/flags.ts';
import type { RunOptions } from '../config/settings.ts';
import type { NodeCounter } from '../endpoints/node-counter.ts';
import type { Events } from '../events/recorder.ts';
import type { Metrics } from '../metrics/metrics.ts';
import type { RouteTable } from '../proxier/route-table.ts';
import type { AgentEvents } from './events.ts';
import type { AgentMetricSources } from './metric-sources.ts';
import type { ModeDefinition, SupportedMode } from './mode.ts';
import type { PolicySupport } from './policy.ts';

export interface BaseContext {
  readonly options: RunOptions;
  /** Flags as given. */
  readonly texts: FlagTexts;
  readonly log: Logger;
}

/** This node, and what it can do. */
export interface NodeContext extends BaseContext {
  readonly nodeName: string;
  readonly kind: ModeDefinition;
  /** What `--nodeport-addresses` means in this mode. */
  readonly nodePorts: RunOptions['nodeportAddresses'];
  /** Milliseconds between two looks at the kernel. */
  readonly syncPeriod: number;
  readonly openMode: SupportedMode;
  /** Undefined without `--network-policy`. */
  readonly openedPolicy: PolicySupport | undefined;
}

/** The objects that Services are served from. */
export interface ObjectContext extends NodeContext {
  readonly table: RouteTable;
  readonly census: NodeCounter;
  /** Emits whenever an object has come, changed or gone, or all of a kind have been listed. */
  readonly changes: EventEmitter<{ change: [] }>;
}

/** With all that tells of what happens. */
export interface AgentContext extends ObjectContext {
  readonly metricSources: AgentMetricSources;
  readonly metrics: Metrics;
  /** Events on this Node and on Services. */
  readonly events: AgentEvents;
  /** Events on any object; none with manifests. */
  readonly recorder: Events;
}
