import assert from 'node:assert/strict';
import { exchange, NoResponseError, type Resolver } from '../../dns/exchange.ts';
import { Forwarder, type ForwarderOptions, rcodeOf } from '../../dns/forward.ts';
import { ForwardCache } from '../../dns/forward-cache.ts';
import { type DnsQuery, HEADER_LENGTH, readQuery } from '../../dns/query.ts';
import { waitFor } from '../lab/wait.ts';
import {
  emptyAnswer,
  type FakeResolver,
  type FakeResponder,
  startFakeResolver,
} from './fake-resolver.ts';
import { queryBytes, readReply, recordLine } from './messages.ts';

/** Long enough for every response on this machine, and for a resolver that does not answer. */
const PATIENCE = 20_000;
const SHORT = 50;
const QUERY = queryBytes('www.Example.com', 'A', { id: 1 });
const QUESTION = QUERY.subarray(HEADER_LENGTH);
const TRUNCATED = 0x8380;

function read(bytes: Buffer): DnsQuery {
  const query = readQuery(bytes);
  assert.ok(query !== undefined && 'name' in query);
  return query;
}

const running: FakeResolver[] = [];

async function resolver(respond: FakeResponder): Promise<FakeResolver> {
  const started = await startFakeResolver(respond);
  running.push(started);
  return started;
}

/** A response with an address after the question. */
function withAddress(query: Buffer, data: readonly number[], flags = 0x8180): Buffer {
  const record = Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, ...data]);
  const question = query.subarray(0, HEADER_LENGTH + QUESTION.length);
  const answer = Buffer.concat([question, record]);
  answer.writeUInt16BE(flags, 2);
  answer.writeUInt16BE(1, 6);
  answer.writeUInt16BE(0, 10);
  return answer;
}

const shown = (bytes: Buffer) => readReply(bytes).answers.map((text) => text.split(' ').at(-1));

/** A port without a listener. */
async function unusedPort(): Promise<Resolver> {
  const { address, port, close } = await startFakeResolver(() => undefined);
  close();
  return { address, port };
}

afterEach(() => {
  for (const { close } of running.splice(0)) close();
});

