/** The trace resources of the status API. */
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import type { IpFamily } from '../../api/objects.ts';
import type { ComputedTrace, LiveTraceFilter, TraceAnswer } from '../api/trace.ts';
import {
  NotFound,
  type Resources,
  resource,
  streamResource,
  Unanswerable,
} from '../http/handler.ts';
import type { StatusSources } from '../sources.ts';
import { withForeignRules } from './foreign-steps.ts';
import { LiveTracer } from './live.ts';
import {
  DEFAULT_SECONDS,
  LIVE_TRACE_PARAMETERS,
  TRACE_PARAMETERS,
  traceRequest,
} from './question.ts';
import {
  computeAnswer,
  computePath,
  type ResolvedTrace,
  resolveRequest,
  type TracedAnswer,
} from './resolve.ts';

/** Milliseconds. Who changes a rule and traces again sees the change; requests to the address are not worth the work. */
const MAX_ROOT_AGE = 1000;

/** @param now milliseconds since 1970. */
export function traceResources(sources: StatusSources, now: () => number): Resources {
  const tracer = new LiveTracer(sources, now);
  return {
    '/api/v1/trace': resource({
      summary: 'The path of a connection, computed from the objects that the agent has',
      response: 'TraceAnswer',
      parameters: TRACE_PARAMETERS,
      handle: async (given, { isRoot, waitOutside }) => {
        const answer = await computeAnswer(traceRequest(given), sources);
        const maxAge = isRoot ? MAX_ROOT_AGE : undefined;
        const foreign = await waitOutside(() => sources.foreignChains(maxAge));
        return withForeignSteps(answer, foreign, sources);
      },
    }),
    '/api/v1/trace/live': streamResource({
      summary: 'The path of matching packets, as the kernel reports it for some seconds',
      response: 'LiveTraceLine',
      rootCommand: 'portwide trace FROM TO --live',
      parameters: LIVE_TRACE_PARAMETERS,
      handle: async (given, { signal }) => {
        const [resolved] = resolveRequest(traceRequest(given), sources);
        if (resolved === undefined) throw new NotFound('there is nothing to trace');
        refuseUntraceable(resolved.family, sources);
        const { path: computed, forwardsWithIpvs } = await computePath(resolved, sources);
        return tracer.start({
          filter: filterOf(resolved),
          seconds: given.seconds ?? DEFAULT_SECONDS,
          signal,
          computed,
          notes: await notesOf(resolved.family, forwardsWithIpvs),
          forwardsWithIpvs,
        });
      },
    }),
  };
}

/** Live traces show what these rules do, so their computed path has no such step. */
async function withForeignSteps(
  answer: TracedAnswer,
  { value: chains, age }: Awaited<ReturnType<StatusSources['foreignChains']>>,
  sources: StatusSources,
): Promise<TraceAnswer> {
  const foreignRulesAge = Math.round(age / 1000);
  const nodeAddresses = sources.nodeAddresses();
  const { protocol, port } = answer;
  const paths: ComputedTrace[] = [];
  for (const { path, forwardsWithIpvs, speaksAs } of answer.paths) {
    const context = { foreignRulesAge, nodeAddresses, forwardsWithIpvs, speaksAs };
    paths.push(await withForeignRules(path, protocol, port, chains, context));
  }
  return { ...answer, paths };
}

function filterOf(resolved: ResolvedTrace): LiveTraceFilter {
  const { family, source, destination, protocol, port, sourcePort = null } = resolved;
  return {
    family,
    destination,
    source: source.kind === 'address' ? source.address : null,
    fromNode: source.kind === 'node',
    protocol,
    port,
    sourcePort,
  };
}

/** @throws Unanswerable */
function refuseUntraceable(family: IpFamily, { backends }: StatusSources): void {
  const reason = backends().find((backend) => backend.family === family)?.untraceable;
  if (reason !== undefined) throw new Unanswerable(501, reason);
}

const LEGACY_TABLES = { IPv4: '/proc/net/ip_tables_names', IPv6: '/proc/net/ip6_tables_names' };

async function notesOf(family: IpFamily, forwardsWithIpvs: boolean): Promise<string[]> {
  const file = LEGACY_TABLES[family];
  const legacy = existsSync(file) ? (await readFile(file, 'utf8')).trim() : '';
  return [
    ...(legacy === ''
      ? []
      : [
          `iptables-legacy has tables (${legacy.split('\n').join(', ')}); the trace does not show their rules`,
        ]),
    ...(forwardsWithIpvs
      ? [
          'IPVS has no nf_tables rules: the trace shows the destination before and after it; for the IPVS connection run ipvsadm -Lnc',
        ]
      : []),
  ];
}
