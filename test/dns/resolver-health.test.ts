import assert from 'node:assert/strict';
import { NoAnswer, type Resolver } from '../../dns/exchange.ts';
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
  const heard: string[] = [];
  const name = ({ port }: Resolver) => String(port);
  const made = new ResolverHealth({
    period: 1,
    observer: {
      probeFailed: (resolver) => heard.push(`${name(resolver)} fails`),
      probeAnswered: (resolver) => heard.push(`${name(resolver)} answers`),
      ...observer,
    },
    ...options,
  });
  return { heard, health: made };
}

/** Fails as often as it is told to. */
function probe(failures: number) {
  let left = failures;
  return async (resolver: Resolver) => {
    left -= 1;
    if (left >= 0) throw new NoAnswer(resolver, 'TIMEOUT');
  };
}

describe('resolver-health: the health of resolvers', () => {
  it('is good until one is suspected, and good when that answers its first probe', async () => {
    const { heard, health: made } = health({ probe: probe(0) });
    assert.equal(made.isDown(FIRST), false);
    made.startProbing(FIRST);
    assert.equal(made.isDown(FIRST), false);
    await waitFor('it was probed', () => heard.length > 0);
    assert.deepEqual(heard, ['53 answers']);
  });

  it('is bad after more failed probes than may be, and good again with an answer', async () => {
    const wasDown: boolean[] = [];
    const { heard, health: made } = health(
      { probe: probe(MAX_FAILS + 2) },
      { probeFailed: (resolver) => wasDown.push(made.isDown(resolver)) },
    );
    made.startProbing(FIRST);
    made.startProbing(FIRST);
    await waitFor('it answers', () => heard.length > 0);
    assert.deepEqual(wasDown, [false, false, true, true]);
    assert.equal(made.isDown(FIRST), false);
  });

  it('is each resolver’s own, by address and port, and ends with it', async () => {
    const { heard, health: made } = health({ probe: probe(Number.POSITIVE_INFINITY) });
    made.startProbing(FIRST);
    await waitFor('it is down', () => made.isDown(FIRST));
    assert.equal(made.isDown(SECOND), false);
    made.retain([SECOND]);
    assert.equal(made.isDown(FIRST), false);
    const before = heard.length;
    made.startProbing(SECOND);
    await waitFor('the other is down', () => made.isDown(SECOND));
    assert.deepEqual([...new Set(heard.slice(before))], ['5353 fails']);
    made.retain([]);
  });

  it('is told by an answer of any kind to a question for the root', async () => {
    const fake = await startFakeResolver((query) => emptyAnswer(query, 0x8185));
    const { heard, health: made } = health();
    made.startProbing(fake);
    await waitFor('it answers', () => heard.length > 0);
    fake.close();
    assert.deepEqual(heard, [`${fake.port} answers`]);
    const { question, flags } = readReply(fake.queries[0]?.bytes ?? Buffer.alloc(0));
    assert.deepEqual([question, flags], ['. NS', 'rd']);
  });
});
