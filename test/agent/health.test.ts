import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { Counter, Gauge } from 'prom-client';
import { proxyHealth, startHealth } from '../../agent/health.ts';
import { waitFor } from '../lab/wait.ts';

const OPTIONS = {
  healthzBindAddress: undefined,
  bindAddressHardFail: false,
  nodeportAddresses: ['127.0.0.0/8'],
  manifests: 'manifests',
};

describe('health: health of the agent', () => {
  it('is unhealthy when a change has been queued for two sync periods', () => {
    let elapsed = 0;
    const health = proxyHealth(
      { options: OPTIONS, syncPeriod: 30_000, missingInputs: () => [] },
      { wall: () => new Date(elapsed), elapsed: () => elapsed },
    );
    health.updated('IPv4');
    health.queued('IPv4');
    elapsed = 59_999;
    assert.equal(health.report().healthy, true);
    elapsed = 60_000;
    assert.equal(health.report().healthy, false);
    health.updated('IPv4');
    assert.equal(health.report().healthy, true);
  });

  it('reports a health check node port in use again when its Service is recreated', async () => {
    const other = createServer().listen({ host: '127.0.0.1', port: 0 });
    await once(other, 'listening');
    const { port } = other.address() as AddressInfo;
    const reported: string[] = [];
    const counter = (name: string) =>
      new Counter({ name, help: name, labelNames: ['code'], registers: [] });
    const unbound = new Gauge<string>({ name: 'unbound', help: 'unbound', registers: [] });
    const count = async () => (await unbound.get()).values[0]?.value;
    const health = startHealth({
      options: OPTIONS,
      syncPeriod: 30_000,
      missingInputs: () => [],
      events: { startFailed: assert.fail, nodeWarning: (service) => reported.push(service) },
      metrics: {
        healthz: counter('healthz'),
        livez: counter('livez'),
        initialSyncComplete: new Gauge({ name: 'initial', help: 'initial', registers: [] }),
        unboundHealthPorts: unbound,
      },
      log: { debug() {}, info() {}, warn() {}, error() {} },
    });
    try {
      health.setNodeAddresses('IPv4', { addresses: ['127.0.0.1'], primary: [] });
      const serve = (healthPort: number) =>
        health.servicesChanged([
          {
            ...{ serviceKey: 'default/web', family: 'IPv4', port: healthPort },
            ...{ localEndpoints: 1, isOnlyFamily: true },
          },
        ]);
      serve(port);
      await waitFor('it is reported', () => reported.length === 1);
      assert.equal(await count(), 1);
      serve(0);
      assert.equal(await count(), 0);
      serve(port);
      await waitFor('it is reported again', () => reported.length === 2);
    } finally {
      health.close();
      other.close();
    }
  });
});
