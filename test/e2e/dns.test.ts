import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { consoleCommands, fencedBlocks } from '../docs/page.ts';
import { createLab, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { promtoolProblems } from '../metrics/promtool.ts';
import { Scrape } from '../metrics/scrape.ts';
import { type DigResult, type DnsProcess, dig, startDns } from './dns-server.ts';
import { ApiFeed, ManifestFeed } from './feed.ts';
import { ALL_PORTS, type Manifest, PLACEHOLDER, serviceManifest } from './manifests.ts';

const ZONE = 'svc.cluster.local';
const WEB_PORTS = [
  { name: 'http', port: 80 },
  { name: 'sip', port: 5060, protocol: 'UDP' },
];
const SOA = 'ns.dns.cluster.local. hostmaster.cluster.local. SERIAL 7200 1800 86400 5';

function slice(
  service: string,
  endpoints: readonly object[],
  ports: readonly object[] = [],
  annotations: object = {},
): Manifest {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      name: `${service}-1`,
      namespace: 'default',
      labels: { 'kubernetes.io/service-name': service },
      annotations,
    },
    addressType: 'IPv4',
    ports,
    endpoints,
  };
}

const endpoint = (address: string, more: object = {}) => ({ addresses: [address], ...more });
const headless = (name: string, more: object = {}): Manifest => ({
  ...serviceManifest(name, { spec: { clusterIPs: ['None'], ...more } }),
});
const externalName = (name: string, target: string): Manifest => ({
  apiVersion: 'v1',
  kind: 'Service',
  metadata: { name, namespace: 'default' },
  spec: { type: 'ExternalName', externalName: target },
});
const web = serviceManifest('web', {
  spec: { clusterIPs: ['10.96.0.1', 'fd00:10:96::1'], ports: WEB_PORTS },
});
const webOnAllPorts = serviceManifest('web', {
  annotations: ALL_PORTS,
  spec: { clusterIPs: ['10.96.0.1', 'fd00:10:96::1'], ports: WEB_PORTS },
});
const ofDb = slice(
  'db',
  [
    endpoint('10.244.1.11', { hostname: 'db-0' }),
    endpoint('10.244.1.12'),
    endpoint('10.244.1.13', { conditions: { ready: false } }),
  ],
  [{ name: 'sql', port: 5432 }],
);
const OBJECTS: readonly Manifest[] = [
  web,
  serviceManifest('all', {
    annotations: ALL_PORTS,
    spec: { clusterIPs: ['10.96.0.2', 'fd00:10:96::2'], ports: [{ name: 'first', port: 1 }] },
  }),
  headless('db', { ports: [{ name: 'sql', port: 5432 }] }),
  ofDb,
  headless('many'),
  slice(
    'many',
    Array.from({ length: 200 }, (_, index) => endpoint(`10.244.9.${index + 1}`)),
  ),
  externalName('inside', `web.default.${ZONE}`),
  externalName('outside', 'www.default.svc.example.org'),
  externalName('wide', 'large.default.svc.example.org'),
  externalName('nowhere', 'gone.default.svc.example.org'),
];
/** Addresses of the upstream server. */
const OTHERS: readonly Manifest[] = [
  serviceManifest('www', { spec: { clusterIPs: ['192.0.2.80'], ports: PLACEHOLDER } }),
  headless('large'),
  slice(
    'large',
    Array.from({ length: 200 }, (_, index) => endpoint(`198.18.0.${index + 1}`)),
  ),
];

