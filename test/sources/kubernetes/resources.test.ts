import assert from 'node:assert/strict';
import { dnsResources } from '../../../sources/kubernetes/resources.ts';
import { KubernetesSource } from '../../../sources/kubernetes/source.ts';
import { ApiServerDouble } from '../../api-server/double.ts';
import { nodeManifest, serviceManifest, sliceManifest } from '../../e2e/manifests.ts';
import { RecordingSink } from '../recording-sink.ts';
import { PATIENT } from './source-fixture.ts';

describe('resources for DNS', () => {
  it('include Services and EndpointSlices that kube-proxy ignores', async () => {
    const double = new ApiServerDouble();
    await double.listen();
    const labels = { 'service.kubernetes.io/headless': '' };
    const headlessSlice = sliceManifest('headless', 4, []);
    double.put(
      serviceManifest('plain', { spec: { clusterIPs: ['10.0.0.1'] } }),
      serviceManifest('headless', { labels, spec: { clusterIPs: ['None'] } }),
      serviceManifest('other-proxy', {
        labels: { 'service.kubernetes.io/service-proxy-name': 'other' },
        spec: { clusterIPs: ['10.0.0.2'] },
      }),
      {
        ...headlessSlice,
        metadata: {
          name: 'headless-1',
          namespace: 'default',
          labels: { ...labels, 'kubernetes.io/service-name': 'headless' },
        },
      },
      nodeManifest(['192.0.2.1']),
    );
    const sink = new RecordingSink();
    const source = new KubernetesSource({
      master: double.url,
      resources: dnsResources(),
      sink,
      onProblem: ({ message }) => assert.fail(message),
      log: { info: () => {}, warn: () => {} },
      timeouts: PATIENT,
    });
    try {
      await source.start();
      assert.deepEqual([...sink.objects.keys()].sort(), [
        'EndpointSlice default/headless-1',
        'Service default/headless',
        'Service default/other-proxy',
        'Service default/plain',
      ]);
      assert.deepEqual([...sink.syncedKinds].sort(), ['EndpointSlice', 'Service']);
      const lists = double.requests().filter(({ verb }) => verb === 'list');
      assert.deepEqual(lists.map(({ resource }) => resource).sort(), [
        'endpointslices',
        'services',
      ]);
    } finally {
      await source.stop();
      await double.close();
    }
  });
});
