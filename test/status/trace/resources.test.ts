import assert from 'node:assert/strict';
import { untraceableVariant } from '../../../iptables/backend.ts';
import { NFTABLES_TRAFFIC } from '../../../nftables/backend.ts';
import type { BaseChain } from '../../../preflight/packet-walk.ts';
import type { Fact } from '../../../preflight/result.ts';
import type { Backend } from '../../../proxier/backend.ts';
import type { BackendTraffic } from '../../../proxier/kernel-rule.ts';
import { RouteTable } from '../../../proxier/route-table.ts';
import type { TraceAnswer } from '../../../status/api/trace.ts';
import { Unanswerable } from '../../../status/http/handler.ts';
import { RequestBudget } from '../../../status/http/request-budget.ts';
import type { StatusSources } from '../../../status/sources.ts';
import { SyncActivity } from '../../../status/sync-activity.ts';
import { traceResources } from '../../../status/trace/resources.ts';
import { Precedence } from '../../../sync/precedence.ts';
import { service } from '../../fixtures.ts';
import { FakeTimers } from '../../sync/fake-timers.ts';
import { requestOf } from '../request.ts';
import { observerOf } from '../sync-reports.ts';

describe('resources: live traces', () => {
  const table = new RouteTable({ nodeName: 'node', allPortsEnabled: true, onChange: () => {} });
  const answer = async (untraceable: string | undefined, query: string) => {
    const backend = { family: 'IPv4', untraceable } as Backend;
    const sources = { table, backends: () => [backend] } as unknown as StatusSources;
    const resource = traceResources(sources, () => 0)['/api/v1/trace/live'];
    return await resource?.answer(new URLSearchParams(query), requestOf());
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
      await assert.rejects(answer(undefined, query), /parameter seconds must be a number/);
    }
  });
});

describe('resources: traces', () => {
  const traffic = (): BackendTraffic => ({
    ...NFTABLES_TRAFFIC,
    options: { family: 'IPv4', masqueradeAll: false, localDetector: undefined, resetsTcp: false },
    isNodePortAddress: () => false,
    serviceCidrs: [],
  });
  const query = new URLSearchParams('from=10.244.1.5&to=10.96.0.10&port=80');
  const sourcesWith = (foreignChains: StatusSources['foreignChains']) =>
    ({
      table: new RouteTable({ nodeName: 'node', allPortsEnabled: true, onChange: () => {} }),
      backends: () => [{ family: 'IPv4', traffic }],
      nodeAddresses: () => [],
      disabledForwarding: async () => undefined,
      syncs: new SyncActivity(),
      foreignChains,
    }) as unknown as StatusSources;

  it('lead to no external IP of a Service that is not served', async () => {
    const destination = async (externalIPsEnabled: boolean) => {
      const table = new RouteTable({
        nodeName: 'node',
        allPortsEnabled: true,
        externalIPsEnabled,
        onChange: () => {},
      });
      table.upsert(service({ clusterIPs: ['10.96.0.10'], externalIPs: ['198.51.100.7'] }));
      table.takeChanges();
      const sources = { ...sourcesWith(async () => ({ value: { value: [] }, age: 0 })), table };
      const resource = traceResources(sources, () => 0)['/api/v1/trace'];
      const to = new URLSearchParams('from=external&to=service/default/web&port=80');
      const answer = (await resource?.answer(to, requestOf())) as TraceAnswer | undefined;
      return answer?.paths[0]?.destination;
    };
    assert.equal(await destination(true), '198.51.100.7');
    assert.equal(await destination(false), '10.96.0.10');
  });

  it('are uncertain while the rules cannot be written', async () => {
    const sources = sourcesWith(async () => ({ value: { value: [] }, age: 0 }));
    const resource = traceResources(sources, () => 0)['/api/v1/trace'];
    const uncertain = async () => {
      const answer = (await resource?.answer(query, requestOf())) as TraceAnswer | undefined;
      return answer?.paths[0]?.uncertain ?? [];
    };
    const syncs = sources.syncs.observing(observerOf());
    assert.ok((await uncertain()).every((text) => !text.includes('cannot be written')));
    syncs.syncFailed('IPv4', new Error('nft failed: no memory'), { full: true, seconds: 1 });
    assert.ok((await uncertain()).some((text) => text.startsWith('IPv4 rules cannot be written')));
  });

  it('hold up no other request while the rules of other programs are read', async () => {
    const read = Promise.withResolvers<{ value: Fact<readonly BaseChain[]>; age: number }>();
    const sources = sourcesWith(() => read.promise);
    const resource = traceResources(sources, () => 0)['/api/v1/trace'];
    const budget = new RequestBudget(new FakeTimers(), new Precedence(), () => 0);
    const traces = Array.from({ length: 8 }, () =>
      budget.run((waitOutside) => resource?.answer(query, requestOf({ waitOutside }))),
    );
    assert.equal(await budget.run(() => 'at once'), 'at once');
    read.resolve({ value: { value: [] }, age: 0 });
    for (const answer of await Promise.all(traces)) {
      assert.equal((answer as TraceAnswer).paths[0]?.verdict, 'untouched');
    }
  });
});
