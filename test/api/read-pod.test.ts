import assert from 'node:assert/strict';
import { InvalidObject } from '../../api/errors.ts';
import { readNamespace } from '../../api/read-namespace.ts';
import { readCidrGroup } from '../../api/read-networks.ts';
import { readPod } from '../../api/read-pod.ts';

type Raw = Record<string, unknown>;
const pod = (more: Raw = {}): Raw => ({ metadata: { name: 'web-0', namespace: 'shop' }, ...more });
const refuses = (read: () => unknown, field: string, reason: RegExp) =>
  assert.throws(read, (error) => {
    assert.ok(error instanceof InvalidObject, String(error));
    assert.equal(error.field, field);
    assert.match(error.reason, reason);
    return true;
  });

describe('read-pod: reading a Pod', () => {
  it('reads all fields', () => {
    const raw = pod({
      metadata: {
        name: 'web-0.a',
        namespace: 'shop',
        labels: { app: 'web' },
        creationTimestamp: '2026-01-02T03:04:05Z',
      },
      spec: {
        nodeName: 'node-1.example',
        containers: [
          {
            name: 'web',
            ports: [
              { name: 'http', containerPort: 8080 },
              { containerPort: 9090 },
              { name: 'dns', containerPort: 53, protocol: 'UDP' },
            ],
          },
          { name: 'other', ports: [{ name: 'dns', containerPort: 53, protocol: 'TCP' }] },
        ],
        initContainers: [
          { name: 'setup', ports: [{ name: 'gone', containerPort: 1 }] },
          {
            name: 'mesh',
            restartPolicy: 'Always',
            ports: [{ name: 'admin', containerPort: 15000 }],
          },
        ],
      },
      status: {
        phase: 'Running',
        podIP: '10.244.0.5',
        podIPs: [{ ip: '10.244.0.5' }, { ip: 'FD00:10:244::5' }],
      },
    });
    assert.deepEqual(readPod(raw), {
      kind: 'Pod',
      key: 'shop/web-0.a',
      namespace: 'shop',
      name: 'web-0.a',
      creationTimestamp: '2026-01-02T03:04:05Z',
      labels: { app: 'web' },
      addresses: ['10.244.0.5', 'fd00:10:244::5'],
      nodeName: 'node-1.example',
      hostNetwork: false,
      finished: false,
      namedPorts: [
        { name: 'http', protocol: 'TCP', port: 8080 },
        { name: 'dns', protocol: 'UDP', port: 53 },
        { name: 'dns', protocol: 'TCP', port: 53 },
        { name: 'admin', protocol: 'TCP', port: 15000 },
      ],
    });
  });

  it('reads a pod without a node and addresses', () => {
    assert.deepEqual(readPod(pod()), {
      kind: 'Pod',
      key: 'shop/web-0',
      namespace: 'shop',
      name: 'web-0',
      creationTimestamp: '',
      labels: {},
      addresses: [],
      nodeName: undefined,
      hostNetwork: false,
      finished: false,
      namedPorts: [],
    });
  });

  for (const [phase, finished] of [
    ['Pending', false],
    ['Running', false],
    ['Unknown', false],
    ['Succeeded', true],
    ['Failed', true],
  ] as const) {
    it(`treats phase ${phase} as ${finished ? '' : 'not '}finished`, () => {
      assert.equal(readPod(pod({ status: { phase } })).finished, finished);
    });
  }

  it('reads podIP when podIPs is missing', () => {
    assert.deepEqual(readPod(pod({ status: { podIP: '10.0.0.1' } })).addresses, ['10.0.0.1']);
    assert.deepEqual(readPod(pod({ status: { podIP: '' } })).addresses, []);
  });

  it('reads hostNetwork', () => {
    assert.equal(readPod(pod({ spec: { hostNetwork: true } })).hostNetwork, true);
  });

  for (const [more, field, reason] of [
    [
      { status: { podIPs: [{ ip: '10.0.0.1' }, { ip: '10.0.0.2' }] } },
      'status.podIPs',
      /one entry per/,
    ],
    [{ status: { podIPs: [{ ip: '::ffff:10.0.0.1' }] } }, 'status.podIPs[0].ip', /IP address/],
    [{ status: { podIPs: [{}] } }, 'status.podIPs[0].ip', /required/],
    [{ status: { podIP: '127.0.0.1' } }, 'status.podIP', /loopback/],
    [{ status: { podIP: '::' } }, 'status.podIP', /unspecified/],
    [{ status: { podIP: 'ff02::1' } }, 'status.podIP', /multicast/],
    [{ spec: { nodeName: 'Node 1' } }, 'spec.nodeName', /DNS subdomain/],
    [{ spec: { hostNetwork: 'yes' } }, 'spec.hostNetwork', /true or false/],
    [
      { spec: { containers: [{ ports: [{ name: 'a', containerPort: 0 }] }] } },
      'spec.containers[0].ports[0].containerPort',
      /1 to 65535/,
    ],
    [
      { spec: { containers: [{ ports: [{ name: 'a' }] }] } },
      'spec.containers[0].ports[0].containerPort',
      /required/,
    ],
    [
      { spec: { containers: [{ ports: [{ name: 'a', containerPort: 1, protocol: 'ICMP' }] }] } },
      'spec.containers[0].ports[0].protocol',
      /TCP, UDP, SCTP/,
    ],
    [{ metadata: { name: 'a', labels: { app: 7 } } }, 'metadata.labels.app', /string/],
    [{ metadata: { name: 'A' } }, 'metadata.name', /DNS subdomain/],
  ] as const) {
    it(`rejects ${field}: ${reason.source}`, () =>
      refuses(() => readPod(pod(more)), field, reason));
  }
});

