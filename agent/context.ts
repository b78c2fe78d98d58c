/** Dependencies that the parts of a running agent share, in stages. A part declares the fields that it needs. */
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
import type { StatusActivity } from './status.ts';

export interface BaseContext {
  readonly options: RunOptions;
  /** Unparsed flags. */
  readonly texts: FlagTexts;
  readonly log: Logger;
}

/** This node and the features it supports. */
export interface NodeContext extends BaseContext {
  readonly nodeName: string;
  readonly modeDefinition: ModeDefinition;
  /** The effective `--nodeport-addresses` in this mode. */
  readonly nodePorts: RunOptions['nodeportAddresses'];
  /** Resync interval, in milliseconds. */
  readonly syncPeriod: number;
  readonly supportedMode: SupportedMode;
  /** Undefined without `--network-policy`. */
  readonly policySupport: PolicySupport | undefined;
}

/** The objects from the API server or manifests. */
export interface ObjectContext extends NodeContext {
  readonly table: RouteTable;
  readonly nodeCounter: NodeCounter;
  /** Emits when an object is added, changed or removed, or the first list of a kind is complete. */
  readonly changes: EventEmitter<{ change: [] }>;
  readonly status: StatusActivity;
}

/** `ObjectContext` with metrics and Events. */
export interface AgentContext extends ObjectContext {
  readonly metricSources: AgentMetricSources;
  readonly metrics: Metrics;
  /** Records Events on this Node and on Services. */
  readonly events: AgentEvents;
  /** Records Events on any object; does nothing with --manifests. */
  readonly recorder: Events;
}
