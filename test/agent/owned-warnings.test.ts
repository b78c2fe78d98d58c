import assert from 'node:assert/strict';
import { AgentEvents } from '../../agent/events.ts';
import type { Service, SliceEndpoint } from '../../api/objects.ts';
import { EventRecorder } from '../../events/recorder.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import { loadClusterConfig } from '../../sources/kubernetes/config.ts';
import { createOpenSession } from '../../sources/kubernetes/session.ts';
import { EventServer } from '../events/event-server.ts';
import { endpoint, pod, podAt, service, slice, upsertWithPods } from '../fixtures.ts';
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
  table.upsert(pod({ name: 'host-1', addresses: ['192.0.2.7'], hostNetwork: true }));
  return {
    table,
    set: (endpoints: readonly SliceEndpoint[]) => {
      const media = slice(endpoints, { name: 'media-1', serviceKey: 'default/media', ports: [] });
      upsertWithPods(table, media);
      table.remove('Pod', podAt('192.0.2.7').key);
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
      'endpoints own no ports, because their ordinals are past the last slice; enlarge the range or lower the number of ports per pod',
      'endpoints own no ports, because their pod names have no ordinal; use a StatefulSet, or set hostname to a name that ends in -0, -1 and so on',
      'endpoints own no ports, because they are on the host network; use pods without hostNetwork',
    ]);
    assert.deepEqual(agent.set([...odd, endpoint('10.244.0.7'), endpoint('10.244.0.8')]), []);
    assert.deepEqual(agent.set([...odd, endpoint('10.244.0.9', { ready: false })]), []);
    assert.deepEqual(agent.set([...odd.slice(2), endpoint('10.244.0.4')]), [], 'other addresses');
  });

  it('does not warn while a name is handed over to another pod', async () => {
    await using agent = await start();
    const media0 = { ordinal: 0, ordinalPrefix: 'media-' };
    const leaving = endpoint('10.244.0.5', { ...media0, ready: false, terminating: true });
    assert.deepEqual(agent.set([leaving, endpoint('10.244.0.6', media0)]), []);
    assert.deepEqual(agent.set([endpoint('10.244.0.6', media0)]), []);
    assert.deepEqual(agent.notes(), []);
  });

  it('warns once of pods with different names and one ordinal', async () => {
    await using agent = await start();
    const podOf = (address: string, ordinalPrefix: string, ordinal: number, fields = {}) =>
      endpoint(address, { ordinal, ordinalPrefix, ...fields });
    const blue = [podOf('10.244.0.5', 'blue-', 0), podOf('10.244.0.6', 'blue-', 1)];
    assert.deepEqual(agent.set([...blue, podOf('10.244.0.7', 'green-', 2)]), []);
    assert.deepEqual(agent.set([...blue, podOf('192.0.2.7', 'green-', 1)]).length, 1);
    const message =
      'pods with different names have the same ordinal N (blue-N, green-N), and only one of them owns its ports; select the pods of one StatefulSet only';
    assert.deepEqual(agent.set([...blue, podOf('10.244.0.8', 'green-', 1)]), [
      { serviceKey: 'default/media', message },
    ]);
    assert.deepEqual(agent.set([...blue, podOf('10.244.0.9', 'green-', 0)]), []);
    const [first] = blue;
    assert.ok(first);
    assert.deepEqual(
      agent.set([{ ...first, ready: false }, podOf('10.244.0.9', 'green-', 0)]),
      [],
      'the other one is the owner',
    );
    assert.deepEqual(agent.set([...blue, podOf('10.244.0.7', 'green-', 17)]).length, 1);
  });

  it('records an Event for owned ports among the local ports of sockets', async () => {
    await using agent = await start();
    agent.table.upsert(
      service({
        name: 'media',
        clusterIPs: ['10.96.0.20'],
        ownedPortsAnnotation: '40000-49999/UDP',
        portsPerPodAnnotation: '100',
      }),
    );
    assert.equal(agent.set([endpoint('10.244.0.5', { ordinal: 0 })]).length, 1);
    await waitFor('an Event', () => agent.notes().length === 1);
    assert.match(agent.notes().join(), /40000-49999\/UDP overlaps 32768-60999/);
    const problems = agent.table.inspect('default/media')?.warnings.length;
    assert.equal(problems, 1);
  });

  it('gives a warning of both families once', async () => {
    await using agent = await start();
    agent.table.upsert(
      service({
        name: 'media',
        clusterIPs: ['10.96.0.20', 'fd00:96::20'],
        ownedPortsAnnotation: '20000-20999/UDP',
        portsPerPodAnnotation: '100',
      }),
    );
    upsertWithPods(
      agent.table,
      slice([endpoint('fd00:10::5')], {
        name: 'media-2',
        serviceKey: 'default/media',
        family: 'IPv6',
        ports: [],
      }),
    );
    assert.equal(agent.set([endpoint('10.244.0.5')]).length, 1);
  });

  it('warns of an endpoint whose pod is gone, or in another namespace', async () => {
    await using agent = await start();
    assert.deepEqual(agent.set([endpoint('10.244.0.5', { ordinal: 0 })]), []);
    agent.table.remove('Pod', podAt('10.244.0.5').key);
    agent.table.upsert(podAt('10.244.0.5', 'other'));
    const { warnings } = agent.table.takeChanges().refusals;
    const message =
      'endpoints own no ports, because no Pod of their namespace has their address in status.podIPs; select pods of the namespace, and with --manifests add their Pods';
    assert.deepEqual(warnings, [{ serviceKey: 'default/media', message }]);
  });

  it('warns the younger of two Services that give a pod one UDP port', async () => {
    await using agent = await start();
    const { table } = agent;
    const other = (fields: Partial<Service>, ...addresses: string[]) => {
      table.upsert(
        service({
          name: 'other',
          clusterIPs: ['10.96.0.21'],
          ownedPortsAnnotation: '20050-20949/UDP',
          portsPerPodAnnotation: '100',
          creationTimestamp: '2026-02-01T00:00:00Z',
          ...fields,
        }),
      );
      const endpoints = addresses.map((address, ordinal) => endpoint(address, { ordinal }));
      upsertWithPods(
        table,
        slice(endpoints, { name: 'o-1', serviceKey: 'default/other', ports: [] }),
      );
      return table.takeChanges().refusals.warnings;
    };
    const pods = ['10.244.0.5', '10.244.0.6'] as const;
    agent.set(pods.map((address, ordinal) => endpoint(address, { ordinal })));
    const warningOf = (younger: string, older: string) => ({
      serviceKey: younger,
      message: `pods own the same UDP ports by the older Service ${older}, and their packets leave as its VIP. Clients of Service ${younger} get no answer on these ports; give the Services different ports or pods`,
    });
    const byName = { creationTimestamp: '2026-01-01T00:00:00Z' };
    assert.match(
      other(byName, ...pods)[0]?.message ?? '',
      /^pods own the same UDP ports by Service default\/media, the first by name, and their packets/,
    );
    const inForce = () =>
      ['media', 'other'].flatMap((name) => table.inspect(`default/${name}`)?.warnings ?? []);
    const younger = warningOf('default/other', 'default/media');
    assert.deepEqual(other({}, ...pods), [younger]);
    assert.deepEqual(other({}, '10.244.0.5', '10.244.0.7'), [], 'the same text');
    for (const fields of [
      { ownedPortsAnnotation: '21000-21999/UDP' },
      { ownedPortsAnnotation: '20050-20949/TCP' },
      { ownedPortsAnnotation: '20500-20999/UDP' },
    ]) {
      other(fields, ...pods);
      assert.deepEqual(inForce(), [], fields.ownedPortsAnnotation);
    }
    other({}, '10.244.0.8', '10.244.0.9');
    assert.deepEqual(inForce(), [], 'other pods');
    const elder = { creationTimestamp: '2025-01-01T00:00:00Z' };
    const first = warningOf('default/media', 'default/other');
    assert.deepEqual(other(elder, ...pods), [first], 'of a Service that did not change');
    assert.deepEqual(inForce(), [first]);
    table.remove('Service', 'default/other');
    table.takeChanges();
    assert.deepEqual(inForce(), []);
  });
});
