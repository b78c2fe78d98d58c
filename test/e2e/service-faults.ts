/** Faults of Services that tests inject in several modes. */
import assert from 'node:assert/strict';
import type { Host } from '../lab/lab.ts';
import { SERVICE_CAUSES as CAUSES, titleOf } from './fault-causes.ts';
import type { FaultLab } from './fault-lab.ts';
import { type Manifest, serviceManifest, sliceManifest } from './manifests.ts';

export const VIP = '10.96.0.10';
const EXTERNAL_VIP = '203.0.113.10';
export const PORTS = { ports: [{ name: '', port: 8080 }] };
export const UDP_PORTS = { ports: [{ name: '', port: 53, protocol: 'UDP' }] };
export const QUICK = { timeoutMs: 400 };

type Spec = Readonly<Record<string, unknown>>;

/** Service `default/web`. */
export const web = (spec: Spec = {}): Manifest =>
  serviceManifest('web', { spec: { clusterIPs: [VIP], ports: [{ port: 80 }], ...spec } });

const balanced = (spec: Spec): Manifest =>
  serviceManifest('web', {
    spec: { clusterIPs: [VIP], ports: [{ port: 80 }], type: 'LoadBalancer', ...spec },
    ingress: [{ ip: EXTERNAL_VIP }],
  });

export async function outcome(from: Host, address: string, port = 80) {
  return (await from.tcp(address, port, QUICK)).outcome;
}

/** Gives `default/web` an endpoint, so that its packets are answered before the fault. */
export async function serveWeb(faults: FaultLab): Promise<void> {
  await faults.agent.apply([web(), sliceManifest('web', 4, [faults.pod(0)], PORTS)]);
  assert.equal(await outcome(faults.lab.client, VIP), 'answered');
}

/** Defines tests of faults whose packets meet other rules in each mode. @param running the lab, once the tests run. */
export function defineServiceFaults(running: () => FaultLab): void {
  it(titleOf(CAUSES.localPolicy), async () => {
    const faults = running();
    await faults.agent.apply([
      balanced({ externalTrafficPolicy: 'Local' }),
      sliceManifest('web', 4, [faults.remote], PORTS),
    ]);
    assert.equal(await outcome(faults.lab.client, EXTERNAL_VIP), 'timeout');
    assert.equal(await outcome(faults.pod(0), VIP), 'answered');
    await faults.name(CAUSES.localPolicy);
  });

  it(titleOf(CAUSES.sourceRanges), async () => {
    const faults = running();
    await faults.agent.apply([
      balanced({ loadBalancerSourceRanges: ['198.51.100.0/24'] }),
      sliceManifest('web', 4, [faults.pod(0)], PORTS),
    ]);
    assert.equal(await outcome(faults.lab.client, EXTERNAL_VIP), 'timeout');
    await faults.name(CAUSES.sourceRanges);
  });

  it(titleOf(CAUSES.staleConnection), async () => {
    const faults = running();
    const { client, node } = faults.lab;
    const dead = '10.244.1.99';
    await faults.agent.apply([
      serviceManifest('dns', {
        spec: { clusterIPs: [VIP], ports: [{ port: 53, protocol: 'UDP' }] },
      }),
      sliceManifest('dns', 4, [faults.pod(0)], UDP_PORTS),
    ]);
    const entry = [
      ...['-p', 'udp', '-s', client.ipv4, '-d', VIP, '--sport', '5353', '--dport', '53'],
      ...['--dst-nat', `${dead}:53`, '-t', '120'],
    ];
    await node.exec('conntrack', ['-I', ...entry]);
    const send = (localPort: number) => client.udp(VIP, 53, { ...QUICK, localPort });
    assert.equal((await send(5354)).outcome, 'answered');
    assert.notEqual((await send(5353)).outcome, 'answered');
    await faults.name(CAUSES.staleConnection);
    await node.exec('conntrack', ['-F']);
  });
}
