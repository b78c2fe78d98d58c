import assert from 'node:assert/strict';
import { AgentEvents } from '../../agent/events.ts';
import type { SliceEndpoint } from '../../api/objects.ts';
import { EventRecorder } from '../../events/recorder.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import { loadClusterConfig } from '../../sources/kubernetes/config.ts';
import { createOpenSession } from '../../sources/kubernetes/session.ts';
import { EventServer } from '../events/event-server.ts';
import { endpoint, service, slice } from '../fixtures.ts';
import { waitFor } from '../lab/wait.ts';

/** A table whose warnings become Events of an API server. */
async function start() {
  const server = new EventServer();
  await server.listen();
  const recorder = new EventRecorder({
    nodeName: 'node-a',
    nodes: () => 1,
    onDropped: assert.fail,
    log: { warn: assert.fail },
  });
  const open = await createOpenSession(await loadClusterConfig({ master: server.url }));
  assert.ok(open);
  recorder.connect(open);
  const table = new RouteTable({ nodeName: 'node-a', allPortsEnabled: true, onChange: () => {} });
  const events = new AgentEvents(recorder, 'node-a', table);
  const take = () => {
    const { refusals } = table.takeChanges();
    events.refusals(refusals);
    return refusals.warnings;
  };
  table.upsert(
    service({
      name: 'media',
      clusterIPs: ['10.96.0.20'],
      ownedPortsAnnotation: '20000-20999/UDP',
      portsPerPodAnnotation: '100',
    }),
  );
  table.setNodeAddresses(new Set(['192.0.2.7']));
  return {
    table,
    set: (endpoints: readonly SliceEndpoint[]) => {
      table.upsert(slice(endpoints, { name: 'media-1', serviceKey: 'default/media', ports: [] }));
      return take();
    },
    notes: () => [...server.stored.values()].map(({ note }) => String(note)).sort(),
    [Symbol.asyncDispose]: async () => {
      await recorder.stop();
      await server.close();
    },
  };
}

describe('warnings: endpoints that own no ports', () => {
  it('records one Event for each reason, also when endpoints come and go', async () => {
    await using agent = await start();
    const odd = [
      endpoint('10.244.0.5'),
      endpoint('10.244.0.6'),
      endpoint('10.244.0.10', { ordinal: 10 }),
      endpoint('192.0.2.7', { ordinal: 1 }),
    ];
    assert.equal(agent.set(odd).length, 3);
    await waitFor('three Events', () => agent.notes().length === 3);
    assert.deepEqual(agent.notes(), [
      'endpoint 10.244.0.10 owns no ports, because it has an ordinal past the last slice; enlarge the range or lower the number of ports per pod',
      'endpoint 10.244.0.5, like others, owns no ports, because it has no ordinal in its name; use a StatefulSet, or set hostname to a name that ends in -0, -1 and so on',
      'on node node-a: endpoint 192.0.2.7 owns no ports, because it has the address of this node; use pods without hostNetwork',
    ]);
    assert.deepEqual(agent.set([...odd, endpoint('10.244.0.7'), endpoint('10.244.0.8')]), []);
    assert.deepEqual(agent.set([...odd, endpoint('10.244.0.9', { ready: false })]), []);
  });

  it('does not warn while a name is handed over to another pod', async () => {
    await using agent = await start();
    const leaving = endpoint('10.244.0.5', { ordinal: 0, ready: false, terminating: true });
    assert.deepEqual(agent.set([leaving, endpoint('10.244.0.6', { ordinal: 0 })]), []);
    assert.deepEqual(agent.set([endpoint('10.244.0.6', { ordinal: 0 })]), []);
    assert.deepEqual(agent.notes(), []);
  });

  it('warns on this node only of an address that becomes one of this node', async () => {
    await using agent = await start();
    assert.deepEqual(agent.set([endpoint('10.244.0.5', { ordinal: 0 })]), []);
    agent.table.setNodeAddresses(new Set(['10.244.0.5']));
    const { warnings } = agent.table.takeChanges().refusals;
    assert.deepEqual(
      warnings.map(({ isOfThisNode }) => isOfThisNode),
      [true],
    );
  });
});
