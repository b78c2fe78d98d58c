/** The trace resources of the status API. */
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import type { IpFamily } from '../../api/objects.ts';
import type { TracePath } from '../api/trace.ts';
import {
  NotFound,
  type Resources,
  resource,
  streamResource,
  Unanswerable,
} from '../http/handler.ts';
import type { StatusSources } from '../sources.ts';
import type { TracedPath } from './compute.ts';
import { type ForeignPath, withForeignRules } from './foreign-steps.ts';
import { withForwarding } from './forwarding-step.ts';
import { LiveTracer } from './live.ts';
import { isFromOutside, liveFilter } from './live-filter.ts';
import { withOutcome } from './outcome.ts';
import {
  DEFAULT_SECONDS,
  LIVE_TRACE_PARAMETERS,
  TRACE_PARAMETERS,
  traceRequest,
} from './question.ts';
import { computeAnswer, prepareTrace, type ResolvedTrace, resolveRequest } from './resolve.ts';

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
        const paths: TracePath[] = [];
        for (const each of answer.paths)
          paths.push((await withForeignSteps(each, answer, foreign, sources)).path);
        return { ...answer, paths };
      },
    }),
    '/api/v1/trace/live': streamResource({
      summary: 'The path of matching packets, as the kernel reports it for some seconds',
      response: 'LiveTraceLine',
      rootCommand: 'portwide trace FROM TO --live',
      parameters: LIVE_TRACE_PARAMETERS,
      handle: async (given, { signal, waitOutside }) => {
        const [resolved, other] = resolveRequest(traceRequest(given), sources);
        if (resolved === undefined) throw new NotFound('there is nothing to trace');
        refuseUntraceable(resolved.family, sources);
        const { path, pathFrom, isInside, isLocalPod, localDetector } = await prepareTrace(
          resolved,
          sources,
        );
        const { forwardsWithIpvs } = path;
        const foreign = await waitOutside(() => sources.foreignChains(MAX_ROOT_AGE));
        const filter = liveFilter(resolved, localDetector);
        const isOutside = isFromOutside(filter);
        return tracer.start({
          filter,
          seconds: given.seconds ?? DEFAULT_SECONDS,
          signal,
          otherFamily: other ? { family: other.family, destination: other.destination } : null,
          computedFrom: (source) =>
            withForeignSteps(isOutside ? pathFrom(source) : path, resolved, foreign, sources),
          isOther: (source) => isOutside && isInside(source),
          isLocalPod,
          notes: await notesOf(resolved.family, forwardsWithIpvs),
          forwardsWithIpvs,
        });
      },
    }),
  };
}

async function withForeignSteps(
  { path, forwardsWithIpvs, speaksAs, doubts }: TracedPath,
  { protocol, port }: Pick<ResolvedTrace, 'protocol' | 'port'>,
  { value: chains, age }: Awaited<ReturnType<StatusSources['foreignChains']>>,
  sources: StatusSources,
): Promise<ForeignPath<TracePath>> {
  const foreignRulesAge = Math.round(age / 1000);
  const nodeAddresses = sources.nodeAddresses();
  const context = { foreignRulesAge, nodeAddresses, forwardsWithIpvs, speaksAs };
  const disabledBy = await sources.disabledForwarding(path.family);
  const forwarded = withForwarding(path, { disabledBy, nodeAddresses, forwardsWithIpvs });
  const unwritten = unwrittenText(path.family, sources);
  const uncertain = [...forwarded.uncertain, ...unwritten];
  const written = { ...forwarded, uncertain };
  const foreign = await withForeignRules(written, protocol, port, chains, context);
  const isUnwritten = unwritten.length > 0;
  const all = {
    mayPass: doubts.mayPass || isUnwritten,
    mayFail: doubts.mayFail || isUnwritten || foreign.mayFail,
  };
  return { path: withOutcome(foreign.path, all), effects: foreign.effects };
}

/** The path is computed from the agent's objects, so it is uncertain while the kernel does not have them. */
function unwrittenText(family: IpFamily, { syncs }: StatusSources): string[] {
  if (syncs.family(family).failure === undefined) return [];
  return [
    `${family} rules cannot be written, so packets may take another path; run 'portwide status'`,
  ];
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
