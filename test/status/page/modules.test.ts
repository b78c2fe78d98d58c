import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { DEFAULT_STATUS_SOCKET } from '../../../config/status-socket.ts';
import type { KernelObject } from '../../../status/api/kernel.ts';
import { duration, number } from '../../../status/page/format.js';
import { link, parseLocation, serviceLink } from '../../../status/page/location.js';
import { layout } from '../../../status/page/packet-layout.js';
import { objectsOf, stepOf } from '../../../status/page/packet-steps.js';
import { LAST_PORT, parsePorts, rangeText, slicesOfVip } from '../../../status/page/port-ranges.js';
import { Store } from '../../../status/page/store.js';
import { DEFAULT_SOCKET, traceCommand } from '../../../status/page/trace-command.js';
import { PAGE_PACKAGES, pageFileNames, readPageFile } from '../../../status/page-files.ts';
import { OWNED_DETAIL } from '../answers.ts';
import { fakeStatus } from './fake-agent.ts';

describe('status page: files', () => {
  it('has no inline script or style, and loads nothing from elsewhere', async () => {
    for (const name of await pageFileNames()) {
      if (name in PAGE_PACKAGES) continue;
      const text = String(await readPageFile(name));
      assert.doesNotMatch(text, /https?:\/\/(?!www\.w3\.org\/2000\/svg)/, name);
      assert.doesNotMatch(text, /innerHTML|style="|<script>|<style|\son[a-z]+="/, name);
    }
  });

  it('serves every module, and no type declarations', async () => {
    const names = await pageFileNames();
    assert.ok(names.includes('preact.js') && names.includes('main.js'));
    assert.ok(!names.some((name) => name.endsWith('.ts') || name.endsWith('.json')));
  });

  it('draws rows as high as its style sheet says', () => {
    const read = (name: string) =>
      readFileSync(new URL(`../../../status/page/${name}`, import.meta.url), 'utf8');
    const [, height] = /ROW_HEIGHT = (\d+)/.exec(read('service-list.js')) ?? [];
    assert.match(read('page.css'), new RegExp(`\\.rows tbody tr {\\s*height: ${height}px`));
  });
});

describe('status page: command of a live trace', () => {
  const command = (socket: string | null | undefined) =>
    traceCommand(
      new URLSearchParams({ from: 'node', to: 'default/web', protocol: 'UDP', port: '53' }),
      socket,
    );
  const plain = 'trace node default/web --proto=udp --port=53 --live';

  it('names the socket of an agent that does not use the default', () => {
    assert.equal(DEFAULT_SOCKET, DEFAULT_STATUS_SOCKET);
    for (const socket of [undefined, null, DEFAULT_STATUS_SOCKET]) {
      assert.equal(command(socket), plain);
    }
    assert.equal(command('/tmp/a.sock'), `${plain} --status-socket=/tmp/a.sock`);
    assert.equal(command("/tmp/a b'c"), `${plain} --status-socket='/tmp/a b'\\''c'`);
  });
});

describe('status page: address', () => {
  it('reads back every link', () => {
    fc.assert(
      fc.property(
        fc.string({ minLength: 1 }).filter((text) => !text.includes('/')),
        fc.string({ minLength: 1 }).filter((text) => !text.includes('/')),
        fc.string({ minLength: 1 }),
        (namespace, name, step) => {
          const { page, path, query } = parseLocation(
            serviceLink(`${namespace}/${name}`, { step }),
          );
          assert.deepEqual([page, ...path, query.get('step')], ['service', namespace, name, step]);
        },
      ),
    );
  });

  it('never fails', () => {
    fc.assert(fc.property(fc.string(), (text) => void parseLocation(`#/${text}`)));
    assert.equal(parseLocation('').page, 'node');
    assert.deepEqual(parseLocation('#/services/%E0%A4%A/x').path, ['%E0%A4%A', 'x']);
  });

  it('leaves out empty parameters', () => {
    assert.equal(link('services', { search: '', sort: 'age' }), '#/services?sort=age');
  });
});

describe('status page: text', () => {
  for (const [seconds, text] of [
    [0.000_42, '0.42 ms'],
    [0.25, '250 ms'],
    [1.5, '1.5 s'],
    [108.4, '1 min 48 s'],
    [120, '2 min'],
    [5400, '90 min'],
    [86_400, '24 h'],
    [1_000_000, '12 days'],
  ] as const) {
    it(`writes ${seconds} seconds as ${text}`, () => assert.equal(duration(seconds), text));
  }
  it('separates thousands', () => assert.equal(number(65_535), '65,535'));
});

