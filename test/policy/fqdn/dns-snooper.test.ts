import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { FqdnElement, FqdnEntry } from '../../../policy/compile/change.ts';
import { DnsSnooper } from '../../../policy/fqdn/dns-snooper.ts';
import { FakeTimers } from '../../sync/fake-timers.ts';

/** Without resolvers no packets are queued, and no addresses are learned. */
describe('dns-snooper: without resolvers', () => {
  const timers = new FakeTimers();
  let added: (readonly FqdnElement[])[];
  let queued: (readonly string[])[];
  let forged: number;
  let failures: unknown[];
  let error: Error | undefined;
  let learning: DnsSnooper;

  const answer = (name: string, address: string, timeoutMs: number): FqdnEntry => {
    return { name, address, timeoutMs };
  };
  const names = (pattern: string, ...lists: readonly number[]) =>
    new Map([[pattern, new Set(lists)]]);

  beforeEach(() => {
    added = [];
    queued = [];
    forged = 0;
    failures = [];
    error = undefined;
    learning = new DnsSnooper({
      store: {
        addFqdnAddresses: async (elements) => {
          if (error !== undefined) throw error;
          added.push(elements);
        },
        removeFqdnAddresses: async () => undefined,
        queueDns: async (resolvers) => void queued.push(resolvers),
        forgedAnswers: async () => forged,
      },
      observer: {
        addFailed: (failure) => failures.push(failure),
        removeFailed: (failure) => failures.push(failure),
        queueFailed: (failure) => failures.push(failure),
        answersForged: (count) => failures.push(`${count} forged`),
        threadFailed: (failure) => failures.push(failure),
        packetFailed: (failure) => failures.push(failure),
      },
      timers,
    });
    learning.restore([
      answer('a.example.com', '192.0.2.1', 90_000),
      answer('a.example.com', '2001:db8::1', 20_000),
      answer('b.test', '192.0.2.2', 90_000),
    ]);
  });
  afterEach(async () => {
    await learning.close();
    assert.equal(timers.pending, 0);
  });

  it('adds cached addresses to new lists only', async () => {
    await learning.setPatterns(names('*.example.com', 1));
    await learning.setPatterns(names('*.example.com', 1));
    assert.deepEqual(added, [
      [
        { set: 'fqdn-peers', list: 1, address: '192.0.2.1', timeoutMs: 90_000 },
        { set: 'fqdn-peers', list: 1, address: '2001:db8::1', timeoutMs: 20_000 },
      ],
    ]);
  });

  it('returns the cache content of an IP family with remaining lifetimes', async () => {
    await learning.setPatterns(names('*.example.com', 1));
    timers.advance(5000);
    assert.deepEqual(learning.fqdnContent('IPv6'), {
      elements: [{ set: 'fqdn-peers', list: 1, address: '2001:db8::1', timeoutMs: 15_000 }],
      entries: [answer('a.example.com', '2001:db8::1', 15_000)],
    });
    assert.deepEqual(learning.fqdnContent('IPv4').entries, [
      answer('a.example.com', '192.0.2.1', 85_000),
      answer('b.test', '192.0.2.2', 85_000),
    ]);
  });

  it('queues no packets without domain names or without resolvers', async () => {
    await learning.setPatterns(names('*.example.com', 1));
    await nextTurn();
    learning.setResolvers(new Set(['10.96.0.10']));
    await learning.setPatterns(new Map());
    await nextTurn();
    assert.ok(queued.length > 0);
    assert.deepEqual(queued.flat(), []);
  });

  it('drops expired entries', () => {
    assert.equal(learning.stats().addresses, 3);
    timers.advance(60_000);
    assert.equal(learning.stats().addresses, 2);
    timers.advance(60_000);
    assert.deepEqual([learning.stats().names, learning.stats().addresses], [0, 0]);
  });

  it('reports isNotObserving when rules have domain names and no resolver is known', async () => {
    assert.equal(learning.stats().isNotObserving, false);
    await learning.setPatterns(names('*.example.com', 1));
    assert.equal(learning.stats().isNotObserving, true);
    await learning.setPatterns(new Map());
    assert.equal(learning.stats().isNotObserving, false);
  });

  it('reports addresses that cannot be stored in the kernel', async () => {
    error = new Error('no table');
    await learning.setPatterns(names('*.example.com', 1));
    assert.deepEqual(failures, [error]);
  });

  it('reports forged answers, at most every 30 seconds', async () => {
    const pass = async () => {
      timers.advance(30_000);
      await nextTurn();
    };
    learning.setResolvers(new Set(['10.96.0.10']));
    await learning.setPatterns(names('*.example.com', 1));
    // Answers that an earlier agent reported.
    forged = 7;
    await pass();
    assert.deepEqual(failures, []);
    forged = 9;
    await pass();
    await pass();
    assert.deepEqual(failures, ['2 forged']);
  });
});
