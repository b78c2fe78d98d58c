import assert from 'node:assert/strict';
import { readQuery } from '../../dns/query.ts';
import type { DnsRecord } from '../../dns/records.ts';
import {
  type Authority,
  answerFromZone,
  type ResourceRecord,
  type ZoneAnswer,
  zoneOf,
} from '../../dns/zone-answer.ts';
import {
  a,
  authority,
  cname,
  fakeZone,
  type QueryFields,
  queryBytes,
  recordLine,
  srv,
} from './messages.ts';

const WEB = 'web.default.svc.cluster.local';
const DB = 'db.default.svc.cluster.local';
const PODS = ['10.0.0.1', '10.0.0.2', '10.0.0.3'];
const RECORDS: readonly DnsRecord[] = [
  a(WEB, '10.96.0.1'),
  a(WEB, 'fd00::1'),
  srv(`_http._tcp.${WEB}`, 80, WEB),
  ...PODS.map((address) => a(DB, address)),
  ...PODS.map((address, index) => a(`db-${index}.${DB}`, address)),
  ...PODS.map((_, index) => srv(`_sql._tcp.${DB}`, 5432, `db-${index}.${DB}`)),
  { name: '1.0.96.10.in-addr.arpa', type: 'PTR', data: WEB },
  { name: 'dns-version.cluster.local', type: 'TXT', data: '1.1.0' },
  cname('inside.default.svc.cluster.local', WEB),
  cname('twice.default.svc.cluster.local', 'inside.default.svc.cluster.local'),
  cname('nowhere.default.svc.cluster.local', 'gone.default.svc.cluster.local'),
  cname('outside.default.svc.cluster.local', 'www.example.com'),
  cname('chain.default.svc.cluster.local', 'outside.default.svc.cluster.local'),
  cname('server.cluster.local', 'ns.dns.cluster.local'),
  cname('loop.default.svc.cluster.local', 'back.default.svc.cluster.local'),
  cname('back.default.svc.cluster.local', 'loop.default.svc.cluster.local'),
];
const ZONE = fakeZone(RECORDS);

function ask(
  name: string,
  type: string,
  fields: QueryFields = {},
  of: Authority = authority(ZONE),
): ZoneAnswer | undefined {
  const query = readQuery(queryBytes(name, type, fields));
  assert.ok(query !== undefined && 'name' in query);
  return answerFromZone(query, of);
}

function lines(actual: ZoneAnswer | undefined) {
  assert.ok(actual !== undefined);
  const { answers, authorities, additionals, addressCount: _, isCacheable: __, ...rest } = actual;
  return {
    ...rest,
    answers: answers.map(recordLine),
    authorities: authorities.map(recordLine),
    additionals: additionals.map(recordLine),
  };
}

const KNOWN = { rcode: 'NOERROR', authoritative: true, authorities: [], additionals: [] };
const soa = (zone = 'cluster.local', ttl = 5) =>
  `${zone} ${ttl} SOA {"mname":"ns.dns.cluster.local","rname":"hostmaster.cluster.local",` +
  `"serial":7,"refresh":7200,"retry":1800,"expire":86400,"minimum":${ttl}}`;
const NODATA = { ...KNOWN, answers: [], authorities: [soa()] };
const NXDOMAIN = { ...NODATA, rcode: 'NXDOMAIN' };
const refusal = (rcode: string) => ({ ...KNOWN, authoritative: false, answers: [], rcode });

