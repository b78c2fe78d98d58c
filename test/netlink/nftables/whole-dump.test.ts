import assert from 'node:assert/strict';
import { uniteChains, wholeDump } from '../../../netlink/nftables/whole-dump.ts';

const never = async () => undefined;

describe('whole-dump: lists of nf_tables while other programs change it', () => {
  let pauses: number[];
  beforeEach(() => {
    pauses = [];
  });

  /** Dumps in turn; the last one is repeated. */
  async function dump(
    dumps: readonly (readonly string[])[],
    completed: (dumped: string[]) => Promise<string[] | undefined>,
    interruptions = Number.POSITIVE_INFINITY,
  ): Promise<{ found: string[]; attempts: number }> {
    let attempts = 0;
    const found = await wholeDump(
      'dump of chains',
      async () => {
        const picked = [...(dumps[attempts] ?? dumps.at(-1) ?? [])];
        attempts += 1;
        return { picked, isInterrupted: attempts <= interruptions };
      },
      completed,
      async (milliseconds) => pauses.push(milliseconds),
    );
    return { found, attempts };
  }

  it('repeats a dump that was interrupted, at once and then with growing pauses', async () => {
    assert.deepEqual(await dump([['a']], never, 10), { found: ['a'], attempts: 11 });
    assert.deepEqual(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
  });

  it('names the cause if every dump was interrupted', async () => {
    await assert.rejects(dump([['a']], never), {
      name: 'NetlinkError',
      code: 'EINTR',
      message: 'dump of chains: EINTR (nf_tables changed during each of 20 dumps)',
    });
  });

  it('returns the second interrupted dump if it is whole', async () => {
    const { found, attempts } = await dump([['a'], ['b']], async (dumped) => dumped);
    assert.deepEqual({ found, attempts }, { found: ['b'], attempts: 2 });
  });

  it('unites interrupted dumps until they have as many chains as the table', async () => {
    const whole = uniteChains<string>(
      (name) => name,
      async () => 4,
    );
    const { found, attempts } = await dump(
      [
        ['a', 'b', 'd'],
        ['a', 'b', 'b'],
        ['b', 'c'],
      ],
      whole,
    );
    assert.deepEqual(
      { found: found.sort(), attempts },
      { found: ['a', 'b', 'c', 'd'], attempts: 3 },
    );
  });
});
