import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { ApiServerDouble } from '../api-server/double.ts';
import { type Manifest, serviceManifest } from '../e2e/manifests.ts';
import { namespaceManifest, networkPolicy, podManifest } from '../e2e/policy-manifests.ts';
import { PORTWIDE } from '../portwide.ts';

const explain = (...args: string[]) =>
  execa(PORTWIDE, ['policy', 'explain', ...args], {
    reject: false,
    env: { KUBERNETES_SERVICE_HOST: undefined, KUBERNETES_SERVICE_PORT: undefined },
  });

const host = (name: string, number: number) => ({
  name,
  ipv4: `10.244.1.${number}`,
  ipv6: `fd00:10:244:1::${number}`,
});
const WEB = podManifest(host('web', 11), { labels: { app: 'web' } });
const DB = podManifest(host('db', 12), {
  namespace: 'data',
  labels: { app: 'db' },
  ports: [{ name: 'sql', containerPort: 5432 }],
});
const OBJECTS: readonly Manifest[] = [
  namespaceManifest('default', { team: 'web' }),
  namespaceManifest('data'),
  WEB,
  DB,
  podManifest(host('pending', 13), { pending: true }),
  podManifest(host('other', 14), { labels: { app: 'other' } }),
  serviceManifest('web', {
    ingress: [{ ip: '198.51.100.8' }, { ip: '198.51.100.9', ipMode: 'Proxy' }],
    spec: {
      type: 'LoadBalancer',
      clusterIPs: ['10.96.0.1', 'fd00:10:96::1'],
      externalIPs: ['198.51.100.7'],
    },
  }),
  networkPolicy(
    'db',
    {
      podSelector: { matchLabels: { app: 'db' } },
      ingress: [
        {
          from: [{ namespaceSelector: { matchLabels: { team: 'web' } } }],
          ports: [{ port: 'sql' }],
        },
        { ports: [{ endPort: 99 }] },
      ],
    },
    'data',
  ),
  {
    apiVersion: 'policy.networking.k8s.io/v1alpha1',
    kind: 'AdminNetworkPolicy',
    metadata: { name: 'no-relay' },
    spec: {
      priority: 5,
      subject: { namespaces: {} },
      egress: [
        {
          action: 'Deny',
          to: [{ networks: ['198.51.100.64/28'] }],
          ports: [{ portNumber: { protocol: 'TCP', port: 25 } }],
        },
      ],
    },
  },
  {
    apiVersion: 'policy.networking.k8s.io/v1alpha1',
    kind: 'AdminNetworkPolicy',
    metadata: { name: 'no-telnet' },
    spec: {
      priority: 10,
      subject: { namespaces: {} },
      egress: [
        {
          name: 'telnet',
          action: 'Deny',
          to: [{ networks: ['0.0.0.0/0'] }],
          ports: [{ portNumber: { protocol: 'TCP', port: 23 } }],
        },
        { action: 'Allow', to: [{ domainNames: ['*.example.com'] }] },
      ],
    },
  },
];

