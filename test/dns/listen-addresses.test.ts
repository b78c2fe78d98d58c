import assert from 'node:assert/strict';
import { expandUnspecified, ListenAddresses } from '../../dns/listen-addresses.ts';
import { waitFor } from '../lab/wait.ts';

/** A fake server that can listen on permitted addresses only. */
function fakeServer() {
  const open = new Set<string>();
  const taken = new Set<string>();
  const calls: string[] = [];
  let gate: Promise<void> = Promise.resolve();
  return {
    taken,
    calls,
    hold: () => {
      const { promise, resolve } = Promise.withResolvers<void>();
      gate = promise;
      return resolve;
    },
    get addresses() {
      return [...open];
    },
    listen: async (address: string) => {
      calls.push(address);
      await gate;
      if (taken.has(address)) throw new Error(`${address} is in use`);
      open.add(address);
    },
    close: (address: string) => {
      calls.push(`close ${address}`);
      open.delete(address);
    },
  };
}

function listenAddresses(server: ReturnType<typeof fakeServer>) {
  const heard: string[] = [];
  const wanted = new ListenAddresses({
    server,
    onFailure: (address, { message }) => heard.push(`failed ${address}: ${message}`),
    onRecovery: (address) => heard.push(`recovered ${address}`),
    retryMs: 1,
  });
  return { wanted, heard };
}

describe('listen-addresses: ListenAddresses', () => {
  it('starts and stops listening as addresses are added and removed', async () => {
    const server = fakeServer();
    const { wanted, heard } = listenAddresses(server);
    await wanted.set(['a', 'b']);
    await wanted.set(['b', 'c']);
    await wanted.set(['b', 'c']);
    assert.deepEqual(server.calls, ['a', 'b', 'close a', 'c']);
    assert.deepEqual([server.addresses, heard, wanted.failing.size], [['b', 'c'], [], 0]);
    wanted.close();
  });

  it('retries until listening succeeds, and reports a failure once', async () => {
    const server = fakeServer();
    const { wanted, heard } = listenAddresses(server);
    server.taken.add('b');
    await wanted.set(['a', 'b', 'c']);
    assert.deepEqual(server.addresses, ['a', 'c']);
    assert.deepEqual([...wanted.failing.keys()], ['b']);
    await waitFor('some attempts', () => server.calls.filter((call) => call === 'b').length > 3);
    server.taken.delete('b');
    await waitFor('it listens', () => server.addresses.includes('b'));
    assert.deepEqual(heard, ['failed b: b is in use', 'recovered b']);
    assert.equal(wanted.failing.size, 0);
    wanted.close();
  });

  it('stops retrying addresses that are removed', async () => {
    const server = fakeServer();
    const { wanted, heard } = listenAddresses(server);
    server.taken.add('a');
    await wanted.set(['a']);
    await wanted.set([]);
    assert.equal(wanted.failing.size, 0);
    server.taken.delete('a');
    await wanted.set(['a']);
    assert.deepEqual(heard, ['failed a: a is in use']);
    wanted.close();
  });

  it('accepts new addresses during an attempt', async () => {
    const server = fakeServer();
    const { wanted } = listenAddresses(server);
    const go = server.hold();
    const first = wanted.set(['a']);
    const second = wanted.set(['b']);
    go();
    await Promise.all([first, second]);
    assert.deepEqual(server.addresses, ['b']);
    wanted.close();
  });

  it('keeps listening and stops retrying after close()', async () => {
    const server = fakeServer();
    const { wanted } = listenAddresses(server);
    server.taken.add('b');
    await wanted.set(['a', 'b']);
    const go = server.hold();
    const settled = wanted.set(['a', 'b', 'c']);
    wanted.close();
    go();
    await settled;
    const { length } = server.calls;
    // A second instance shows that there was enough time for attempts.
    const clock = fakeServer();
    clock.taken.add('c');
    const other = listenAddresses(clock).wanted;
    await other.set(['c']);
    await waitFor('some attempts', () => clock.calls.length > 5);
    other.close();
    assert.deepEqual([server.addresses, server.calls.length], [['a'], length]);
  });
});

describe('listen-addresses: expandUnspecified()', () => {
  const host = ['127.0.0.1', '10.0.0.1', '::1', 'fd00::1', 'fe80::1'];
  for (const [given, expected] of [
    [['0.0.0.0'], ['127.0.0.1', '10.0.0.1']],
    [['::'], ['::1', 'fd00::1']],
    [
      ['::', '0.0.0.0'],
      ['::1', 'fd00::1', '127.0.0.1', '10.0.0.1'],
    ],
    [
      ['192.0.2.1', '0.0.0.0', '10.0.0.1'],
      ['192.0.2.1', '127.0.0.1', '10.0.0.1'],
    ],
    [['192.0.2.1'], ['192.0.2.1']],
  ] as const) {
    it(`for ${given.join(' and ')}`, () =>
      assert.deepEqual(expandUnspecified(given, host), expected));
  }
});