describe('read-pod: reading a Namespace', () => {
  it('adds the label kubernetes.io/metadata.name', () => {
    assert.deepEqual(readNamespace({ metadata: { name: 'shop', labels: { team: 'a' } } }), {
      kind: 'Namespace',
      key: 'shop',
      name: 'shop',
      labels: { team: 'a', 'kubernetes.io/metadata.name': 'shop' },
    });
    const other = { 'kubernetes.io/metadata.name': 'other' };
    assert.deepEqual(readNamespace({ metadata: { name: 'shop', labels: other } }).labels, {
      'kubernetes.io/metadata.name': 'shop',
    });
  });

  it('rejects an invalid name', () => {
    refuses(() => readNamespace({ metadata: { name: 'a.b' } }), 'metadata.name', /DNS label/);
  });
});

describe('read-pod: reading a CIDRGroup', () => {
  const metadata = { name: 'cloud-1', labels: { env: 'cloud-1' } };
  const cidrs = (more: Raw) => readCidrGroup({ metadata, ...more }).cidrs;

  it('reads CIDRs under spec and at the top level', () => {
    const list = ['192.0.2.0/24', '2001:DB8::/32'];
    const group = {
      kind: 'CIDRGroup',
      key: 'cloud-1',
      name: 'cloud-1',
      labels: { env: 'cloud-1' },
      cidrs: ['192.0.2.0/24', '2001:db8::/32'],
    };
    assert.deepEqual(readCidrGroup({ metadata, spec: { cidrs: list } }), group);
    assert.deepEqual(readCidrGroup({ metadata, cidrs: list }), group);
    assert.deepEqual(readCidrGroup({ metadata, spec: {}, cidrs: list }), group);
  });

  it('clears host bits and removes duplicates', () => {
    assert.deepEqual(cidrs({ cidrs: ['10.1.2.3/8', '10.0.0.0/8', 'fd00::1/64'] }), [
      '10.0.0.0/8',
      'fd00::/64',
    ]);
  });

  it('rejects an empty group, as NPEP-182 does', () => {
    for (const more of [{}, { spec: {} }, { spec: null }, { spec: { cidrs: null } }]) {
      refuses(() => cidrs(more), 'spec.cidrs', /is required/);
    }
    refuses(() => cidrs({ spec: { cidrs: [] } }), 'spec.cidrs', /must not be empty/);
    refuses(() => cidrs({ cidrs: [] }), 'cidrs', /must not be empty/);
  });

  it('rejects more than 25 CIDRs', () => {
    const many = Array.from({ length: 26 }, (_, index) => `10.${index}.0.0/16`);
    assert.equal(cidrs({ spec: { cidrs: many.slice(1) } }).length, 25);
    refuses(() => cidrs({ spec: { cidrs: many } }), 'spec.cidrs', /at most 25 items, not 26/);
    refuses(() => cidrs({ cidrs: many }), 'cidrs', /at most 25/);
  });

  for (const [more, field, reason] of [
    [{ spec: { cidrs: ['10.0.0.0'] } }, 'spec.cidrs[0]', /CIDR/],
    [{ spec: { cidrs: ['10.0.0.0/33'] } }, 'spec.cidrs[0]', /CIDR/],
    [{ spec: { cidrs: ['::ffff:10.0.0.0/104'] } }, 'spec.cidrs[0]', /CIDR/],
    [{ spec: { cidrs: ['010.0.0.0/8'] } }, 'spec.cidrs[0]', /CIDR/],
    [{ spec: { cidrs: [' 10.0.0.0/8'] } }, 'spec.cidrs[0]', /CIDR/],
    [{ spec: { cidrs: [7] } }, 'spec.cidrs[0]', /string/],
    [{ spec: { cidrs: '10.0.0.0/8' } }, 'spec.cidrs', /list/],
    [{ spec: { cidr: '10.0.0.0/8' } }, 'spec.cidr', /unknown field/],
    [
      { spec: { cidrs: ['10.0.0.0/8'] }, cidrs: ['10.0.0.0/8'] },
      'cidrs',
      /together with spec.cidrs/,
    ],
    [{ spec: 7 }, 'spec', /object/],
  ] as const) {
    it(`rejects ${JSON.stringify(more)}`, () => refuses(() => cidrs(more), field, reason));
  }
});