describe('policy-explain: portwide policy explain', () => {
  let directory: string;
  before(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-explain-'));
    writeFileSync(
      join(directory, 'all.json'),
      JSON.stringify({ apiVersion: 'v1', kind: 'List', items: OBJECTS }),
    );
  });
  after(() => rmSync(directory, { recursive: true, force: true }));
  const ask = (from: string, to: string, port: number | string, ...more: string[]) =>
    explain('--manifests', directory, '--from', from, '--to', to, '--port', `${port}`, ...more);

  it('prints the deciding policy per IP family and exits with 0 when allowed', async () => {
    const { stdout, stderr, exitCode } = await ask('default/web', 'data/db', 5432);
    assert.equal(
      stdout,
      `IPv4 10.244.1.11 -> 10.244.1.12, TCP 5432: allowed
  egress allowed: no rule matches, and no NetworkPolicy isolates the pod
  ingress allowed (NetworkPolicy): NetworkPolicy data/db spec.ingress[0] allows it
IPv6 fd00:10:244:1::11 -> fd00:10:244:1::12, TCP 5432: allowed
  egress allowed: no rule matches, and no NetworkPolicy isolates the pod
  ingress allowed (NetworkPolicy): NetworkPolicy data/db spec.ingress[0] allows it`,
    );
    assert.match(stderr, /^NetworkPolicy data\/db: spec\.ingress\[1\]\.ports\[0\].*fails closed$/);
    assert.equal(exitCode, 0);
  });

  it('prints the deciding policy and exits with 1 when denied, like kubectl auth can-i', async () => {
    const { stdout, exitCode } = await ask('10.244.1.11', '10.244.1.12', 5433);
    assert.equal(
      stdout,
      `IPv4 10.244.1.11 -> 10.244.1.12, TCP 5433: denied
  egress allowed: no rule matches, and no NetworkPolicy isolates the pod
  ingress denied (NetworkPolicy): the pod is isolated by NetworkPolicy data/db, and none of its rules allows it`,
    );
    assert.equal(exitCode, 1);
  });

  it('prints names of rules and accepts domain names', async () => {
    const telnet = await ask('default/web', '203.0.113.9', 23);
    const rule = 'AdminNetworkPolicy no-telnet spec.egress[0] (telnet) denies it';
    assert.ok(telnet.stdout.includes(`  egress denied (tier Admin): ${rule}\n`), telnet.stdout);
    const name = await ask('default/web', 'WWW.example.com.', 443, '--protocol', 'udp');
    assert.match(
      name.stdout,
      /^IPv4 10\.244\.1\.11 -> www\.example\.com \(address unknown\), UDP 443: allowed/,
    );
    assert.match(name.stdout, /no-telnet spec\.egress\[1\] allows it/);
  });

  it('accepts a load balancer IP with ipMode Proxy, which is not translated by DNAT', async () => {
    const { stdout, exitCode } = await ask('default/web', '198.51.100.9', 80);
    assert.match(stdout, /^IPv4 10\.244\.1\.11 -> 198\.51\.100\.9, TCP 80: allowed/);
    assert.equal(exitCode, 0);
  });

  it('accepts an external IP that the gate AllowServiceExternalIPs keeps from being served', async () => {
    const gate = '--feature-gates=AllowServiceExternalIPs=false';
    const { stdout, exitCode } = await ask('default/web', '198.51.100.7', 80, gate);
    assert.match(stdout, /^IPv4 10\.244\.1\.11 -> 198\.51\.100\.7, TCP 80: allowed/);
    assert.equal(exitCode, 0);
    const { stderr } = await ask('default/web', '198.51.100.8', 80, gate);
    assert.ok(stderr.includes('198.51.100.8 belongs to Service default/web'), stderr);
  });

  it('exits with 1 when one IP family is denied', async () => {
    const { stdout, exitCode } = await ask('default/web', 'default/other', 23);
    assert.match(stdout, /^IPv4 .*: denied$/m);
    assert.match(stdout, /^IPv6 .*: allowed$/m);
    assert.equal(exitCode, 1);
  });

  it('prints JSON with -o json', async () => {
    const { stdout, exitCode } = await ask('10.244.1.11', '10.244.1.12', 5433, '-o', 'json');
    const { families, ...answer } = JSON.parse(stdout);
    assert.deepEqual(answer, { port: 5433, protocol: 'TCP', verdict: 'deny' });
    assert.equal(families.length, 1);
    const [{ family, ingress }] = families;
    assert.deepEqual([family, ingress.verdict, ingress.tier], ['IPv4', 'deny', 'NetworkPolicy']);
    assert.deepEqual(ingress.policies, ['NetworkPolicy data/db']);
    assert.equal(exitCode, 1);
  });

  for (const [args, message] of [
    [['default/gone', 'data/db', 1], 'default/gone: the pod does not exist'],
    [['default/pending', 'data/db', 1], 'default/pending: the pod has no address yet'],
    [['10.244.1.11', 'fd00::1', 1], '--from and --to have no addresses of the same IP family'],
    [
      ['default/web', '10.96.0.1', 80],
      '10.96.0.1 belongs to Service default/web. Policies are evaluated after DNAT',
    ],
    [['default/web', 'fd00:10:96:0::1', 80], 'fd00:10:96::1 belongs to Service default/web'],
    [['default/web', '198.51.100.7', 80], '198.51.100.7 belongs to Service default/web'],
    [['default/web', '198.51.100.8', 80], '198.51.100.8 belongs to Service default/web'],
    [['web', 'data/db', 1], 'Use namespace/name of a pod, or an IP address.'],
    [['a/b/c', 'data/db', 1], 'Use namespace/name for a pod.'],
    [
      ['default/web', '*.example.com', 1],
      'Use namespace/name of a pod, an IP address, or a domain name',
    ],
    [['default/web', 'data/db', 65536], 'Use a port from 1 to 65535'],
    [['default/web', 'data/db', '80/'], 'Use one of the protocols TCP, UDP, SCTP.'],
    [['default/web', 'data/db', '80/ICMP'], 'Use one of the protocols TCP, UDP, SCTP.'],
    [['default/web', 'data/db', '80/TCP/TCP'], 'Use one of the protocols TCP, UDP, SCTP.'],
    [['default/web', 'data/db', 'http/TCP'], 'Use a port from 1 to 65535'],
    [
      ['default/web', 'data/db', '80/UDP', '--protocol=TCP'],
      '--port 80/UDP contradicts --protocol TCP: use only one of them',
    ],
    [['default/web', 'data/db', 80, '--no-such-flag'], "unknown option '--no-such-flag'"],
    [
      ['default/web', 'data/db', 80, '--manifests=/nonexistent'],
      'manifest directory "/nonexistent" cannot be read',
    ],
  ] as const) {
    it(`exits with 2: ${message}, ${args.join(' ')}`, async () => {
      const [from, to, port, ...more] = args;
      const { stdout, stderr, exitCode } = await ask(from, to, port, ...more);
      assert.ok(stderr.includes(message), stderr);
      assert.equal(stdout, '');
      assert.equal(exitCode, 2);
    });
  }

  it('accepts the protocol after the port in upper and lower case', async () => {
    for (const [port, ...more] of [
      ['5432/TCP'],
      ['5432/tcp', '--protocol', 'TCP'],
      ['5432/udp'],
      ['5432/UDP', '--protocol', 'udp'],
    ] as const) {
      const { stdout, exitCode } = await ask('default/web', 'data/db', port, ...more);
      const protocol = port.slice(5).toUpperCase();
      assert.match(stdout, new RegExp(`^IPv4 .*, ${protocol} 5432: `));
      assert.equal(exitCode, protocol === 'TCP' ? 0 : 1);
    }
  });

  it('exits with 2 when the verdict depends on domain names, with 1 when it is denied anyway', async () => {
    const unsure = await ask('default/web', 'www.example.com', '25/TCP');
    assert.match(unsure.stdout, /: allowed\n/);
    assert.match(
      unsure.stdout,
      /unless the address of the destination is in a network of the earlier rule .*no-relay spec\.egress\[0\]/,
    );
    assert.equal(unsure.exitCode, 2);
    assert.equal((await ask('default/web', 'www.example.com', 443)).exitCode, 0);
    // IPv4 is denied regardless of domain names.
    assert.equal((await ask('default/web', 'www.example.com', 23)).exitCode, 1);
  });

  it('exits with 2 when a required flag is missing, with 0 after --help, which lists the statuses', async () => {
    assert.equal((await explain('--from', 'default/web')).exitCode, 2);
    const { stdout, exitCode } = await explain('--help');
    assert.equal(exitCode, 0);
    assert.match(stdout, /Exit status:\n {2}0 {2}allowed.*\n {2}1 {2}denied.*\n {2}2 {2}error/);
  });

  it('exits with 2 when a file cannot be read, because it may have the deciding policy', async () => {
    const broken = join(directory, 'broken.yaml');
    writeFileSync(broken, '{');
    try {
      const { stdout, stderr, exitCode } = await ask('default/web', 'data/db', 5432);
      assert.match(stdout, /: allowed\n/);
      assert.match(stderr, /broken\.yaml[\s\S]*so the verdict may be wrong/);
      assert.equal(exitCode, 2);
    } finally {
      rmSync(broken);
    }
  });

  it('exits with 2 when the API server is unreachable', async () => {
    const ends = ['--from', 'default/web', '--to', 'data/db', '--port', '80'];
    assert.equal((await explain('--master', 'http://127.0.0.1:1', ...ends)).exitCode, 2);
  });

  it('lists each resource once and watches nothing', async () => {
    const double = new ApiServerDouble();
    await double.listen();
    try {
      double.put(...OBJECTS);
      double.uninstall('cidrgroups');
      const ends = ['--from', 'default/web', '--to', 'data/db', '--port', '5432'];
      const { exitCode, stdout } = await explain('--master', double.url, ...ends);
      assert.equal(exitCode, 0, stdout);
      assert.ok(double.requests().every(({ verb }) => verb === 'list'));
    } finally {
      await double.close();
    }
  });
});