describe('status page: ports', () => {
  it('reads the ports of a Route', () => {
    assert.deepEqual(parsePorts('all'), [{ from: 1, to: LAST_PORT, protocol: '' }]);
    assert.deepEqual(parsePorts('5060/UDP,20000-50000/UDP'), [
      { from: 5060, to: 5060, protocol: 'UDP' },
      { from: 20_000, to: 50_000, protocol: 'UDP' },
    ]);
    assert.deepEqual(parsePorts('?'), []);
  });

  it('reads the slices of one VIP: UDP only on the VIP as which owners speak', () => {
    const { ownedPorts } = OWNED_DETAIL;
    const texts = (vip: string) => {
      const { served, vacant } = slicesOfVip(ownedPorts, vip);
      return [served.map(rangeText), vacant.map(rangeText)];
    };
    assert.deepEqual(texts('10.96.0.20'), [
      ['20000–20099/UDP', '30000–30099/TCP'],
      ['20100–20199/UDP', '30100–30199/TCP', '20200–20999/UDP', '30200–30399/TCP'],
    ]);
    assert.deepEqual(texts('203.0.113.9'), [
      ['30000–30099/TCP'],
      ['30100–30199/TCP', '30200–30399/TCP'],
    ]);
    assert.deepEqual(texts('fd00::1'), [[], []]);
  });
});

describe('status page: steps of a packet', () => {
  const object = (type: string, container: string, text: string): KernelObject => ({
    family: 'IPv4',
    type,
    in: container,
    desired: text,
    actual: text,
    state: 'ok',
    service: 'a/b',
    inProgress: false,
  });
  for (const [type, container, text, step] of [
    ['element', 'service-ips', '10.96.0.1 : goto firewall-ips-cluster', 'match'],
    ['element', 'service-ports', '10.96.0.1 . tcp . 80 : goto endpoints-3', 'match'],
    ['element', 'node-ports', 'tcp . 30080 : goto x', 'match'],
    ['element', 'allowed-port-sources', '10.96.0.1 . tcp . 80 . 192.0.2.0/24', 'sources'],
    ['element', 'allowed-vip-sources', '10.96.0.1 . 1 . 192.0.2.0/24', 'sources'],
    ['element', 'affinity-update-ips', '10.96.0.1 : goto x', 'choice'],
    ['element', 'endpoint-ips', '10.96.0.1 . 0 : 10.244.0.1', 'translate'],
    ['element', 'endpoints', '10.96.0.1 . tcp . 80 . 0 : 10.244.0.1 . 80', 'translate'],
    ['element', 'hairpin-connections', '10.244.0.1 . 10.244.0.1', 'translate'],
    ['element', 'no-endpoint-ips', '10.96.0.1 : goto reject', 'otherwise'],
    ['chain', 'ip portwide', 'chain internal-ip-2-affinity', 'choice'],
    ['chain', 'ip portwide', 'chain firewall-all-external-ip-2', 'sources'],
    [
      'rule',
      'firewall-x',
      'ip daddr . numgen random mod 1 offset 0 . ip saddr @allowed-vip-sources goto external-ip-2',
      'sources',
    ],
    [
      'rule',
      'internal-ip-2',
      'ip saddr != 10.244.0.0/16 meta mark set meta mark | 0x4000',
      'translate',
    ],
    ['rule', 'internal-ip-2', 'dnat to ip saddr . ip daddr map @affinity-ips-0', 'choice'],
    [
      'rule',
      'internal-ip-2',
      'dnat to ip daddr . numgen random mod 2 map @endpoint-ips',
      'translate',
    ],
    ['rule', 'nat', '-A KUBE-SVC-VIP-3 -d 10.96.0.1/32 -j KUBE-SVC-ABCDEFGHIJKLMNOP', 'match'],
    ['chain', 'nat', ':KUBE-SVC-ABCDEFGHIJKLMNOP - [0:0]', 'choice'],
    ['rule', 'nat', '-A KUBE-SVC-ABCDEFGHIJKLMNOP -j KUBE-SEP-ABCDEFGHIJKLMNOP', 'choice'],
    [
      'rule',
      'nat',
      '-A KUBE-SVC-ABCDEFGHIJKLMNOP ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ',
      'translate',
    ],
    [
      'rule',
      'nat',
      '-A KUBE-SEP-ABCDEFGHIJKLMNOP -j DNAT --to-destination 10.244.0.1:80',
      'translate',
    ],
    ['rule', 'nat', '-A KUBE-FW-ABCDEFGHIJKLMNOP -s 192.0.2.0/24 -j KUBE-EXT-X', 'sources'],
    ['rule', 'filter', '-A KUBE-SERVICES -d 10.96.0.1/32 -j REJECT', 'otherwise'],
    ['IPVS service', 'IPVS', 'TCP 10.96.0.1:80 rr', 'match'],
    ['IPVS destination', 'TCP 10.96.0.1:80', '10.244.0.1:80', 'translate'],
    ['ipset entry', 'KUBE-CLUSTER-IP', '10.96.0.1,tcp:80', 'match'],
    ['ipset entry', 'KUBE-LOAD-BALANCER-SOURCE-CIDR', '10.96.0.1,tcp:80,192.0.2.0/24', 'sources'],
    ['ipset entry', 'KUBE-LOOP-BACK', '10.244.0.1,tcp:80,10.244.0.1', 'translate'],
    ['address', 'kube-ipvs0', '10.96.0.1/32', 'match'],
  ] as const) {
    it(`${type} ${container} ${text}: ${step}`, () => {
      assert.equal(stepOf(object(type, container, text)), step);
    });
  }

  it('shows objects of endpoints at the choice, too', () => {
    const endpoint = object('element', 'endpoints', 'x');
    const sources = object('element', 'allowed-vip-sources', 'x');
    const hairpin = object('element', 'hairpin-connections', 'x');
    const mark = object('rule', 'nat', '-A KUBE-SEP-A -s 10.244.0.5/32 -j KUBE-MARK-MASQ');
    assert.deepEqual(objectsOf([endpoint, sources, hairpin, mark], 'choice', null, []), [endpoint]);
    assert.deepEqual(objectsOf([endpoint, sources], 'translate', null, []), [endpoint]);
  });

  it('shows no objects of other VIPs of the Service', () => {
    const vips = ['10.96.0.2', '10.96.0.20', 'fd00::2'];
    const [first, second, third, shared] = [
      object('element', 'service-ips', '10.96.0.2 : goto x'),
      object('element', 'service-ips', '10.96.0.20 : goto x'),
      object('rule', 'nat', '-A KUBE-SERVICES -d fd00::2/128 -j x'),
      object('chain', 'ip portwide', 'chain x'),
    ] as const;
    const shown = (vip: string | null) =>
      objectsOf([first, second, third, shared], 'match', vip, vips);
    assert.deepEqual(shown('10.96.0.2'), [first, shared]);
    assert.deepEqual(shown('10.96.0.20'), [second, shared]);
    assert.deepEqual(shown('fd00::2'), [third, shared]);
    assert.deepEqual(shown(null), [shared]);
  });
});

