/** Where a running agent's objects come from and go to: the source, and network policy beside the tables of Services. */
import type { Logger } from 'pino';
import type { RunOptions } from '../config/settings.ts';
import type { NodeCensus } from '../endpoints/node-census.ts';
import type { RouteTable } from '../proxier/route-table.ts';
import { fanOut } from '../sources/fan-out.ts';
import { servingAndPolicyResources, servingResources } from '../sources/kubernetes/resources.ts';
import type { ObjectSink, Source } from '../sources/store.ts';
import { type OpenPolicy, type PolicyAgent, type PolicyOptions, startPolicy } from './policy.ts';
import { tellOfUnreadable } from './policy-observer.ts';
import { createSource } from './source.ts';
import type { Startup } from './startup.ts';
import type { Telemetry } from './telemetry.ts';

export interface InputOptions extends Pick<PolicyOptions, 'otherPorts' | 'servicesLoaded'> {
  readonly options: RunOptions;
  readonly nodeName: string;
  readonly openedPolicy: OpenPolicy | undefined;
  readonly table: RouteTable;
  readonly census: NodeCensus;
  readonly startup: Startup;
  readonly telemetry: Telemetry;
  readonly log: Logger;
}

export interface Inputs {
  /** Not started yet. */
  readonly source: Source;
  readonly policy: PolicyAgent | undefined;
}

export function createInputs(given: InputOptions): Inputs {
  const { options, nodeName, openedPolicy: open, table, census, startup, telemetry, log } = given;
  const { metrics, recorder: events, connect } = telemetry;
  const sinks: ObjectSink[] = [table, census];
  const source = createSource({
    options,
    resources:
      open === undefined ? servingResources(nodeName) : servingAndPolicyResources(nodeName),
    sink: fanOut(sinks),
    log,
    observer: startup.observing(metrics.api),
    onSessions: connect,
    onUnreadable: (problem, object) => {
      if (open !== undefined) tellOfUnreadable(events, problem, object);
    },
    onFaultyManifests: (count) => metrics.faultyManifests.set(count),
  });
  if (open === undefined) return { source, policy: undefined };
  const policy = startPolicy({
    ...given,
    open,
    registry: metrics.registry,
    events,
    unreadable: () => source.unreadable(),
  });
  sinks.push(policy.sink);
  return { source, policy };
}
