import assert from 'node:assert/strict';
import { traceStatus } from '../../../cmd/trace-status.ts';
import type { ComputedTrace, TraceEndpoint } from '../../../status/api/trace.ts';
import { type Doubts, withOutcome } from '../../../status/trace/outcome.ts';

const CERTAIN: Doubts = { mayPass: false, mayFail: false };

const endpoint = (fields: Partial<TraceEndpoint> = {}): TraceEndpoint => ({
  address: '10.244.1.11',
  port: 80,
  local: true,
  masqueraded: false,
  policy: 'allow',
  foreignRules: 'pass',
  ...fields,
});
const path = (fields: Partial<ComputedTrace> = {}): ComputedTrace => ({
  family: 'IPv4',
  source: '192.0.2.1',
  destination: '10.96.0.10',
  steps: [],
  verdict: 'translated',
  unserved: false,
  endpoints: [endpoint()],
  speaksAs: [],
  uncertain: [],
  ...fields,
});

describe('outcome: whether connections arrive, and the exit status', () => {
  for (const [what, fields, doubts, outcome, status] of [
    ['all endpoints are reached', {}, {}, 'reached', 0],
    ['a note does not matter', { uncertain: ['a rule may masquerade'] }, {}, 'reached', 0],
    ['a rule may drop packets', {}, { mayFail: true }, 'uncertain', 2],
    ['what may pass does not matter to what arrives', {}, { mayPass: true }, 'reached', 0],
    [
      'a policy denies one endpoint',
      { endpoints: [endpoint(), endpoint({ policy: 'deny' })] },
      {},
      'partly',
      1,
    ],
    ['every endpoint is rejected', { verdict: 'rejected' }, { mayFail: true }, 'failed', 1],
    ['a policy that may allow', { verdict: 'denied' }, { mayPass: true }, 'uncertain', 2],
    ['no proxy serves the address', { verdict: 'untouched', unserved: true }, {}, 'failed', 1],
  ] as const) {
    it(`${what}: ${outcome}, ${status}`, () => {
      const found = withOutcome(path(fields), { ...CERTAIN, ...doubts });
      assert.equal(found.outcome, outcome);
      assert.equal(traceStatus([found], undefined), status);
    });
  }
});