describe('exchange: exchange()', () => {
  for (const transport of ['udp', 'tcp'] as const) {
    const ask = (to: Resolver, timeout = PATIENCE) =>
      exchange(to, QUERY, QUESTION, transport, timeout);

    describe(`over ${transport.toUpperCase()}`, () => {
      it('returns the response of the resolver', async () => {
        const fake = await resolver((query) => withAddress(query, [192, 0, 2, 1]));
        assert.deepEqual(shown(await ask(fake)), ['192.0.2.1']);
        assert.deepEqual(fake.queries[0]?.bytes.subarray(2), QUERY.subarray(2));
      });

      it('uses a different id and port for each query', async () => {
        const fake = await resolver((query) => emptyAnswer(query));
        for (let turn = 0; turn < 12; turn++) await ask(fake);
        const ids = new Set(fake.queries.map(({ bytes }) => bytes.readUInt16BE(0)));
        // Two may be equal by chance once in a thousand runs, three once in a million.
        assert.ok(ids.size >= 10, [...ids].join());
        assert.ok(new Set(fake.queries.map(({ port }) => port)).size >= 2);
      });

      it('accepts an error response without the question', async () => {
        const fake = await resolver((query) => {
          const answer = emptyAnswer(query, 0x8181).subarray(0, HEADER_LENGTH);
          answer.writeUInt16BE(0, 4);
          return answer;
        });
        assert.equal((await ask(fake)).readUInt16BE(2), 0x8181);
      });

      it('compares the question case-insensitively', async () => {
        const fake = await resolver((query) => {
          const answer = emptyAnswer(query);
          answer.write('WWW.EXAMPLE'.split('.')[0] ?? '', HEADER_LENGTH + 1);
          return answer;
        });
        assert.match(readReply(await ask(fake)).question ?? '', /^WWW\.Example/);
      });

      it('fails when nothing listens', async () => {
        await assert.rejects(ask(await unusedPort()), (error) => {
          assert.ok(error instanceof NoResponseError);
          assert.equal(error.code, 'UNREACHABLE');
          assert.match(error.message, /ECONNREFUSED/);
          return true;
        });
      });
    });
  }

  const forgeries: readonly (readonly [string, (query: Buffer) => Buffer])[] = [
    [
      'with another id',
      (query) => changed(query, (bytes) => bytes.writeUInt16BE(bytes.readUInt16BE(0) ^ 1, 0)),
    ],
    [
      'to another question',
      (query) => changed(query, (bytes) => bytes.write('vvv', HEADER_LENGTH + 1)),
    ],
    [
      'of another type',
      (query) => changed(query, (bytes) => bytes.writeUInt16BE(28, QUERY.length - 4)),
    ],
    ['with two questions', (query) => changed(query, (bytes) => bytes.writeUInt16BE(2, 4))],
    ['that is a query', (query) => changed(query, (bytes) => bytes.writeUInt16BE(0x180, 2))],
    ['that is too short', (query) => query.subarray(0, 11)],
    [
      'without a question and without an error',
      (query) => changed(query, (bytes) => bytes.writeUInt16BE(0, 4)),
    ],
  ];
  for (const [what, forge] of forgeries) {
    it(`waits for another response after one ${what}`, async () => {
      const fake = await resolver((query) => {
        const good = withAddress(query, [192, 0, 2, 1]);
        return [forge(withAddress(query, [6, 6, 6, 6])), good];
      });
      assert.deepEqual(shown(await exchange(fake, QUERY, QUESTION, 'udp', PATIENCE)), [
        '192.0.2.1',
      ]);
    });

    it(`fails after a response ${what} over TCP`, async () => {
      const fake = await resolver((query) => forge(withAddress(query, [6, 6, 6, 6])));
      const failure = exchange(fake, QUERY, QUESTION, 'tcp', PATIENCE);
      await assert.rejects(failure, { name: 'NoResponseError', code: 'UNREACHABLE' });
    });
  }

  it("accepts responses only from the resolver's address and port", async () => {
    const attacker = await resolver(() => undefined);
    // A response that is correct except for its source port.
    const { createSocket } = await import('node:dgram');
    const other = createSocket('udp4');
    const fake = await resolver((query) => {
      const { port = 0 } = fake.queries.at(-1) ?? {};
      other.send(withAddress(query, [6, 6, 6, 6]), port, attacker.address);
      return undefined;
    });
    const failure = exchange(fake, QUERY, QUESTION, 'udp', SHORT);
    await assert.rejects(failure, { name: 'NoResponseError', code: 'TIMEOUT' });
    other.close();
  });

  it('sends the query again when it or its response is lost', async () => {
    let count = 0;
    const lossy = await resolver((query) => (++count < 2 ? undefined : emptyAnswer(query)));
    await exchange(lossy, QUERY, QUESTION, 'udp', PATIENCE);
    assert.equal(new Set(lossy.queries.map(({ bytes }) => bytes.readUInt16BE(0))).size, 1);
    assert.equal(new Set(lossy.queries.map(({ port }) => port)).size, 1);
  });

  it('fails after the timeout', async () => {
    const silent = await resolver(() => undefined);
    const failure = exchange(silent, QUERY, QUESTION, 'udp', SHORT);
    await assert.rejects(failure, { name: 'NoResponseError', code: 'TIMEOUT' });
  });

  it('fails when the resolver closes the connection', async () => {
    const closing = await resolver(() => undefined);
    const failure = exchange(closing, QUERY, QUESTION, 'tcp', PATIENCE);
    await assert.rejects(failure, { name: 'NoResponseError', code: 'UNREACHABLE' });
  });
});

function changed(bytes: Buffer, change: (bytes: Buffer) => void): Buffer {
  const copy = Buffer.from(bytes);
  change(copy);
  return copy;
}

