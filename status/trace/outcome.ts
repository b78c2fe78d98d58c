/** Whether connections on a computed path arrive: commands and the page decide by it. Pure. */
import type { ComputedTrace, TracePath } from '../api/trace.ts';

/** @param mayPass whether something unknown may let through what is computed to fail. */
export function withOutcome(path: ComputedTrace, mayPass: boolean): TracePath {
  const { verdict, unserved, steps, endpoints, uncertain } = path;
  const isSent = verdict === 'translated' || verdict === 'untouched';
  const hasFailed = unserved || !isSent;
  const isPartial =
    steps.some(({ step }) => step === 'forwarding') ||
    endpoints.some(({ policy, foreignRules }) => policy === 'deny' || foreignRules === 'drop');
  if (hasFailed || isPartial)
    return { ...path, outcome: mayPass ? 'uncertain' : hasFailed ? 'failed' : 'partly' };
  return { ...path, outcome: uncertain.length > 0 ? 'uncertain' : 'reached' };
}
