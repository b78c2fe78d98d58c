import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { FqdnElement, FqdnEntry } from '../../../policy/compile/change.ts';
import { DnsSnooper } from '../../../policy/fqdn/dns-snooper.ts';
import { FakeTimers } from '../../sync/fake-timers.ts';

/** Without resolvers: nothing is queued, and nothing new is learned. */
describe('known: what is known of domain names', () => {
  const timers = new FakeTimers();
  let learned: (readonly FqdnElement[])[];
  let restored: string[];
  let failures: unknown[];
  let error: Error | undefined;
  let learning: DnsSnooper;

  const answer = (name: string, address: string, timeoutMs: number): FqdnEntry => {
    return { name, address, timeoutMs };
  };
  const names = (pattern: string, ...lists: readonly number[]) =>
    new Map([[pattern, new Set(lists)]]);

  beforeEach(() => {
    learned = [];
    restored = [];
    failures = [];
    error = undefined;
    learning = new DnsSnooper({
      store: {
        learn: async (elements) => {
          if (error !== undefined) throw error;
          learned.push(elements);
        },
        forget: async () => undefined,
      },
      tables: [
        {
          family: 'IPv4',
          saveTable: async () =>
            '*mangle\n:PORTWIDE-DNS - [0:0]\n-A PORTWIDE-DNS -j RETURN\nCOMMIT',
          restore: async (input) => {
            restored.push([...input].join(''));
          },
        },
      ],
      observer: {
        addFailed: (failure) => failures.push(failure),
        removeFailed: (failure) => failures.push(failure),
        rulesFailed: (_, failure) => failures.push(failure),
        threadFailed: (failure) => failures.push(failure),
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

  it('comes into lists that are new, and stays in those that are not', async () => {
    await learning.setPatterns(names('*.example.com', 1));
    await learning.setPatterns(names('*.example.com', 1));
    assert.deepEqual(learned, [
      [
        { set: 'learned', list: 1, address: '192.0.2.1', timeoutMs: 90_000 },
        { set: 'learned', list: 1, address: '2001:db8::1', timeoutMs: 20_000 },
      ],
    ]);
  });

  it('is told by family, with the time that is left', async () => {
    await learning.setPatterns(names('*.example.com', 1));
    timers.advance(5000);
    assert.deepEqual(learning.fqdnContent('IPv6'), {
      elements: [{ set: 'learned', list: 1, address: '2001:db8::1', timeoutMs: 15_000 }],
      answers: [answer('a.example.com', '2001:db8::1', 15_000)],
    });
    assert.deepEqual(learning.fqdnContent('IPv4').answers, [
      answer('a.example.com', '192.0.2.1', 85_000),
      answer('b.test', '192.0.2.2', 85_000),
    ]);
  });

  it('is about no name: rules of an earlier agent go, and not before that is known', async () => {
    const turn = async () => {
      timers.advance(0);
      await nextTurn();
    };
    await turn();
    learning.setResolvers(new Set(['10.96.0.10']));
    await turn();
    assert.deepEqual(restored, []);
    await learning.setPatterns(new Map());
    await turn();
    const [removal] = restored;
    assert.match(removal ?? '', /^-X PORTWIDE-DNS$/m);
    await learning.setPatterns(new Map());
    await turn();
    assert.equal(restored.length, 1);
  });

  it('ends', () => {
    assert.equal(learning.stats().addresses, 3);
    timers.advance(60_000);
    assert.equal(learning.stats().addresses, 2);
    timers.advance(60_000);
    assert.deepEqual([learning.stats().names, learning.stats().addresses], [0, 0]);
  });

  it('cannot become more without resolvers, which matters where there are names', async () => {
    assert.equal(learning.stats().isBlind, false);
    await learning.setPatterns(names('*.example.com', 1));
    assert.equal(learning.stats().isBlind, true);
    await learning.setPatterns(new Map());
    assert.equal(learning.stats().isBlind, false);
  });

  it('may not be known to the kernel, which is told', async () => {
    error = new Error('no table');
    await learning.setPatterns(names('*.example.com', 1));
    assert.deepEqual(failures, [error]);
  });
});
