import assert from 'node:assert/strict';
import { NoResponseError } from '../../dns/exchange.ts';
import { createHandler, type HandlerOptions, type HandlerResult } from '../../dns/handler.ts';
import { FLAG } from '../../dns/response.ts';
import type { Authority } from '../../dns/zone-answer.ts';
import { a, authority, cname, fakeZone, queryBytes, readReply, recordLine } from './messages.ts';

const WEB = 'web.default.svc.cluster.local';
const MANY = 'many.default.svc.cluster.local';
const OUTSIDE = 'outside.default.svc.cluster.local';
const ZONE = fakeZone([
  a(WEB, '10.96.0.1'),
  cname(OUTSIDE, 'www.example.com'),
  ...Array.from({ length: 200 }, (_, index) => a(MANY, `10.0.0.${index}`)),
]);
const RESOLVER = { address: '192.0.2.53', port: 53 };

function fail(error: unknown): never {
  throw error;
}

const DEFAULTS = { authority: authority(ZONE), onInternalError: fail };

function handler(options: Partial<HandlerOptions> = {}) {
  const handle = createHandler({ ...DEFAULTS, ...options });
  return async (
    ...[bytes, transport = 'udp']: [Buffer, ('udp' | 'tcp')?]
  ): Promise<HandlerResult> => await handle(bytes, transport);
}

async function reply(
  bytes: Buffer,
  options: Partial<HandlerOptions> = {},
  transport: 'udp' | 'tcp' = 'udp',
) {
  const { response, served } = await handler(options)(bytes, transport);
  assert.ok(response !== undefined && served !== undefined);
  assert.equal(served.responseLength, response.length);
  assert.equal(served.requestLength, bytes.length);
  return { ...readReply(response), served, length: response.length };
}

/** A fake upstream resolver with one response. */
function upstream(options: { ask?: () => Promise<Buffer>; resolve?: () => Promise<never> }) {
  return { ask: unexpected, resolve: unexpected, ...options };
}

async function unexpected(): Promise<never> {
  assert.fail('unexpected upstream query');
}