describe('status page: drawing', () => {
  it('overlaps no boxes and has all inside', () => {
    const sizes = { min: 0, max: 6 };
    fc.assert(
      fc.property(fc.boolean(), fc.integer(sizes), (isNarrow, endpoints) => {
        const { boxes, ends, width, height } = layout(5, endpoints, isNarrow);
        const all = [
          ...boxes.map((box) => ({ ...box, width: 186, height: 96 })),
          ...ends.map((end) => ({ ...end, width: 186, height: 44 })),
        ];
        assert.equal(all.length, 5 + endpoints);
        for (const [index, a] of all.entries()) {
          assert.ok(a.x >= 0 && a.y >= 0 && a.x + a.width <= width && a.y + a.height <= height);
          for (const b of all.slice(index + 1)) {
            const isApart = a.x + a.width <= b.x || a.y + a.height <= b.y || b.y + b.height <= a.y;
            assert.ok(isApart);
          }
        }
      }),
    );
  });
});

describe('status page: state', () => {
  const at = (page: string) => parseLocation(`#/${page}`);

  it('remembers since when the agent does not answer, until it answers', () => {
    const store = new Store();
    store.lost(1000);
    store.lost(2000);
    assert.equal(store.state.lostSince, 1000);
    store.answered('/x', {}, 3000);
    assert.equal(store.state.lostSince, undefined);
  });

  it('does not say that an agent without time does not answer', () => {
    const store = new Store();
    store.answered('/x', { kept: true }, 1000);
    store.lost(2000);
    store.busy();
    assert.equal(store.state.lostSince, undefined);
    assert.deepEqual(store.state.answers.get('/x')?.value, { kept: true });
  });

  it('says for half a minute that the agent restarted', () => {
    const store = new Store();
    const answer = (startedAt: string, now: number) =>
      store.answered('/api/v1/status', fakeStatus({ startedAt }), now);
    answer('a', 1000);
    assert.equal(store.state.restartedAt, undefined);
    answer('b', 2000);
    assert.equal(store.state.restartedAt, 2000);
    answer('b', 31_000);
    assert.equal(store.state.restartedAt, 2000);
    answer('b', 33_000);
    assert.equal(store.state.restartedAt, undefined);
  });

  it('forgets answers for another page, but not while a filter changes', () => {
    const store = new Store();
    store.navigate(at('services'));
    store.answered('/api/v1/services', {}, 1);
    store.answered('/api/v1/status', fakeStatus(), 1);
    store.navigate(at('services?state=served'));
    assert.ok(store.state.answers.has('/api/v1/services'));
    store.navigate(at('node'));
    assert.deepEqual([...store.state.answers.keys()], ['/api/v1/status']);
  });
});
