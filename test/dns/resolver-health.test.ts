import assert from 'node:assert/strict';
import { NoResponseError, type Resolver } from '../../dns/exchange.ts';
import { type HealthOptions, MAX_FAILS, ResolverHealth } from '../../dns/resolver-health.ts';
import { waitFor } from '../lab/wait.ts';
import { emptyAnswer, startFakeResolver } from './fake-resolver.ts';
import { readReply } from './messages.ts';

const FIRST: Resolver = { address: '192.0.2.1', port: 53 };
const SECOND: Resolver = { address: '192.0.2.1', port: 5353 };

function health(
  options: Pick<HealthOptions, 'probe'> = {},
  observer: Partial<HealthOptions['observer']> = {},
) {
  const events: string[] = [];
  const name = ({ port }: Resolver) => String(port);
  const made = new ResolverHealth({
    period: 1,
    observer: {
      probeFailed: (resolver) => events.push(`${name(resolver)} fails`),
      probeAnswered: (resolver) => events.push(`${name(resolver)} answers`),
      ...observer,
    },
    ...options,
  });
  return { events, health: made };
}

/** A probe that fails the given number of times. */
function probe(failures: number) {
  let left = failures;
  return async (resolver: Resolver) => {
    left -= 1;
    if (left >= 0) throw new NoResponseError(resolver, 'TIMEOUT');
  };
}

describe('resolver-health: ResolverHealth', () => {
  it('keeps a resolver up when it answers its first probe', async () => {
    const { events, health: made } = health({ probe: probe(0) });
    assert.equal(made.isDown(FIRST), false);
    made.startProbing(FIRST);
    assert.equal(made.isDown(FIRST), false);
    await waitFor('the resolver is probed', () => events.length > 0);
    assert.deepEqual(events, ['53 answers']);
  });

  it('marks a resolver down after more failed probes than max_fails, and up after a success', async () => {
    const wasDown: boolean[] = [];
    const { events, health: made } = health(
      { probe: probe(MAX_FAILS + 2) },
      { probeFailed: (resolver) => wasDown.push(made.isDown(resolver)) },
    );
    made.startProbing(FIRST);
    made.startProbing(FIRST);
    await waitFor('it answers', () => events.length > 0);
    assert.deepEqual(wasDown, [false, false, true, true]);
    assert.equal(made.isDown(FIRST), false);
  });

  it('tracks each resolver by address and port, until it is removed', async () => {
    const { events, health: made } = health({ probe: probe(Number.POSITIVE_INFINITY) });
    made.startProbing(FIRST);
    await waitFor('it is down', () => made.isDown(FIRST));
    assert.equal(made.isDown(SECOND), false);
    made.retain([SECOND]);
    assert.equal(made.isDown(FIRST), false);
    const before = events.length;
    made.startProbing(SECOND);
    await waitFor('the other is down', () => made.isDown(SECOND));
    assert.deepEqual([...new Set(events.slice(before))], ['5353 fails']);
    made.retain([]);
  });

  it('accepts any response to the probe for the root', async () => {
    const fake = await startFakeResolver((query) => emptyAnswer(query, 0x8185));
    const { events, health: made } = health();
    made.startProbing(fake);
    await waitFor('it answers', () => events.length > 0);
    fake.close();
    assert.deepEqual(events, [`${fake.port} answers`]);
    const { question, flags } = readReply(fake.queries[0]?.bytes ?? Buffer.alloc(0));
    assert.deepEqual([question, flags], ['. NS', 'rd']);
  });
});