describe('handler: createHandler()', () => {
  it('answers names of the zone synchronously', () => {
    const handle = createHandler(DEFAULTS);
    const handled = handle(queryBytes(WEB, 'A'), 'udp');
    assert.ok('response' in handled && handled.response !== undefined);
    assert.deepEqual(readReply(handled.response).answers, [`${WEB} 5 A 10.96.0.1`]);
    const { query, ...served } = handled.served ?? assert.fail();
    assert.equal(query?.name, WEB);
    assert.deepEqual(served, {
      transport: 'udp',
      zone: 'cluster.local',
      rcode: 0,
      by: 'zone',
      requestLength: 47,
      responseLength: 63,
    });
  });

  it('sends no response to messages that are not queries', async () => {
    const { response, served } = await handler()(Buffer.from('hello'));
    assert.deepEqual([response, served], [undefined, undefined]);
  });

  it('answers malformed queries with an error', async () => {
    const bytes = queryBytes(WEB, 'A').subarray(0, 20);
    const { rcode, id, length, served } = await reply(bytes);
    assert.deepEqual([rcode, id, length], [1, 4711, 12]);
    assert.deepEqual([served.zone, served.query, served.rcode], [undefined, undefined, 1]);
  });

  it("counts an error as the zone's only when the zone answered", async () => {
    const { rcode, served } = await reply(queryBytes(WEB, 'A', { size: 512, version: 1 }));
    assert.deepEqual([rcode, served.rcode, served.by], [16, 16, undefined]);
  });

  for (const [what, bytes, transport, most, isCut] of [
    ['a client without EDNS0', queryBytes(MANY, 'A'), 'udp', 512, true],
    ['a buffer size below 512', queryBytes(MANY, 'A', { size: 1 }), 'udp', 512, true],
    ['a larger buffer size', queryBytes(MANY, 'A', { size: 1000 }), 'udp', 1000, true],
    ['a buffer size above the maximum', queryBytes(MANY, 'A', { size: 65_535 }), 'udp', 1232, true],
    ['TCP', queryBytes(MANY, 'A'), 'tcp', 65_535, false],
    [
      'TCP, regardless of the buffer size',
      queryBytes(MANY, 'A', { size: 512 }),
      'tcp',
      65_535,
      false,
    ],
  ] as const) {
    it(`limits responses to ${most} bytes for ${what}`, async () => {
      const { flags, length, answers } = await reply(bytes, {}, transport);
      assert.equal(flags.includes('tc'), isCut);
      assert.ok(length <= most);
      if (isCut) assert.ok(length > most - 16);
      else assert.equal(answers.length, 200);
    });
  }

  it('refuses other domains without upstream resolvers', async () => {
    const { rcode, flags, served } = await reply(queryBytes('example.com', 'A'));
    assert.deepEqual([rcode, flags, served.zone, served.by], [5, 'qr rd', '', undefined]);
  });

  it('sets RA only if it forwards', async () => {
    const queryMessage = queryBytes(WEB, 'A');
    assert.equal((await reply(queryMessage)).flags, 'qr aa rd');
    assert.equal((await reply(queryMessage, { forwarder: upstream({}) })).flags, 'qr aa rd ra');
  });

  it('returns only the alias when its target is in another domain and nothing is forwarded', async () => {
    const { answers, rcode } = await reply(queryBytes(OUTSIDE, 'A'));
    assert.deepEqual([answers, rcode], [[`${OUTSIDE} 5 CNAME www.example.com`], 0]);
  });

  it('answers SERVFAIL on an internal error and reports it', async () => {
    const errors: unknown[] = [];
    const error = new TypeError('broken zone');
    const broken: Authority = authority({
      ...ZONE,
      lookup: () => {
        throw error;
      },
    });
    const options = {
      authority: broken,
      onInternalError: (cause: unknown) => errors.push(cause),
    };
    const { rcode, served } = await reply(queryBytes(WEB, 'A'), options);
    assert.deepEqual([rcode, served.by, errors], [2, undefined, [error]]);
    const forwarder = upstream({ ask: () => Promise.reject(error) });
    const other = await reply(queryBytes('example.com', 'A'), { ...options, forwarder });
    assert.deepEqual([other.rcode, errors], [2, [error, error]]);
  });

  it('caches answers until the records change', async () => {
    let serial = 1;
    let data = '10.96.0.1';
    const lookedUp: string[] = [];
    const zone = {
      clusterDomain: 'cluster.local',
      isSynced: true,
      get serial() {
        return serial;
      },
      lookup: (name: string) => {
        lookedUp.push(name);
        return name === WEB ? [a(WEB, data)] : undefined;
      },
    };
    const ask = handler({ authority: authority(zone) });
    const answers = async (name: string, fields = {}) => {
      const { response, served } = await ask(queryBytes(name, 'A', fields));
      assert.equal(served?.by, 'zone');
      return readReply(response ?? assert.fail()).answers;
    };
    assert.deepEqual(await answers(WEB), [`${WEB} 5 A 10.96.0.1`]);
    const upper = WEB.toUpperCase();
    assert.deepEqual(await answers(upper, { size: 512 }), [`${upper} 5 A 10.96.0.1`]);
    assert.deepEqual(await answers('gone.cluster.local'), []);
    assert.deepEqual(await answers('gone.cluster.local'), []);
    assert.deepEqual(lookedUp, [WEB, 'gone.cluster.local']);
    // Records of another name have changed: the cached records are compared once, and the SOA
    // record gets the new serial.
    serial = 2;
    for (let turn = 0; turn < 2; turn++) {
      const { response: negative } = await ask(queryBytes('gone.cluster.local', 'A'));
      assert.match(readReply(negative ?? assert.fail()).authorities[0] ?? '', /"serial":2,/);
    }
    assert.equal(lookedUp.length, 3);
    data = '10.96.0.2';
    serial = 3;
    assert.deepEqual(await answers(WEB), [`${WEB} 5 A 10.96.0.2`]);
    // The cached answer is not used for other types or names.
    const other = readReply(
      (await ask(queryBytes(WEB, 'A', { class: 'CH' }))).response ?? assert.fail(),
    );
    assert.equal(other.rcode, 5);
    const later = queryBytes(WEB, 'A', { size: 512, version: 1 });
    assert.equal(readReply((await ask(later)).response ?? assert.fail()).rcode, 16);
    const { response } = await ask(queryBytes(WEB, 'TXT'));
    assert.deepEqual(readReply(response ?? assert.fail()).answers, []);
  });

  it('does not limit a client by the buffer size of an earlier client', async () => {
    const ask = handler();
    const count = async (fields: object, transport: 'udp' | 'tcp') => {
      const { response } = await ask(queryBytes(MANY, 'A', fields), transport);
      return readReply(response ?? assert.fail()).answers.length;
    };
    for (let turn = 0; turn < 2; turn++) {
      assert.equal(await count({}, 'udp'), 29);
      assert.equal(await count({ size: 1232 }, 'udp'), 73);
      assert.equal(await count({}, 'tcp'), 200);
    }
  });

  it('rotates addresses in each response, cached or not', async () => {
    const pods = ['10.0.0.1', '10.0.0.2', '10.0.0.3'];
    const zone = fakeZone(pods.map((address) => a(WEB, address)));
    let random = 0;
    const ask = handler({ authority: authority(zone, { random: () => random }) });
    const firsts: (string | undefined)[] = [];
    for (random of [0.99, 0, 0.34, 0.67]) {
      const { response } = await ask(queryBytes(WEB, 'A'));
      const answers = readReply(response ?? assert.fail()).answers.map(
        (text) => text.split(' ')[3],
      );
      assert.deepEqual(answers.toSorted(), pods);
      firsts.push(answers[0]);
    }
    assert.deepEqual(firsts, ['10.0.0.3', '10.0.0.1', '10.0.0.2', '10.0.0.3']);
  });

  describe('with an upstream resolver', () => {
    const upstreamsAnswer = (id: number, flags: number, count: number): Buffer => {
      const name = 'WWW.example.com';
      const bytes = Buffer.concat([
        queryBytes(name, 'A', { id }),
        ...Array.from({ length: count }, (_, index) =>
          Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, index]),
        ),
      ]);
      bytes.writeUInt16BE(flags, 2);
      bytes.writeUInt16BE(count, 6);
      return bytes;
    };
    const queryMessage = queryBytes('WWW.example.com', 'A', { id: 17 });

    it('relays the response of the resolver with the id of the client', async () => {
      const response = upstreamsAnswer(99, FLAG.QR | FLAG.RD | FLAG.RA, 2);
      const seen: unknown[] = [];
      const forwarder = {
        ...upstream({}),
        ask: async (...args: unknown[]) => {
          seen.push(...args.slice(0, 1), args[2]);
          return Buffer.from(response);
        },
      };
      const { id, flags, answers, question, served } = await reply(queryMessage, { forwarder });
      assert.deepEqual([id, flags, question], [17, 'qr rd ra', 'WWW.example.com A']);
      const owner = 'WWW.example.com';
      assert.deepEqual(answers, [`${owner} 9 A 192.0.2.0`, `${owner} 9 A 192.0.2.1`]);
      assert.deepEqual([served.by, served.zone, served.rcode], ['forward', '', 0]);
      assert.deepEqual(seen, [queryMessage, 'udp']);
    });

    it('relays an error response of the resolver', async () => {
      const response = upstreamsAnswer(99, FLAG.QR | 3, 0);
      const forwarder = upstream({ ask: async () => Buffer.from(response) });
      const { rcode, served } = await reply(queryMessage, { forwarder });
      assert.deepEqual([rcode, served.rcode], [3, 3]);
    });

    it('truncates a response that is too long for the client', async () => {
      const response = upstreamsAnswer(99, FLAG.QR | FLAG.RA, 40);
      const forwarder = upstream({ ask: async () => Buffer.from(response) });
      const cut = await reply(queryMessage, { forwarder });
      assert.deepEqual([cut.flags, cut.answers, cut.id], ['qr tc rd ra', [], 17]);
      assert.equal(cut.question, 'WWW.example.com A');
      assert.equal((await reply(queryMessage, { forwarder }, 'tcp')).answers.length, 40);
      const large = queryBytes('WWW.example.com', 'A', { size: 2000 });
      assert.equal((await reply(large, { forwarder })).answers.length, 40);
    });

    it('truncates UDP responses above the maximum, whatever buffer size the client has', async () => {
      const response = upstreamsAnswer(99, FLAG.QR | FLAG.RA, 100);
      const forwarder = upstream({ ask: async () => Buffer.from(response) });
      const large = queryBytes('WWW.example.com', 'A', { size: 65_535 });
      const { flags, answers, opt } = await reply(large, { forwarder });
      assert.deepEqual([flags, answers], ['qr tc rd ra', []]);
      assert.deepEqual(opt, { size: 1232, dnssecOk: false });
    });

    it('answers SERVFAIL or REFUSED when forwarding fails', async () => {
      const ask = () => Promise.reject(new NoResponseError(RESOLVER, 'TIMEOUT'));
      const { rcode, served, id } = await reply(queryMessage, { forwarder: upstream({ ask }) });
      assert.deepEqual([rcode, id, served.by], [2, 17, 'forward']);
    });

    it('forwards reverse names of unknown addresses only', async () => {
      const forwarder = upstream({ ask: async () => upstreamsAnswer(1, FLAG.QR | 3, 0) });
      const bytes = queryBytes('1.2.3.4.in-addr.arpa', 'PTR');
      const { served } = await reply(bytes, { forwarder });
      assert.deepEqual([served.by, served.zone], ['forward', 'in-addr.arpa']);
    });

    it('resolves the external target of an alias', async () => {
      const address = { name: 'www.example.com', type: 'A' as const, ttl: 60, data: '192.0.2.80' };
      const seen: unknown[] = [];
      const forwarder = {
        ...upstream({}),
        resolve: async (...args: unknown[]) => {
          seen.push(args);
          return { rcode: 'NOERROR' as const, answers: [address], authorities: [] };
        },
      };
      const { answers, flags, served } = await reply(queryBytes(OUTSIDE, 'A'), { forwarder });
      assert.deepEqual(answers, [`${OUTSIDE} 5 CNAME www.example.com`, recordLine(address)]);
      assert.deepEqual([flags, served.by, seen], ['qr aa rd ra', 'zone', [['www.example.com', 1]]]);
    });

    it("returns all records of an external target, up to the client's limit", async () => {
      const answers = Array.from({ length: 300 }, (_, index) => ({
        name: 'www.example.com',
        type: 'A' as const,
        ttl: 60,
        data: `198.51.${index >> 8}.${index & 255}`,
      }));
      const found = { rcode: 'NOERROR' as const, answers, authorities: [] };
      const forwarder = { ...upstream({}), resolve: async () => found };
      const whole = await reply(queryBytes(OUTSIDE, 'A'), { forwarder }, 'tcp');
      assert.deepEqual([whole.flags, whole.answers.length], ['qr aa rd ra', 301]);
      const cut = await reply(queryBytes(OUTSIDE, 'A'), { forwarder });
      assert.equal(cut.flags, 'qr aa tc rd ra');
      assert.ok(cut.length <= 512 && cut.length > 512 - 16);
    });

    it('returns NXDOMAIN or SERVFAIL of an external target', async () => {
      const nothing = { rcode: 'NXDOMAIN' as const, answers: [], authorities: [] };
      const nxdomain = { ...upstream({}), resolve: async () => nothing };
      const { rcode, answers } = await reply(queryBytes(OUTSIDE, 'A'), { forwarder: nxdomain });
      assert.deepEqual([rcode, answers], [3, [`${OUTSIDE} 5 CNAME www.example.com`]]);
      const resolve = () => Promise.reject(new NoResponseError(RESOLVER, 'TIMEOUT'));
      const silent = await reply(queryBytes(OUTSIDE, 'A'), { forwarder: upstream({ resolve }) });
      assert.deepEqual([silent.rcode, silent.answers], [2, []]);
    });
  });
});