describe('forward: Forwarder', () => {
  function forwarder(resolvers: readonly Resolver[], options: Partial<ForwarderOptions> = {}) {
    const events: string[] = [];
    const probes: string[] = [];
    const name = ({ port }: Resolver) => `${resolvers.findIndex((each) => each.port === port)}`;
    const made = new Forwarder({
      resolvers,
      isSelf: () => false,
      observer: {
        answered: (to, rcode) => events.push(`${name(to)} answered ${rcode}`),
        failed: (to, { code }) => events.push(`${name(to)} ${code}`),
        rejected: () => events.push('rejected'),
        probeFailed: (to) => probes.push(`${name(to)} failed`),
        probeAnswered: (to) => probes.push(`${name(to)} answered`),
        allDown: () => probes.push('all down'),
      },
      timeout: PATIENCE,
      deadline: PATIENCE,
      // Probe results are ignored unless a test observes them.
      health: { probe: () => new Promise(() => undefined) },
      ...options,
    });
    const ask = (transport: 'udp' | 'tcp' = 'udp') => made.ask(QUERY, read(QUERY), transport);
    return {
      events,
      probes,
      made,
      ask,
      resolve: (name: string, type: number) => made.resolve(name, type),
    };
  }
  const answering = (last: number) => resolver((query) => withAddress(query, [192, 0, 2, last]));

  it('tries the next resolver when one does not answer, and starts with that one from then on', async () => {
    const { ask, events } = forwarder([await unusedPort(), await answering(2), await answering(3)]);
    assert.deepEqual(shown(await ask()), ['192.0.2.2']);
    assert.deepEqual(shown(await ask()), ['192.0.2.2']);
    assert.deepEqual(events, ['0 UNREACHABLE', '1 answered 0', '1 answered 0']);
  });

  it('returns to the first resolver when the others fail', async () => {
    const first = await answering(1);
    let isSilent = true;
    const moody = await resolver((query) => (isSilent ? undefined : emptyAnswer(query)));
    const { ask, events } = forwarder([moody, first], { timeout: SHORT });
    await ask();
    isSilent = false;
    first.close();
    running.splice(running.indexOf(first), 1);
    await ask();
    assert.deepEqual(events, ['0 TIMEOUT', '1 answered 0', '1 UNREACHABLE', '0 answered 0']);
  });

  it('tries all resolvers again when none answered', async () => {
    let count = 0;
    const late = await resolver((query) => (++count < 3 ? undefined : emptyAnswer(query)));
    const { ask, events } = forwarder([late], { timeout: SHORT });
    await ask();
    assert.deepEqual(events, ['0 TIMEOUT', '0 TIMEOUT', '0 answered 0']);
  });

  it('skips resolvers that are down until a probe succeeds', async () => {
    let isAway = true;
    const probe = async (to: Resolver) => {
      if (isAway) throw new NoResponseError(to, 'TIMEOUT');
    };
    const away = await unusedPort();
    const { ask, events, probes, made } = forwarder([away, await answering(2)], {
      health: { probe, period: 1 },
    });
    await ask();
    await waitFor('it is down', () => made.resolvers[0]?.isUp === false);
    assert.equal(made.resolvers[1]?.isUp, true);
    assert.deepEqual(probes.slice(0, 3), ['0 failed', '0 failed', '0 failed']);
    isAway = false;
    await waitFor('it is up', () => made.resolvers[0]?.isUp === true);
    assert.equal(probes.at(-1), '0 answered');
    assert.deepEqual(events, ['0 UNREACHABLE', '1 answered 0']);
  });

  it('queries a resolver that is down when there is no other', async () => {
    const probe = async (to: Resolver) => {
      throw new NoResponseError(to, 'TIMEOUT');
    };
    let isSilent = true;
    const moody = await resolver((query) => (isSilent ? undefined : emptyAnswer(query)));
    const { ask, probes, made } = forwarder([moody], {
      timeout: SHORT,
      health: { probe, period: 1 },
    });
    await assert.rejects(ask(), NoResponseError);
    await waitFor('it is down', () => made.resolvers[0]?.isUp === false);
    isSilent = false;
    await ask();
    assert.ok(probes.includes('all down'));
    made.setResolvers([]);
  });

  it('queries new resolvers as soon as they are set', async () => {
    const before = await answering(1);
    const { ask, made } = forwarder([before]);
    await ask();
    made.setResolvers([await answering(2)]);
    assert.deepEqual(shown(await ask()), ['192.0.2.2']);
    assert.equal(before.queries.length, 1);
  });

  it('answers from the cache, whatever the id and letter case', async () => {
    let time = 0;
    const cache = new ForwardCache({ maxTtl: 30, now: () => time, random: () => 0 });
    const fake = await answering(1);
    const { ask, made, resolve } = forwarder([fake], { cache });
    assert.deepEqual(shown(await ask()), ['192.0.2.1']);
    const other = queryBytes('WWW.example.com', 'A', { id: 2 });
    const answer = readReply(await made.ask(other, read(other), 'tcp'));
    assert.deepEqual(answer.answers, ['WWW.example.com 60 A 192.0.2.1']);
    assert.equal(fake.queries.length, 1);
    // Alias targets are resolved with a query with an OPT record, whose response may differ.
    for (let turn = 0; turn < 2; turn++) {
      assert.equal((await resolve('www.example.com', 1)).answers.length, 1);
    }
    assert.equal(fake.queries.length, 2);
    time = 30;
    await ask();
    assert.equal(fake.queries.length, 3);
  });

  it('does not probe a resolver that was replaced during the query', async () => {
    const silent = await resolver(() => {
      made.setResolvers([]);
      return undefined;
    });
    const { ask, made, probes } = forwarder([silent], {
      timeout: SHORT,
      health: { probe: () => assert.fail('unexpected probe'), period: 1 },
    });
    await assert.rejects(ask(), NoResponseError);
    assert.deepEqual([probes, made.resolvers], [[], []]);
  });

  it('accepts any response code as an answer', async () => {
    const failing = await resolver((query) => emptyAnswer(query, 0x8182));
    const { ask, events } = forwarder([failing, await answering(2)]);
    assert.equal(readReply(await ask()).rcode, 2);
    assert.deepEqual(events, ['0 answered 2']);
  });

  it('fails when no resolver answers', async () => {
    const { ask } = forwarder([await unusedPort(), await unusedPort()]);
    const error = await ask().catch((reason: unknown) => reason);
    assert.equal(rcodeOf(error), 'SERVFAIL');
  });

  it('stops trying resolvers at the deadline', async () => {
    const silent = await Promise.all(Array.from({ length: 10 }, () => resolver(() => undefined)));
    const { ask, events } = forwarder(silent, { timeout: SHORT, deadline: 1.5 * SHORT });
    await assert.rejects(ask(), NoResponseError);
    // Two by the clock; timers may fire a little early.
    assert.ok(events.length <= 3, events.join());
  });

  it('does not forward queries to itself', async () => {
    const self = await answering(1);
    const isSelf = ({ port }: Resolver) => port === self.port;
    const { ask } = forwarder([self, await answering(2)], { isSelf });
    assert.deepEqual(shown(await ask()), ['192.0.2.2']);
    const alone = forwarder([self], { isSelf });
    assert.equal(rcodeOf(await alone.ask().catch((reason: unknown) => reason)), 'SERVFAIL');
    assert.equal(self.queries.length, 0);
  });

  it('returns a truncated UDP response without retrying over TCP', async () => {
    const fake = await resolver((query) => emptyAnswer(query, TRUNCATED));
    const { ask, events } = forwarder([fake]);
    assert.equal(readReply(await ask()).flags, 'qr tc rd ra');
    assert.equal(fake.queries.length, 1);
    assert.deepEqual(events, ['0 answered 0']);
  });

  it('uses TCP for queries received over TCP', async () => {
    const fake = await answering(1);
    await forwarder([fake]).ask('tcp');
    assert.deepEqual(
      fake.queries.map(({ transport }) => transport),
      ['tcp'],
    );
  });

  it('sends concurrent equal queries once and returns each caller its own buffer', async () => {
    const fake = await answering(1);
    const { made, ask } = forwarder([fake]);
    const other = queryBytes('www.Example.com', 'A', { id: 2 });
    const [one, two] = await Promise.all([ask(), made.ask(other, read(other), 'udp'), ask('tcp')]);
    assert.deepEqual(fake.queries.map(({ transport }) => transport).toSorted(), ['tcp', 'udp']);
    one.fill(0);
    assert.deepEqual(shown(two), ['192.0.2.1']);
    await ask();
    assert.equal(fake.queries.length, 3);
  });

  it('stops a forwarding loop', async () => {
    let turns = 0;
    // Less than the timeout of one attempt: another attempt would be another loop.
    const { made, ask } = forwarder([], { timeout: 3000, deadline: 300 });
    const round = await resolver((query) => {
      turns += 1;
      void made.ask(query, read(query), 'udp').catch(() => undefined);
      return undefined;
    });
    made.setResolvers([round]);
    await assert.rejects(ask(), NoResponseError);
    assert.equal(turns, 1);
  });

  it('limits the number of queries in flight', async () => {
    const silent = await resolver(() => undefined);
    const { ask, events } = forwarder([silent], { maxConcurrent: 2, timeout: SHORT });
    const results = await Promise.allSettled([ask(), ask(), ask()]);
    const rcodes = results.map((each) => each.status === 'rejected' && rcodeOf(each.reason));
    assert.deepEqual(rcodes, ['SERVFAIL', 'SERVFAIL', 'REFUSED']);
    assert.deepEqual([...new Set(events)].toSorted(), ['0 TIMEOUT', 'rejected']);
    await assert.rejects(ask(), NoResponseError);
  });

  it('rcodeOf() maps its own errors and rethrows others', () => {
    const mistake = new TypeError('a mistake');
    assert.throws(() => rcodeOf(mistake), mistake);
  });

  describe('resolve()', () => {
    it('resolve() returns all records', async () => {
      const fake = await resolver((query) => {
        const answer = withAddress(query, [192, 0, 2, 9]);
        return answer;
      });
      const { rcode, answers, authorities } = await forwarder([fake]).resolve('www.example.com', 1);
      assert.deepEqual(
        [rcode, answers.map(recordLine), authorities],
        ['NOERROR', ['www.example.com 60 A 192.0.2.9'], []],
      );
      const sentQuery = readReply(fake.queries[0]?.bytes ?? Buffer.alloc(0));
      assert.deepEqual(
        [sentQuery.question, sentQuery.flags, sentQuery.opt?.size],
        ['www.example.com A', 'rd', 1232],
      );
    });

    it('resolve() retries over TCP when the response is truncated', async () => {
      const fake = await resolver((query, transport) =>
        transport === 'udp' ? emptyAnswer(query, TRUNCATED) : withAddress(query, [192, 0, 2, 9]),
      );
      const { answers } = await forwarder([fake]).resolve('www.example.com', 1);
      assert.deepEqual(answers.map(recordLine), ['www.example.com 60 A 192.0.2.9']);
      assert.deepEqual(
        fake.queries.map(({ transport }) => transport),
        ['udp', 'tcp'],
      );
    });

    it('resolve() returns the truncated response when TCP fails', async () => {
      const fake = await resolver((query, transport) =>
        transport === 'udp' ? withAddress(query, [192, 0, 2, 9], TRUNCATED) : undefined,
      );
      const { answers } = await forwarder([fake]).resolve('www.example.com', 1);
      assert.deepEqual(answers.map(recordLine), ['www.example.com 60 A 192.0.2.9']);
    });

    it('resolve() returns as many records as a message can hold', async () => {
      const fake = await resolver((query, transport) => {
        if (transport === 'udp') return emptyAnswer(query, TRUNCATED);
        const records = Array.from({ length: 1000 }, (_, index) =>
          Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 51, index >> 8, index & 255]),
        );
        const answer = Buffer.concat([
          query.subarray(0, HEADER_LENGTH + QUESTION.length),
          ...records,
        ]);
        answer.writeUInt16BE(0x8180, 2);
        answer.writeUInt16BE(records.length, 6);
        answer.writeUInt16BE(0, 10);
        return answer;
      });
      const { answers } = await forwarder([fake]).resolve('www.example.com', 1);
      assert.equal(answers.length, 1000);
    });

    it('resolve() queries types that have no name in dns-packet', async () => {
      const fake = await resolver((query) => emptyAnswer(query));
      await forwarder([fake]).resolve('www.example.com', 65);
      const [sentQuery] = fake.queries;
      const end = HEADER_LENGTH + QUESTION.length;
      assert.deepEqual([...(sentQuery?.bytes.subarray(end - 4, end) ?? [])], [0, 65, 0, 1]);
    });

    it('resolve() reports NXDOMAIN', async () => {
      const fake = await resolver((query) => emptyAnswer(query, 0x8183));
      assert.equal((await forwarder([fake]).resolve('www.example.com', 1)).rcode, 'NXDOMAIN');
    });

    for (const [what, respond] of [
      ['a failure', (query: Buffer) => emptyAnswer(query, 0x8182)],
      ['a refusal', (query: Buffer) => emptyAnswer(query, 0x8185)],
      ['a malformed response', (query: Buffer) => withAddress(query, [1, 2, 3, 4]).subarray(0, -1)],
    ] as const) {
      it(`resolve() fails on ${what}`, async () => {
        const failure = forwarder([await resolver(respond)]).resolve('www.example.com', 1);
        assert.equal(rcodeOf(await failure.catch((reason: unknown) => reason)), 'SERVFAIL');
      });
    }
  });
});
