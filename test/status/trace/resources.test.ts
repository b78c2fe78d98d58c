import assert from 'node:assert/strict';
import { untraceableVariant } from '../../../iptables/backend.ts';
import type { Backend } from '../../../proxier/backend.ts';
import { RouteTable } from '../../../proxier/route-table.ts';
import { Unanswerable } from '../../../status/http/handler.ts';
import type { StatusSources } from '../../../status/sources.ts';
import { traceResources } from '../../../status/trace/resources.ts';

describe('resources: live traces', () => {
  const table = new RouteTable({ nodeName: 'node', allPortsEnabled: true, onChange: () => {} });
  const answer = async (untraceable: string | undefined, query: string) => {
    const backend = { family: 'IPv4', untraceable } as Backend;
    const sources = { table, backends: () => [backend] } as unknown as StatusSources;
    const resource = traceResources(sources, () => 0)['/api/v1/trace/live'];
    const { signal } = new AbortController();
    return await resource?.answer(new URLSearchParams(query), { path: [], signal });
  };

  it('are not possible with iptables-legacy, and the answer says what to do', async () => {
    assert.equal(untraceableVariant({ variant: 'nft' }), undefined);
    const reason = untraceableVariant({ variant: 'legacy' });
    await assert.rejects(
      answer(reason, 'from=external&to=10.96.0.10&port=80'),
      (error) =>
        error instanceof Unanswerable &&
        error.code === 501 &&
        /live tracing needs iptables-nft/.test(error.message),
    );
  });

  it('take from 1 to 30 seconds', async () => {
    for (const seconds of ['0', '31', 'x']) {
      const query = `from=external&to=10.96.0.10&port=80&seconds=${seconds}`;
      await assert.rejects(answer(undefined, query), /parameter seconds: must be a number/);
    }
  });
});
