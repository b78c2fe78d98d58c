import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import { Startup } from '../../agent/startup.ts';
import type { Kind, Node } from '../../api/objects.ts';

const ALL: readonly Kind[] = ['Service', 'EndpointSlice', 'Node'];

function build({
  unsynced = [] as readonly Kind[],
  awaitedPods = [] as readonly string[],
  manifests = undefined as string | undefined,
  detectLocalMode = 'ClusterCIDR' as 'ClusterCIDR' | 'NodeCIDR',
  podCIDRs = undefined as readonly string[] | undefined,
  awaited = false,
  awaitsAddresses = false,
}) {
  const node: Node | undefined = podCIDRs && {
    kind: 'Node',
    key: 'a',
    name: 'a',
    labels: {},
    zone: undefined,
    podCIDRs,
    addresses: [],
    deleting: false,
    taints: [],
  };
  const given = {
    options: { manifests, detectLocalMode },
    nodeName: 'a',
    table: { unsynced: new Set(unsynced), awaitedPods: new Set(awaitedPods), node },
    changes: new EventEmitter<{ change: [] }>(),
    log: { warn: assert.fail, error: assert.fail },
  } as const;
  const ownNode = { isAwaited: awaited, awaitsAddresses, settled: Promise.resolve() };
  return new Startup(given, ownNode);
}

describe('startup: Startup.missingInputs', () => {
  for (const [title, given, expected] of [
    ['nothing', {}, []],
    [
      'the first lists',
      { unsynced: ALL },
      [
        'Services from the API server',
        'EndpointSlices from the API server',
        'Node "a" from the API server',
      ],
    ],
    [
      'the rest of the first lists',
      { unsynced: ['EndpointSlice'], awaited: true },
      ['EndpointSlices from the API server'],
    ],
    [
      'Pods of namespaces with owned ports',
      { awaitedPods: ['media'], awaited: true },
      ['Pods of namespace media from the API server'],
    ],
    ['addresses of the Node', { awaitsAddresses: true }, ['addresses of Node "a"']],
    ['a missing Node', { awaited: true }, ['Node "a" (the API server has no such object)']],
    [
      'pod CIDRs',
      { detectLocalMode: 'NodeCIDR', podCIDRs: [] },
      ['pod CIDRs of Node "a" (--detect-local-mode=NodeCIDR)'],
    ],
    ['nothing with pod CIDRs', { detectLocalMode: 'NodeCIDR', podCIDRs: ['10.244.0.0/24'] }, []],
    ['manifests', { unsynced: ALL, manifests: '/dir' }, ['manifests in /dir']],
    ['nothing with manifests that lack the Node', { manifests: '/dir' }, []],
    [
      'pod CIDRs with manifests',
      { manifests: '/dir', detectLocalMode: 'NodeCIDR' },
      ['pod CIDRs of Node "a" (--detect-local-mode=NodeCIDR)'],
    ],
  ] as const) {
    it(`returns ${title}`, () => assert.deepEqual(build(given).missingInputs(), expected));
  }

  it('names the API server of the last request, and forwards all calls', () => {
    const startup = build({ unsynced: ['Service'] });
    const calls: unknown[] = [];
    const observer = startup.observing({
      request: (request) => calls.push(request),
      watchOpen: (...args) => calls.push(args),
      upToDate: (...args) => calls.push(args),
      notInstalled: (...args) => calls.push(args),
      watchStalled: (...args) => calls.push(args),
    });
    for (const host of ['api-server.invalid:6443', '192.0.2.1:6443']) {
      const request = { method: 'GET', host, code: undefined, seconds: 1 };
      observer.request(request);
      assert.deepEqual(startup.missingInputs(), [`Services from the API server ${host}`]);
      assert.equal(calls.pop(), request);
    }
    observer.watchOpen('Service', true);
    assert.deepEqual(calls, [['Service', true]], 'other calls are forwarded');
  });
});
