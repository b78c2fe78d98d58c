import assert from 'node:assert/strict';
import { expandUnspecified, ListenAddresses } from '../../dns/listen-addresses.ts';
import { waitFor } from '../lab/wait.ts';

/** A fake server that can listen on permitted addresses only. */
function fakeServer() {
  const open = new Set<string>();
  const inUse = new Set<string>();
  const calls: string[] = [];
  let gate: Promise<void> = Promise.resolve();
  return {
    inUse,
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
      if (inUse.has(address)) throw new Error(`${address} is in use`);
      open.add(address);
    },
    close: (address: string) => {
      calls.push(`close ${address}`);
      open.delete(address);
    },
  };
}

function listenAddresses(server: ReturnType<typeof fakeServer>) {
  const events: string[] = [];
  const listen = new ListenAddresses({
    server,
    onFailure: (address, { message }) => events.push(`failed ${address}: ${message}`),
    onRecovery: (address) => events.push(`recovered ${address}`),
    retryMs: 1,
  });
  return { listen, events };
}

describe('listen-addresses: ListenAddresses', () => {
  it('starts and stops listening as addresses are added and removed', async () => {
    const server = fakeServer();
    const { listen, events } = listenAddresses(server);
    await listen.set(['a', 'b']);
    await listen.set(['b', 'c']);
    await listen.set(['b', 'c']);
    assert.deepEqual(server.calls, ['a', 'b', 'close a', 'c']);
    assert.deepEqual([server.addresses, events, listen.failing.size], [['b', 'c'], [], 0]);
    listen.close();
  });

  it('retries until listening succeeds, and reports a failure once', async () => {
    const server = fakeServer();
    const { listen, events } = listenAddresses(server);
    server.inUse.add('b');
    await listen.set(['a', 'b', 'c']);
    assert.deepEqual(server.addresses, ['a', 'c']);
    assert.deepEqual([...listen.failing.keys()], ['b']);
    await waitFor('some attempts', () => server.calls.filter((call) => call === 'b').length > 3);
    server.inUse.delete('b');
    await waitFor('it listens', () => server.addresses.includes('b'));
    assert.deepEqual(events, ['failed b: b is in use', 'recovered b']);
    assert.equal(listen.failing.size, 0);
    listen.close();
  });

  it('stops retrying addresses that are removed', async () => {
    const server = fakeServer();
    const { listen, events } = listenAddresses(server);
    server.inUse.add('a');
    await listen.set(['a']);
    await listen.set([]);
    assert.equal(listen.failing.size, 0);
    server.inUse.delete('a');
    await listen.set(['a']);
    assert.deepEqual(events, ['failed a: a is in use']);
    listen.close();
  });

  it('accepts new addresses during an attempt', async () => {
    const server = fakeServer();
    const { listen } = listenAddresses(server);
    const go = server.hold();
    const first = listen.set(['a']);
    const second = listen.set(['b']);
    go();
    await Promise.all([first, second]);
    assert.deepEqual(server.addresses, ['b']);
    listen.close();
  });

  it('keeps listening and stops retrying after close()', async () => {
    const server = fakeServer();
    const { listen } = listenAddresses(server);
    server.inUse.add('b');
    await listen.set(['a', 'b']);
    const go = server.hold();
    const settled = listen.set(['a', 'b', 'c']);
    listen.close();
    go();
    await settled;
    const { length } = server.calls;
    // A second instance shows that there was enough time for attempts.
    const clock = fakeServer();
    clock.inUse.add('c');
    const other = listenAddresses(clock).listen;
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
    it(`expands ${given.join(' and ')}`, () =>
      assert.deepEqual(expandUnspecified(given, host), expected));
  }
});