describe('zone-answer: answerFromZone()', () => {
  for (const [what, name, type, expected] of [
    ['an address', WEB, 'A', [`${WEB} 5 A 10.96.0.1`]],
    ['an IPv6 address', WEB, 'AAAA', [`${WEB} 5 AAAA fd00::1`]],
    ['a name in capital letters', WEB.toUpperCase(), 'A', [`${WEB} 5 A 10.96.0.1`]],
    ['a reverse name', '1.0.96.10.in-addr.arpa', 'PTR', [`1.0.96.10.in-addr.arpa 5 PTR ${WEB}`]],
    ['a text', 'dns-version.cluster.local', 'TXT', ['dns-version.cluster.local 5 TXT 1.1.0']],
    ['the zone apex', 'cluster.local', 'SOA', [soa()]],
  ] as const) {
    it(`answers ${what}`, () => {
      assert.deepEqual(lines(ask(name, type)), { ...KNOWN, answers: expected });
    });
  }

  it('adds the addresses of SRV targets', () => {
    const { answers, additionals } = lines(ask(`_http._tcp.${WEB}`, 'SRV'));
    const data = { priority: 0, weight: 100, port: 80, target: WEB };
    assert.deepEqual(answers, [`_http._tcp.${WEB} 5 SRV ${JSON.stringify(data)}`]);
    assert.deepEqual(additionals, [`${WEB} 5 A 10.96.0.1`, `${WEB} 5 AAAA fd00::1`]);
    const headless = lines(ask(`_sql._tcp.${DB}`, 'SRV'));
    assert.equal(headless.answers.length, 3);
    assert.deepEqual(
      headless.additionals,
      PODS.map((address, index) => `db-${index}.${DB} 5 A ${address}`),
    );
  });

  it('adds the addresses of at most a hundred SRV targets, each once', () => {
    const names = Array.from({ length: 300 }, (_, index) => `db-${index}.${DB}`);
    const name = `_sql._tcp.${DB}`;
    const servers = names.flatMap((each) => [srv(name, 5432, each), srv(name, 5433, each)]);
    const of = authority(fakeZone([...servers, ...names.map((each) => a(each, '10.0.0.1'))]));
    const { answers, additionals } = lines(ask(name, 'SRV', {}, of));
    assert.equal(answers.length, 600);
    const first = names.slice(0, 100);
    assert.deepEqual(
      additionals,
      first.map((each) => `${each} 5 A 10.0.0.1`),
    );
  });

  it('adds addresses of targets only until no more fit in the message', () => {
    const names = Array.from({ length: 100 }, (_, index) => `db-${index}.${DB}`);
    const name = `_sql._tcp.${DB}`;
    const addresses = names.flatMap((each) =>
      Array.from({ length: 50 }, (_, index) => a(each, `10.0.0.${index}`)),
    );
    const zone = fakeZone([...names.map((each) => srv(name, 5432, each)), ...addresses]);
    const read = readQuery(queryBytes(name, 'SRV'));
    assert.ok(read !== undefined && 'name' in read);
    const answer = answerFromZone(read, authority(zone), 120);
    assert.deepEqual([answer?.answers.length, answer?.additionals.length], [100, 150]);
  });

  it('adds the addresses of the name servers', () => {
    const of = authority(ZONE, { nameservers: () => ['192.0.2.1', '2001:db8::1'] });
    const additionals = [
      'ns.dns.cluster.local 5 A 192.0.2.1',
      'ns.dns.cluster.local 5 AAAA 2001:db8::1',
    ];
    const answers = ['cluster.local 5 NS ns.dns.cluster.local'];
    assert.deepEqual(lines(ask('cluster.local', 'NS', {}, of)), { ...KNOWN, answers, additionals });
    const own = lines(ask('ns.dns.cluster.local', 'AAAA', {}, of));
    assert.deepEqual(own.answers, additionals.slice(1));
    assert.deepEqual(lines(ask('ns.dns.cluster.local', 'A')), NODATA);
    assert.deepEqual(lines(ask('dns.cluster.local', 'A')), NODATA);
  });

  for (const [what, name, type] of [
    ['another type', WEB, 'TXT'],
    ['an unknown type', WEB, 'UNKNOWN_64'],
    ['an empty non-terminal', 'default.svc.cluster.local', 'A'],
    ['the zone apex', 'cluster.local', 'A'],
  ] as const) {
    it(`returns NODATA for ${what}`, () => assert.deepEqual(lines(ask(name, type)), NODATA));
  }

  it('returns NXDOMAIN for a nonexistent name', () => {
    for (const name of ['gone.default.svc.cluster.local', `a.${WEB}`, 'x.dns.cluster.local']) {
      assert.deepEqual(lines(ask(name, 'A')), NXDOMAIN, name);
    }
  });

  it('returns NODATA for other types of a reverse name', () => {
    const actual = lines(ask('1.0.96.10.in-addr.arpa', 'A'));
    assert.deepEqual(actual, { ...NODATA, authorities: [soa('in-addr.arpa')] });
  });

  it('sets the configured TTL, and at most five minutes for negative answers', () => {
    const of = authority(ZONE, { ttl: 3600 });
    assert.deepEqual(lines(ask(WEB, 'A', {}, of)).answers, [`${WEB} 3600 A 10.96.0.1`]);
    assert.deepEqual(lines(ask(WEB, 'TXT', {}, of)).authorities, [soa('cluster.local', 300)]);
  });

  describe('for an alias', () => {
    const step = (name: string, target: string) =>
      `${name}.default.svc.cluster.local 5 CNAME ${target}`;
    const inside = step('inside', WEB);

    it('follows an alias within the zone', () => {
      const actual = lines(ask('inside.default.svc.cluster.local', 'A'));
      assert.deepEqual(actual, { ...KNOWN, answers: [inside, `${WEB} 5 A 10.96.0.1`] });
      const twice = lines(ask('twice.default.svc.cluster.local', 'AAAA'));
      assert.deepEqual(twice.answers, [
        step('twice', 'inside.default.svc.cluster.local'),
        inside,
        `${WEB} 5 AAAA fd00::1`,
      ]);
    });

    it('returns NODATA for a type that the target of an alias does not have', () => {
      const actual = lines(ask('inside.default.svc.cluster.local', 'TXT'));
      assert.deepEqual(actual, { ...NODATA, answers: [inside] });
      const gone = step('nowhere', 'gone.default.svc.cluster.local');
      const nowhere = lines(ask('nowhere.default.svc.cluster.local', 'A'));
      assert.deepEqual(nowhere, { ...NXDOMAIN, answers: [gone] });
    });

    it('returns the external target of an alias', () => {
      const target = 'www.example.com';
      const outside = step('outside', target);
      const actual = lines(ask('outside.default.svc.cluster.local', 'A'));
      assert.deepEqual(actual, { ...KNOWN, answers: [outside], externalTarget: target });
      const chain = lines(ask('chain.default.svc.cluster.local', 'MX'));
      const first = step('chain', 'outside.default.svc.cluster.local');
      assert.deepEqual(chain, { ...KNOWN, answers: [first, outside], externalTarget: target });
    });

    it('returns only the alias for types CNAME and ANY', () => {
      for (const type of ['CNAME', 'ANY']) {
        const actual = lines(ask('outside.default.svc.cluster.local', type));
        assert.deepEqual(actual, { ...KNOWN, answers: [step('outside', 'www.example.com')] }, type);
      }
    });

    it('returns SERVFAIL for an alias loop or a long alias chain', () => {
      assert.deepEqual(lines(ask('loop.default.svc.cluster.local', 'A')), refusal('SERVFAIL'));
      const chain = Array.from({ length: 101 }, (_, index) =>
        cname(`c${index}.cluster.local`, `c${index + 1}.cluster.local`),
      );
      const of = authority(fakeZone([...chain, a('c101.cluster.local', '10.0.0.9')]));
      assert.deepEqual(lines(ask('c0.cluster.local', 'A', {}, of)), refusal('SERVFAIL'));
      assert.equal(lines(ask('c1.cluster.local', 'A', {}, of)).answers.length, 101);
    });
  });

  it('answers type ANY with one HINFO record (RFC 8482)', () => {
    const data = '{"cpu":"RFC8482","os":""}';
    for (const name of [WEB, 'default.svc.cluster.local', 'cluster.local']) {
      assert.deepEqual(lines(ask(name, 'ANY')), { ...KNOWN, answers: [`${name} 5 HINFO ${data}`] });
    }
    assert.deepEqual(lines(ask('gone.cluster.local', 'ANY')), NXDOMAIN);
  });

  it("returns a random part when there are more records than fit in the client's message", () => {
    const firsts = new Set<string>();
    for (const random of [0, 0.5, 0.99]) {
      const of = { ...authority(ZONE), random: () => random };
      const query = readQuery(queryBytes(DB, 'A'));
      assert.ok(query !== undefined && 'name' in query);
      const { answers = [] } = answerFromZone(query, of, 2) ?? {};
      assert.equal(new Set(answers.map(recordLine)).size, 2);
      firsts.add(recordLine(answers[0] as ResourceRecord));
    }
    assert.equal(firsts.size, 3);
  });

  it('counts the records that may be rotated', () => {
    for (const [name, type, expected] of [
      [DB, 'A', 3],
      [WEB, 'AAAA', 1],
      [WEB, 'TXT', 0],
      [`_sql._tcp.${DB}`, 'SRV', 0],
      ['inside.default.svc.cluster.local', 'A', 1],
      ['gone.default.svc.cluster.local', 'A', 0],
    ] as const) {
      assert.equal(ask(name, type)?.addressCount, expected, `${name} ${type}`);
    }
  });

  it('marks answers that depend only on records of the zone as cacheable', () => {
    const cacheable = [
      `_http._tcp.${WEB}`,
      'inside.default.svc.cluster.local',
      'gone.cluster.local',
    ];
    for (const name of [WEB, ...cacheable, '1.0.96.10.in-addr.arpa', 'dns.cluster.local']) {
      for (const type of ['A', 'SRV', 'ANY'])
        assert.equal(ask(name, type)?.isCacheable, true, name);
    }
    // Not cacheable: answers that depend on the host's addresses or on upstream servers, and
    // errors.
    const others = ['cluster.local', 'ns.dns.cluster.local', 'outside.default.svc.cluster.local'];
    for (const name of [...others, 'loop.default.svc.cluster.local', 'server.cluster.local']) {
      assert.equal(ask(name, 'A')?.isCacheable, false, name);
    }
    const unsynced = authority(fakeZone(RECORDS, { isSynced: false }));
    assert.equal(ask(WEB, 'A', {}, unsynced)?.isCacheable, false);
    assert.equal(ask(WEB, 'A', { size: 512, version: 1 })?.isCacheable, false);
    // Nor an answer limited to the client's buffer size.
    const query = readQuery(queryBytes(DB, 'A'));
    assert.ok(query !== undefined && 'name' in query);
    assert.equal(answerFromZone(query, authority(ZONE), 2)?.isCacheable, false);
    assert.equal(answerFromZone(query, authority(ZONE), 3)?.isCacheable, true);
    const servers = ['a', 'b', 'c'].map((name) => `${name}.cluster.local`);
    const records = servers.flatMap((name) => [
      srv('s.cluster.local', 1, name),
      a(name, '10.0.0.1'),
    ]);
    const sentQuery = readQuery(queryBytes('s.cluster.local', 'SRV'));
    assert.ok(sentQuery !== undefined && 'name' in sentQuery);
    for (const most of [1, 2, 3, 4]) {
      const actual = answerFromZone(sentQuery, authority(fakeZone(records)), most);
      assert.deepEqual(
        [actual?.isCacheable, actual?.additionals.length],
        [most >= 3, Math.min(most, 3)],
      );
    }
  });

  it('keeps the order of records that are not addresses', () => {
    const of = authority(ZONE, { random: () => 0.99 });
    const { answers } = lines(ask(`_sql._tcp.${DB}`, 'SRV', {}, of));
    assert.deepEqual(
      answers.map((text) => /db-\d/.exec(text)?.[0]),
      ['db-0', 'db-1', 'db-2'],
    );
  });

  it('returns undefined for other domains and unknown addresses', () => {
    const others = ['example.com', 'local', 'xcluster.local', '9.9.9.9.in-addr.arpa', 'ip6.arpa'];
    for (const name of [...others, 'arpa', '.']) assert.equal(ask(name, 'A'), undefined, name);
  });

  it('returns SERVFAIL before everything has been listed, except for other domains', () => {
    const of = authority(fakeZone(RECORDS, { isSynced: false }));
    for (const name of [WEB, 'gone.cluster.local', 'cluster.local', '1.0.96.10.in-addr.arpa']) {
      assert.deepEqual(lines(ask(name, 'A', {}, of)), refusal('SERVFAIL'), name);
    }
    assert.equal(ask('example.com', 'A', {}, of), undefined);
  });

  for (const [what, type, fields, rcode] of [
    ['an unknown EDNS version', 'A', { size: 512, version: 1 }, 'BADVERS'],
    ['other classes', 'A', { class: 'CH' }, 'REFUSED'],
    ['any class', 'A', { class: 'ANY' }, 'REFUSED'],
    ['AXFR', 'AXFR', {}, 'REFUSED'],
    ['IXFR', 'IXFR', {}, 'REFUSED'],
    ['keys', 'TKEY', {}, 'NOTIMP'],
    ['mailboxes', 'UNKNOWN_253', {}, 'NOTIMP'],
    ['OPT records', 'OPT', {}, 'FORMERR'],
  ] as const) {
    it(`returns an error for ${what} in any domain`, () => {
      for (const name of [WEB, 'example.com']) {
        assert.deepEqual(lines(ask(name, type, fields)), refusal(rcode), name);
      }
    });
  }
});

it('zoneOf() returns the zone of a name', () => {
  for (const [name, expected] of [
    ['cluster.local', 'cluster.local'],
    ['a.cluster.local', 'cluster.local'],
    ['xcluster.local', undefined],
    ['local', undefined],
    ['', undefined],
    ['1.in-addr.arpa', 'in-addr.arpa'],
    ['f.ip6.arpa', 'ip6.arpa'],
    ['arpa', undefined],
  ] as const) {
    assert.equal(zoneOf(name, 'cluster.local'), expected, name);
  }
});
