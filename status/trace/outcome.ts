/** Whether connections on a computed path arrive: the command and the page decide by it. Pure. */
import type { ComputedTrace, TracePath } from '../api/trace.ts';

/** What is unknown about a path, as far as it decides whether packets arrive. */
export interface Doubts {
  /** Something unknown may let through what is computed to fail. */
  readonly mayPass: boolean;
  /** Something unknown may stop what is computed to arrive. */
  readonly mayFail: boolean;
}

/** Other sentences in `uncertain`, such as one about a rule that may masquerade, do not change the outcome. */
export function withOutcome(path: ComputedTrace, { mayPass, mayFail }: Doubts): TracePath {
  const { verdict, unserved, steps, endpoints } = path;
  const isSent = verdict === 'translated' || verdict === 'untouched';
  const hasFailed = unserved || !isSent;
  const isPartial =
    steps.some(({ step }) => step === 'forwarding') ||
    endpoints.some(({ policy, foreignRules }) => policy === 'deny' || foreignRules === 'drop');
  if (hasFailed || isPartial)
    return { ...path, outcome: mayPass ? 'uncertain' : hasFailed ? 'failed' : 'partly' };
  return { ...path, outcome: mayFail ? 'uncertain' : 'reached' };
}