describe('portwide dns', () => {
  let lab: Lab;
  let directory: string;
  const feed = new ManifestFeed();
  const otherFeed = new ManifestFeed();
  let server: DnsProcess;
  /** Answers for example.org only. */
  let other: DnsProcess;

  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-dns-'));
    lab = await createLab({ pods: 1, remotePods: 0 });
    feed.write('objects', OBJECTS);
    otherFeed.write('objects', OTHERS);
    const resolvConf = join(directory, 'resolv.conf');
    // The first address has no listener; the second is the upstream server.
    writeFileSync(resolvConf, 'nameserver 198.51.100.10\nnameserver 2001:db8:51::10\n');
    [server, other] = await Promise.all([
      startDns(lab.node, [...feed.flags, `--forward=${resolvConf}`, '--lameduck=1s']),
      startDns(lab.elsewhere, [
        ...otherFeed.flags,
        '--cluster-domain=example.org',
        '--bind-address=2001:db8:51::10',
        '--ttl=60',
      ]),
    ]);
  });
  after(async () => {
    await lab?.destroy();
    feed.destroy();
    otherFeed.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  /** Queries the server on the node. */
  const ask = (query: string, from: Host = lab.client): Promise<DigResult> =>
    dig(from, `@${lab.node.ipv4} ${query}`);
  const get = async (path: string, host: Host = lab.node, port = 9153) => {
    const script = `const answer = await fetch('http://127.0.0.1:${port}${path}');
      console.log(answer.status, await answer.text());`;
    const { stdout } = await host.exec(process.execPath, ['--input-type=module', '-e', script]);
    const [, code, body = ''] = /^(\d+) (.*)$/s.exec(stdout) ?? [];
    return { code: Number(code), body };
  };
  const withoutSerial = (text: string | undefined) =>
    text?.replace(/(hostmaster\S+) \d+ /, '$1 SERIAL ');

  describe('answers over UDP and TCP, over IPv4 and IPv6:', () => {
    const full = (name: string) => `${name}.default.${ZONE}`;
    for (const [name, type, expected] of [
      [full('web'), 'A', [`${full('web')}. 5 IN A 10.96.0.1`]],
      [full('web'), 'AAAA', [`${full('web')}. 5 IN AAAA fd00:10:96::1`]],
      [
        `_http._tcp.${full('web')}`,
        'SRV',
        [`_http._tcp.${full('web')}. 5 IN SRV 0 100 80 ${full('web')}.`],
      ],
      [
        `_sip._udp.${full('web')}`,
        'SRV',
        [`_sip._udp.${full('web')}. 5 IN SRV 0 100 5060 ${full('web')}.`],
      ],
      [full('all'), 'A', [`${full('all')}. 5 IN A 10.96.0.2`]],
      [full('all'), 'AAAA', [`${full('all')}. 5 IN AAAA fd00:10:96::2`]],
      [full('db'), 'A', [`${full('db')}. 5 IN A 10.244.1.11`, `${full('db')}. 5 IN A 10.244.1.12`]],
      [`db-0.${full('db')}`, 'A', [`db-0.${full('db')}. 5 IN A 10.244.1.11`]],
      [
        `_sql._tcp.${full('db')}`,
        'SRV',
        [
          `_sql._tcp.${full('db')}. 5 IN SRV 0 100 5432 10-244-1-12.${full('db')}.`,
          `_sql._tcp.${full('db')}. 5 IN SRV 0 100 5432 db-0.${full('db')}.`,
        ],
      ],
      ['1.0.96.10.in-addr.arpa', 'PTR', [`1.0.96.10.in-addr.arpa. 5 IN PTR ${full('web')}.`]],
      [
        '11.1.244.10.in-addr.arpa',
        'PTR',
        [`11.1.244.10.in-addr.arpa. 5 IN PTR db-0.${full('db')}.`],
      ],
      [full('inside'), 'CNAME', [`${full('inside')}. 5 IN CNAME ${full('web')}.`]],
      [
        full('inside'),
        'A',
        [`${full('inside')}. 5 IN CNAME ${full('web')}.`, `${full('web')}. 5 IN A 10.96.0.1`],
      ],
      [
        '10-1-2-3.default.pod.cluster.local',
        'A',
        ['10-1-2-3.default.pod.cluster.local. 5 IN A 10.1.2.3'],
      ],
      ['dns-version.cluster.local', 'TXT', ['dns-version.cluster.local. 5 IN TXT "1.1.0"']],
      ['cluster.local', 'SOA', [`cluster.local. 5 IN SOA ${SOA}`]],
      ['cluster.local', 'NS', ['cluster.local. 5 IN NS ns.dns.cluster.local.']],
      [full('web'), 'ANY', [`${full('web')}. 5 IN HINFO "RFC8482" ""`]],
    ] as const) {
      it(`${type} of ${name}`, async () => {
        for (const [query, transport] of [
          [`@${lab.node.ipv4} ${name} ${type} +notcp`, 'UDP'],
          [`@${lab.node.ipv6} ${name} ${type} +tcp`, 'TCP'],
        ] as const) {
          const dug = await dig(lab.client, query);
          assert.deepEqual(dug.answer.map(withoutSerial).toSorted(), expected.toSorted());
          assert.deepEqual(
            [dug.status, dug.flags, dug.transport],
            ['NOERROR', 'qr aa rd ra', transport],
          );
        }
      });
    }

    it('answers PTR queries for IPv6 addresses, with `dig -x`', async () => {
      const { answer } = await dig(lab.client, `@${lab.node.ipv6} -x fd00:10:96::2`);
      assert.match(answer[0] ?? '', /\.ip6\.arpa\. 5 IN PTR all\.default\.svc\.cluster\.local\.$/);
    });

    it('answers queries of libc resolvers in pods', async () => {
      const [pod = assert.fail()] = lab.pods;
      for (const [name, type, expected] of [
        [full('web'), 'A', { answers: ['10.96.0.1'] }],
        [full('web'), 'AAAA', { answers: ['fd00:10:96::1'] }],
        [`_http._tcp.${full('web')}`, 'SRV', { answers: [`${full('web')} port 80`] }],
        [full('all'), 'SRV', { code: 'ENODATA' }],
        [full('gone'), 'A', { code: 'ENOTFOUND' }],
      ] as const) {
        assert.deepEqual(await pod.resolve(lab.node.ipv4, name, type), expected, name);
      }
    });

    it('answers with additional addresses of SRV targets and name servers', async () => {
      const { additional } = await ask(`_sql._tcp.${full('db')} SRV`);
      assert.deepEqual(additional.toSorted(), [
        `10-244-1-12.${full('db')}. 5 IN A 10.244.1.12`,
        `db-0.${full('db')}. 5 IN A 10.244.1.11`,
      ]);
      const ns = await ask('cluster.local NS');
      const own = [`A ${lab.node.ipv4}`, `AAAA ${lab.node.ipv6}`];
      for (const address of own)
        assert.ok(ns.additional.includes(`ns.dns.cluster.local. 5 IN ${address}`));
    });

    it('answers in the letter case of the question', async () => {
      const { question, answer } = await ask('WeB.DeFaUlT.sVc.ClUsTeR.lOcAl A');
      assert.equal(question, 'WeB.DeFaUlT.sVc.ClUsTeR.lOcAl. IN A');
      assert.deepEqual(answer, ['WeB.DeFaUlT.sVc.ClUsTeR.lOcAl. 5 IN A 10.96.0.1']);
    });
  });

  it('answers with each address first at some time', async () => {
    const firsts = new Set<string | undefined>();
    await waitFor('each address came first', async () => {
      firsts.add((await ask(`db.default.${ZONE} A`)).answer[0]);
      return firsts.size === 2;
    });
  });

  it('answers NXDOMAIN or NODATA for missing names and types', async () => {
    for (const [query, status] of [
      [`gone.default.${ZONE} A`, 'NXDOMAIN'],
      [`gone.nowhere.${ZONE} A`, 'NXDOMAIN'],
      [`web.default.${ZONE} TXT`, 'NOERROR'],
      [`default.${ZONE} A`, 'NOERROR'],
      ['cluster.local AAAA', 'NOERROR'],
    ] as const) {
      const dug = await ask(query);
      assert.deepEqual([dug.status, dug.flags, dug.answer], [status, 'qr aa rd ra', []], query);
      assert.deepEqual(dug.authority.map(withoutSerial), [`cluster.local. 5 IN SOA ${SOA}`], query);
    }
  });

  it('has no SRV records for an all-ports Service and its placeholder', async () => {
    for (const [name, status] of [
      [`all.default.${ZONE}`, 'NOERROR'],
      [`_first._tcp.all.default.${ZONE}`, 'NXDOMAIN'],
    ] as const) {
      const dug = await ask(`${name} SRV`);
      assert.deepEqual([dug.status, dug.answer], [status, []]);
    }
  });

  it('removes and restores SRV records when a Service changes to all-ports and back', async () => {
    const srv = () => ask(`_http._tcp.web.default.${ZONE} SRV`);
    const others = OBJECTS.filter((object) => object !== web);
    feed.write('objects', [webOnAllPorts, ...others]);
    await waitFor('the SRV record is removed', async () => (await srv()).status === 'NXDOMAIN');
    assert.deepEqual((await ask(`web.default.${ZONE} A`)).answer.length, 1);
    feed.write('objects', OBJECTS);
    await waitFor('the SRV record is restored', async () => (await srv()).answer.length === 1);
  });

  describe('supports EDNS0:', () => {
    it('answers queries with and without EDNS0', async () => {
      const { opt } = await ask(`web.default.${ZONE} A +bufsize=4096`);
      assert.equal(opt, 'EDNS: version: 0, flags:; udp: 1232');
      const { opt: signed } = await ask(`web.default.${ZONE} A +dnssec`);
      assert.equal(signed, 'EDNS: version: 0, flags: do; udp: 1232');
      const { opt: none } = await ask(`web.default.${ZONE} A +noedns`);
      assert.equal(none, undefined);
    });

    it('answers BADVERS to other versions', async () => {
      const dug = await ask(`web.default.${ZONE} A +edns=1 +noednsneg`);
      assert.deepEqual([dug.status, dug.answer], ['BADVERS', []]);
      const settled = await ask(`web.default.${ZONE} A +edns=1`);
      assert.deepEqual([settled.status, settled.answer.length], ['NOERROR', 1]);
    });

    it('ignores EDNS options', async () => {
      const options = '+subnet=192.0.2.0/24 +nsid +padding=128 +keepalive +ednsopt=65001:abcd';
      assert.equal((await ask(`web.default.${ZONE} A ${options}`)).answer.length, 1);
    });

    for (const [what, options, most] of [
      ['512 bytes without EDNS0', '+noedns', 512],
      ['at least 512 bytes', '+bufsize=100', 512],
      ["the client's buffer size", '+bufsize=900', 900],
      ['at most 1,232 bytes', '+bufsize=4096', 1232],
    ] as const) {
      it(`answers ${what}, and the rest over TCP`, async () => {
        const name = `many.default.${ZONE}`;
        const cut = await ask(`${name} A +ignore ${options}`);
        assert.deepEqual([cut.status, cut.flags], ['NOERROR', 'qr aa tc rd ra']);
        assert.ok(cut.size <= most && cut.size > most - 16, `${cut.size}`);
        const whole = await ask(`${name} A ${options}`);
        assert.deepEqual([whole.transport, whole.flags], ['TCP', 'qr aa rd ra']);
        assert.equal(new Set(whole.answer).size, 200);
      });
    }
  });

  it('answers several queries over one connection', async () => {
    const names = ['web', 'all', 'db', 'web'].map((name) => `${name}.default.${ZONE}`);
    const { stdout } = await lab.client.exec('dig', [
      `@${lab.node.ipv4}`,
      '+tcp',
      '+keepopen',
      '+short',
      ...names,
    ]);
    const answered = stdout.split('\n').toSorted();
    assert.deepEqual(answered, [
      '10.244.1.11',
      '10.244.1.12',
      '10.96.0.1',
      '10.96.0.1',
      '10.96.0.2',
    ]);
  });

  it('refuses unsupported classes, types and opcodes', async () => {
    for (const [query, status] of [
      ['cluster.local AXFR', undefined],
      ['cluster.local IXFR=1', 'REFUSED'],
      ['version.bind CH TXT', 'REFUSED'],
      ['cluster.local SOA +opcode=NOTIFY', 'NOTIMP'],
      ['cluster.local SOA +opcode=UPDATE', 'NOTIMP'],
      ['+header-only cluster.local', 'FORMERR'],
    ] as const) {
      if (status !== undefined) assert.equal((await ask(query)).status, status, query);
      else {
        const { stdout } = await lab.client.exec('dig', [`@${lab.node.ipv4}`, ...query.split(' ')]);
        assert.match(stdout, /Transfer failed/);
      }
    }
  });

  describe('forwards other domains:', () => {
    it('forwards other domains to a resolver that answers', async () => {
      const dug = await ask('www.default.svc.example.org A');
      assert.deepEqual(dug.answer, ['www.default.svc.example.org. 60 IN A 192.0.2.80']);
      assert.deepEqual([dug.status, dug.flags], ['NOERROR', 'qr aa rd']);
      const tcp = await ask('www.default.svc.example.org A +tcp');
      // This response was cached, perhaps for a second.
      assert.match(
        tcp.answer[0] ?? '',
        /^www\.default\.svc\.example\.org\. \d+ IN A 192\.0\.2\.80$/,
      );
      assert.deepEqual([tcp.flags, tcp.transport], ['qr rd', 'TCP']);
      const [{ resolver } = assert.fail()] = server.logged('upstream resolver does not answer');
      assert.equal(resolver, '198.51.100.10');
    });

    it('returns errors and NXDOMAIN of resolvers', async () => {
      assert.equal((await ask('gone.default.svc.example.org A')).status, 'NXDOMAIN');
      assert.equal((await ask('example.com A')).status, 'REFUSED');
      assert.equal((await ask('-x 192.0.2.99')).status, 'REFUSED');
      const { answer } = await ask('-x 192.0.2.80');
      assert.deepEqual(answer, ['80.2.0.192.in-addr.arpa. 60 IN PTR www.default.svc.example.org.']);
    });

    it('returns responses of resolvers of any length', async () => {
      const cut = await ask('large.default.svc.example.org A +ignore +bufsize=1000');
      assert.ok(cut.flags.includes('tc') && cut.size <= 1000);
      const whole = await ask('large.default.svc.example.org A +bufsize=1000');
      assert.deepEqual([whole.transport, whole.answer.length], ['TCP', 200]);
    });

    it('resolves external alias targets', async () => {
      const alias = (name: string, target: string) =>
        `${name}.default.${ZONE}. 5 IN CNAME ${target}.default.svc.example.org.`;
      const dug = await ask(`outside.default.${ZONE} A`);
      const address = 'www.default.svc.example.org. 60 IN A 192.0.2.80';
      assert.deepEqual(dug.answer, [alias('outside', 'www'), address]);
      assert.deepEqual([dug.status, dug.flags], ['NOERROR', 'qr aa rd ra']);
      const nothing = await ask(`outside.default.${ZONE} AAAA`);
      assert.deepEqual([nothing.status, nothing.answer], ['NOERROR', [alias('outside', 'www')]]);
      assert.match(nothing.authority[0] ?? '', /^example\.org\. 60 IN SOA /);
      const wide = await ask(`wide.default.${ZONE} A +tcp`);
      assert.deepEqual([wide.status, wide.answer.length], ['NOERROR', 201]);
      const gone = await ask(`nowhere.default.${ZONE} A`);
      assert.deepEqual([gone.status, gone.answer], ['NXDOMAIN', [alias('nowhere', 'gone')]]);
    });

    it('forwards to resolvers on ports other than 53', async () => {
      const flags = [...otherFeed.flags, '--cluster-domain=example.org', '--metrics-bind-address='];
      const port = '--port=5354';
      const far = await startDns(lab.elsewhere, [...flags, '--bind-address=2001:db8:51::10', port]);
      const near = await startDns(lab.node, [
        ...feed.flags,
        '--port=5354',
        '--metrics-bind-address=',
        '--forward=[2001:db8:51::10]:5354',
      ]);
      const query = `@${lab.node.ipv4} -p 5354 www.default.svc.example.org A`;
      assert.equal((await dig(lab.client, query)).answer.length, 1);
      await Promise.all([near.stop(), far.stop()]);
    });

    it('refuses other domains without --forward', async () => {
      const dug = await dig(lab.client, '@2001:db8:51::10 example.com A');
      assert.deepEqual([dug.status, dug.flags], ['REFUSED', 'qr rd']);
      assert.equal(other.logged('serving').length, 1);
      // The effect is tested below.
      writeFileSync(join(directory, 'resolv.conf'), 'nameserver 2001:db8:51::10\n');
    });
  });

  it('answers from the queried address, also if it was added later', async () => {
    const { node, client } = lab;
    await node.exec('ip', ['address', 'add', '203.0.113.99/32', 'dev', 'lo']);
    await node.exec('ip', ['address', 'add', '2001:db8:113::99/128', 'dev', 'lo']);
    for (const address of ['203.0.113.99', '2001:db8:113::99']) {
      // dig accepts responses only from that address.
      await waitFor('the server answers on it', async () => {
        const args = [`@${address}`, '+short', '+tries=1', '+timeout=1', `web.default.${ZONE}`];
        return (await client.exec('dig', args, { reject: false })).stdout === '10.96.0.1';
      });
    }
    await node.exec('ip', ['address', 'del', '203.0.113.99/32', 'dev', 'lo']);
  });

  describe('operation', () => {
    it('exports metrics', async () => {
      assert.deepEqual(await get('/healthz'), { code: 200, body: 'OK' });
      assert.deepEqual(await get('/ready'), { code: 200, body: 'OK' });
      const { body } = await get('/metrics');
      const scrape = new Scrape(body);
      const labels = {
        server: 'dns://:53',
        zone: 'cluster.local.',
        proto: 'tcp',
        family: '2',
        type: 'SRV',
      };
      assert.ok((scrape.value('coredns_dns_requests_total', labels) ?? 0) >= 3);
      const forwarded = { zone: '.', rcode: 'NXDOMAIN', plugin: 'forward' };
      assert.equal(scrape.value('coredns_dns_responses_total', forwarded), 1);
      const failed = { to: '198.51.100.10:53', reason: 'unreachable' };
      assert.ok((scrape.value('portwide_dns_forward_failures_total', failed) ?? 0) >= 1);
      const cacheLabels = { zones: '.', type: 'success' };
      assert.ok((scrape.value('coredns_cache_hits_total', cacheLabels) ?? 0) >= 1);
      assert.equal(scrape.value('portwide_dns_resolver_up', { to: '[2001:db8:51::10]:53' }), 1);
      assert.equal(scrape.value('coredns_panics_total'), 0);
      assert.deepEqual(await promtoolProblems(body), []);
      assert.deepEqual(
        server.log.filter(({ level }) => level > 40),
        [],
      );
    });

    it('reports a failure to listen', async () => {
      const flags = [...feed.flags, `--bind-address=${lab.node.ipv4}`, '--metrics-bind-address='];
      await assert.rejects(
        startDns(lab.node, flags),
        /cannot listen on 192\.168\.77\.10, port 53 \(EADDRINUSE\): another process/,
      );
    });

    it('is not ready and fails queries for its domain before it has listed the Services', async () => {
      const pages = '--metrics-bind-address=127.0.0.1:9154';
      const flags = ['--master=http://127.0.0.1:1', '--port=5353', '--forward=none', pages];
      const waiting = await startDns(lab.elsewhere, flags, 'listening');
      const of = (query: string) => dig(lab.client, `@198.51.100.10 -p 5353 ${query}`);
      assert.equal((await of(`web.default.${ZONE} A`)).status, 'SERVFAIL');
      assert.equal((await of('-x 10.96.0.1')).status, 'SERVFAIL');
      assert.equal((await of('example.com A')).status, 'REFUSED');
      assert.equal((await get('/readyz', lab.elsewhere, 9154)).code, 503);
      assert.equal((await get('/healthz', lab.elsewhere, 9154)).code, 200);
      assert.equal(waiting.logged('serving').length, 0);
      assert.equal(await waiting.stop(), 0);
    });

    it('watches Services at an API server', async () => {
      const api = await ApiFeed.start(lab);
      const pages = '--metrics-bind-address=127.0.0.1:9156';
      const flags = [...api.flags, '--port=5353', pages];
      api.write('objects', OBJECTS);
      await api.written();
      const own = await startDns(lab.node, flags);
      const srv = () =>
        dig(lab.client, `@${lab.node.ipv4} -p 5353 _http._tcp.web.default.${ZONE} SRV`);
      await waitFor('it knows', async () => (await srv()).answer.length === 1);
      api.write('objects', [webOnAllPorts, ...OBJECTS.filter((object) => object !== web)]);
      await waitFor('the SRV record is removed', async () => (await srv()).status === 'NXDOMAIN');
      api.write('objects', OBJECTS);
      await waitFor('the SRV record is restored', async () => (await srv()).answer.length === 1);
      const db = () => dig(lab.client, `@${lab.node.ipv4} -p 5353 db.default.${ZONE} A`);
      assert.equal((await db()).answer.length, 2);
      const name = 'coredns_kubernetes_dns_programming_duration_seconds_count';
      const programmed = async () =>
        new Scrape((await get('/metrics', lab.node, 9156)).body).value(name);
      assert.equal(await programmed(), undefined);
      const time = { 'endpoints.kubernetes.io/last-change-trigger-time': new Date().toISOString() };
      const changed = slice('db', [endpoint('10.244.1.14')], [], time);
      api.write('objects', [changed, ...OBJECTS.filter((object) => object !== ofDb)]);
      await waitFor('it has the endpoint', async () => (await db()).answer.length === 1);
      assert.equal(await programmed(), 1);
      assert.equal(await own.stop(), 0);
    });

    it('prints the output that docs/guide/dns-and-environment.md shows', async () => {
      const page = readFileSync(
        new URL('../../docs/guide/dns-and-environment.md', import.meta.url),
        'utf8',
      );
      const [services = ''] = fencedBlocks(page, 'yaml');
      const [block = ''] = fencedBlocks(page, 'shell');
      mkdirSync(join(directory, 'manifests'));
      writeFileSync(join(directory, 'manifests', 'services.yaml'), services);
      const [start = assert.fail(), ...commands] = consoleCommands(block);
      const shown = /^portwide dns (.*) &$/.exec(start.command)?.[1] ?? assert.fail();
      const pages = '--metrics-bind-address=';
      const args = shown.replace(' manifests ', ` ${join(directory, 'manifests')} `).split(' ');
      const own = await startDns(lab.elsewhere, [...args, pages]);
      assert.equal(commands.length, 5);
      for (const { command, output } of commands) {
        const { stdout } = await lab.elsewhere.exec('sh', ['-c', command]);
        assert.equal(stdout, output, command);
      }
      assert.equal(await own.stop(), 0);
    });

    it('keeps answering after SIGTERM while not ready, and exits on a second SIGTERM', async () => {
      const page = '--metrics-bind-address=127.0.0.1:9155';
      const flags = [...feed.flags, '--port=5353', '--lameduck=1h', page];
      const own = await startDns(lab.elsewhere, flags);
      const ready = () => get('/ready', lab.elsewhere, 9155);
      assert.equal((await ready()).code, 200);
      own.terminate();
      await waitFor('it is not ready', async () => (await ready()).code === 503);
      assert.match((await ready()).body, /^stopping/);
      assert.equal((await get('/health', lab.elsewhere, 9155)).code, 200);
      for (const transport of ['+notcp', '+tcp']) {
        const query = `@198.51.100.10 -p 5353 web.default.${ZONE} A ${transport}`;
        assert.equal((await dig(lab.client, query)).answer.length, 1);
      }
      assert.equal(await own.stop(), 1);
    });

    it('follows changes of the resolver file', async () => {
      const changes = () => server.logged('upstream resolvers changed');
      await waitFor('the file was read again', () => changes().length > 0);
      assert.deepEqual(changes()[0]?.resolvers, ['2001:db8:51::10']);
      assert.equal((await ask('gone.changed.svc.example.org A')).status, 'NXDOMAIN');
    });

    it('exits on SIGTERM', async () => {
      assert.equal(await server.stop(), 0);
      assert.equal(server.logged('stopping').length, 1);
      const args = [`@${lab.node.ipv4}`, '+tries=1', '+timeout=1', `web.default.${ZONE}`];
      assert.notEqual((await lab.client.exec('dig', args, { reject: false })).exitCode, 0);
    });
  });
});
