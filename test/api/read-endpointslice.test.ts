import assert from 'node:assert/strict';
import { InvalidObject } from '../../api/errors.ts';
import { readEndpointSlice } from '../../api/read-endpointslice.ts';

type Raw = Record<string, unknown>;

const slice = (more: Raw = {}): Raw => ({
  apiVersion: 'discovery.k8s.io/v1',
  kind: 'EndpointSlice',
  metadata: { name: 'web-x7.1', labels: { 'kubernetes.io/service-name': 'web' } },
  addressType: 'IPv4',
  ...more,
});
const endpoint = (more: Raw) => slice({ endpoints: [{ addresses: ['10.1.0.1'], ...more }] });

describe('read-endpointslice: reading an EndpointSlice', () => {
  it('reads all fields', () => {
    const raw = slice({
      metadata: {
        name: 'web-x7',
        namespace: 'voice',
        labels: { 'kubernetes.io/service-name': 'web' },
        annotations: {
          'endpoints.kubernetes.io/last-change-trigger-time': '2026-01-02T03:04:05.678901234Z',
        },
      },
      addressType: 'IPv6',
      ports: [
        { name: 'sip', protocol: 'UDP', port: 5060 },
        { name: '', protocol: null, port: null },
        { name: 'zero', port: 0 },
      ],
      endpoints: [
        {
          addresses: ['FD00:0::1', 'fd00::2'],
          conditions: { ready: false, serving: true, terminating: true },
          nodeName: 'node-1.example',
          zone: 'Zone A',
          hostname: 'web-0',
          hints: { forZones: [{ name: 'z1' }, { name: 'z2' }], forNodes: [{ name: 'n1' }] },
        },
      ],
    });
    assert.deepEqual(readEndpointSlice(raw), {
      kind: 'EndpointSlice',
      key: 'voice/web-x7',
      namespace: 'voice',
      name: 'web-x7',
      serviceKey: 'voice/web',
      headlessLabel: false,
      family: 'IPv6',
      triggerTime: Date.UTC(2026, 0, 2, 3, 4, 5, 678),
      ports: [
        { name: 'sip', protocol: 'UDP', port: 5060 },
        { name: '', protocol: 'TCP', port: undefined },
      ],
      endpoints: [
        {
          address: 'fd00::1',
          ready: false,
          serving: true,
          terminating: true,
          nodeName: 'node-1.example',
          zone: 'Zone A',
          hostname: 'web-0',
          ordinal: 0,
          ordinalPrefix: 'web-',
          hintedZones: ['z1', 'z2'],
          hintedNodes: ['n1'],
        },
      ],
    });
  });

  it('uses the defaults of kube-proxy for null and missing fields', () => {
    const plain = {
      address: '10.1.0.1',
      ready: true,
      serving: true,
      terminating: false,
      nodeName: undefined,
      zone: undefined,
      hostname: undefined,
      hintedZones: undefined,
      hintedNodes: undefined,
    };
    for (const more of [
      {},
      { conditions: null, nodeName: null, zone: null, hostname: null, hints: null },
      { conditions: { ready: null, serving: null, terminating: null } },
      { hints: { forZones: [], forNodes: null } },
    ]) {
      assert.deepEqual(readEndpointSlice(endpoint(more))?.endpoints, [plain]);
    }
    const bare = readEndpointSlice(slice({ ports: null, endpoints: null }));
    assert.deepEqual([bare?.ports, bare?.endpoints], [[], []]);
  });

  it('keeps a repeated address', () => {
    const twice = [{ addresses: ['10.1.0.1'] }, { addresses: ['10.1.0.1'] }];
    assert.equal(readEndpointSlice(slice({ endpoints: twice }))?.endpoints.length, 2);
  });

  it('ignores a missing or invalid trigger time', () => {
    const key = 'endpoints.kubernetes.io/last-change-trigger-time';
    for (const annotations of [
      undefined,
      null,
      'none',
      {},
      ...['', 'yesterday', '2026-02-30T00:00:00Z', 1767323045, null, {}].map((time) => ({
        [key]: time,
      })),
    ]) {
      const metadata = { name: 'x', labels: { 'kubernetes.io/service-name': 'web' }, annotations };
      const read = readEndpointSlice(slice({ metadata }));
      assert.deepEqual([read?.serviceKey, read?.triggerTime], ['default/web', undefined]);
    }
  });

  const labels = (value: unknown) => slice({ metadata: { name: 'x', labels: value } });
  for (const [what, raw] of [
    [
      'of address type FQDN',
      slice({ addressType: 'FQDN', endpoints: [{ addresses: ['a.example'] }] }),
    ],
    ['without labels', labels(undefined)],
    ['with an empty Service name', labels({ 'kubernetes.io/service-name': '' })],
  ] as const) {
    it(`ignores a slice ${what}`, () => assert.equal(readEndpointSlice(raw), undefined));
  }

  it('reads the label of a headless Service', () => {
    const raw = labels({
      'kubernetes.io/service-name': 'web',
      'service.kubernetes.io/headless': '',
    });
    assert.equal(readEndpointSlice(raw)?.headlessLabel, true);
  });

  const refused: readonly (readonly [Raw, string, RegExp])[] = [
    [endpoint({ hostname: 'a.b' }), 'endpoints[0].hostname', /DNS label/],
    [slice({ addressType: undefined }), 'addressType', /^is required$/],
    [slice({ addressType: 'ipv4' }), 'addressType', /IPv4, IPv6, FQDN/],
    [slice({ metadata: { name: 'a_b' } }), 'metadata.name', /DNS subdomain/],
    [
      labels({ 'kubernetes.io/service-name': 'Web' }),
      'metadata.labels["kubernetes.io/service-name"]',
      /DNS label/,
    ],
    [slice({ ports: [{ port: 65536 }] }), 'ports[0].port', /65535/],
    [slice({ ports: [{ protocol: 'ICMP' }] }), 'ports[0].protocol', /TCP, UDP, SCTP/],
    [slice({ ports: [{ name: 'A' }] }), 'ports[0].name', /DNS label/],
    [slice({ ports: [{ name: 'a' }, { name: 'a' }] }), 'ports[1].name', /duplicates/],
    [slice({ endpoints: {} }), 'endpoints', /list/],
    [endpoint({ addresses: [] }), 'endpoints[0].addresses', /must have an address/],
    [endpoint({ addresses: null }), 'endpoints[0].addresses', /must have an address/],
    [endpoint({ addresses: ['fd00::1'] }), 'endpoints[0].addresses[0]', /IPv4 address/],
    [endpoint({ addresses: ['10.1.0.1', '::2'] }), 'endpoints[0].addresses[1]', /IPv4 address/],
    [endpoint({ addresses: ['10.1.0.1;'] }), 'endpoints[0].addresses[0]', /IP address/],
    [endpoint({ addresses: ['127.0.0.2'] }), 'endpoints[0].addresses[0]', /loopback/],
    [endpoint({ addresses: ['169.254.169.254'] }), 'endpoints[0].addresses[0]', /link-local/],
    [endpoint({ addresses: ['224.0.0.1'] }), 'endpoints[0].addresses[0]', /multicast/],
    [endpoint({ addresses: ['0.0.0.0'] }), 'endpoints[0].addresses[0]', /unspecified/],
    [endpoint({ addresses: ['255.255.255.255'] }), 'endpoints[0].addresses[0]', /broadcast/],
    [endpoint({ conditions: { ready: 'yes' } }), 'endpoints[0].conditions.ready', /true or false/],
    [endpoint({ nodeName: 'N' }), 'endpoints[0].nodeName', /DNS subdomain/],
    [endpoint({ zone: 7 }), 'endpoints[0].zone', /string/],
    [endpoint({ hints: { forZones: [{}] } }), 'endpoints[0].hints.forZones[0].name', /required/],
  ];
  for (const [title, fields, ordinal, prefix] of [
    [
      'the name of the pod',
      { targetRef: { kind: 'Pod', name: 'sfu-eu-12' }, hostname: 'a-3' },
      12,
      'sfu-eu-',
    ],
    [
      'the hostname of a pod without',
      { targetRef: { kind: 'Pod', name: 'x7z12' }, hostname: 'a-3' },
      3,
      'a-',
    ],
    ['the hostname', { hostname: 'media-0' }, 0, 'media-'],
    ['a name with zeros', { targetRef: { name: 'media-007' } }, 7, 'media-'],
    ['no name', {}, undefined, undefined],
    ['a name that ends in letters', { targetRef: { name: 'media-3a' } }, undefined, undefined],
    [
      'the name of another object',
      { targetRef: { kind: 'Node', name: 'node-3' } },
      undefined,
      undefined,
    ],
    ['a name that is no text', { targetRef: { name: 3 } }, undefined, undefined],
  ] as const) {
    it(`reads the ordinal from ${title}`, () => {
      const read = readEndpointSlice(endpoint(fields))?.endpoints[0];
      assert.equal(read?.ordinal, ordinal);
      assert.equal(read?.ordinalPrefix, prefix);
    });
  }

  for (const [raw, field, reason] of refused) {
    it(`rejects ${field}: ${reason.source}`, () => {
      assert.throws(
        () => readEndpointSlice(raw),
        (error) => {
          assert.ok(error instanceof InvalidObject, String(error));
          assert.equal(error.field, field);
          assert.match(error.reason, reason);
          return true;
        },
      );
    });
  }
});
