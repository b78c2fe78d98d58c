import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import type { Socket } from 'node:net';
import { Connections } from '../../process/connections.ts';

/** A socket that emits `close` when the test says so, as a destroyed socket does later. */
class FakeSocket extends EventEmitter {
  readonly remoteAddress: string | undefined;
  isOpen = true;

  constructor(remoteAddress?: string) {
    super();
    this.remoteAddress = remoteAddress;
  }

  destroy(): void {
    this.isOpen = false;
  }
}

describe('connections: bounds', () => {
  const limits = { total: 4, perClient: 2 };
  let connections: Connections;
  let now: number;
  beforeEach(() => {
    now = 0;
    connections = new Connections(limits, () => now);
  });
  /** The time in which a client sends its first request is over. */
  const waitLong = () => {
    now += 2000;
  };

  const accept = (address?: string) => {
    const fake = new FakeSocket(address);
    const socket = fake as unknown as Socket;
    // As a server does.
    fake.isOpen = address === undefined || !connections.blockList.check(address);
    if (fake.isOpen) connections.add(socket);
    return {
      fake,
      begin: () => connections.begin(socket),
      end: () => connections.end(socket),
    };
  };
  const states = (all: readonly { readonly fake: FakeSocket }[]) =>
    all.map(({ fake }) => fake.isOpen);

  it('closes the oldest idle connection of a client with too many, and none of others', () => {
    const other = accept('10.0.0.2');
    const all = [accept('10.0.0.1'), accept('10.0.0.1')];
    waitLong();
    all.push(accept('10.0.0.1'));
    assert.deepEqual(states([other, ...all]), [true, false, true, true]);
    assert.equal(connections.size, 3);
  });

  it('closes the oldest idle connection of all clients when all have too many', () => {
    const all = ['1', '2', '3', '4', '5'].map((each) => accept(`2001:db8::${each}`));
    assert.deepEqual(states(all), [false, true, true, true, true]);
  });

  it('keeps connections of one client whose first requests have not been answered', () => {
    connections = new Connections({ total: 8, perClient: 2 }, () => now);
    const all = ['1', '1', '1', '1'].map((each) => accept(`10.0.0.${each}`));
    for (const { begin } of all.slice(2)) begin();
    assert.deepEqual(states(all), [true, true, true, true]);
    for (const { end } of all.slice(2)) end();
    const next = accept('10.0.0.1');
    assert.deepEqual(states([...all, next]), [true, true, false, false, true]);
  });

  it('closes all idle connections above the number that a client may keep', () => {
    connections = new Connections({ total: 8, perClient: 2 }, () => now);
    const all = [1, 2, 3, 4].map(() => accept('10.0.0.1'));
    waitLong();
    const next = accept('10.0.0.1');
    assert.deepEqual(states([...all, next]), [false, false, false, true, true]);
  });

  it('closes connections of the client with the most, though they are new', () => {
    connections = new Connections({ total: 8, perClient: 2 }, () => now);
    const other = accept('10.0.0.2');
    other.begin();
    other.end();
    const flood = ['1', '1', '1', '1', '3', '3', '3'].map((each) => accept(`10.0.0.${each}`));
    const another = accept('10.0.0.4');
    const expected = [true, true, false, true, true, true, true, true, true];
    assert.deepEqual(states([other, another, ...flood]), expected);
  });

  it('refuses connections of one client beyond half of all, until some are idle', () => {
    const other = accept('10.0.0.2');
    const flood = [1, 2, 3, 4].map(() => accept('::ffff:10.0.0.1'));
    assert.deepEqual(states([other, ...flood]), [true, true, true, false, false]);
    waitLong();
    const next = accept('10.0.0.1');
    assert.deepEqual(states([other, ...flood.slice(0, 2), next]), [true, false, true, true]);
  });

  it('spares a connection with a request, and one with a recent request', () => {
    const [first, second, third] = [accept('::1'), accept('::1'), accept('::1')];
    waitLong();
    first.begin();
    second.begin();
    second.end();
    const rest = [accept('::1'), accept('::1')];
    assert.deepEqual(states([first, second, third, ...rest]), [true, true, false, true, true]);
    first.end();
    accept('::1');
    assert.deepEqual(states([first, second]), [true, false]);
  });

  it('counts each of several requests of a connection', () => {
    const [busy, idle] = [accept('10.0.0.1'), accept('10.0.0.1')];
    busy.begin();
    busy.begin();
    busy.end();
    idle.begin();
    idle.end();
    accept('10.0.0.1');
    assert.deepEqual(states([busy, idle]), [true, false]);
  });

  it('closes the oldest connection when all have requests', () => {
    const all = ['1', '1', '2', '2'].map((each) => accept(`10.0.0.${each}`));
    for (const { begin } of all) begin();
    const last = accept('10.0.0.3');
    assert.deepEqual(states([...all, last]), [false, true, true, true, true]);
  });

  it('takes an IPv4-mapped address for the IPv4 address', () => {
    const all = [accept('10.0.0.1'), accept('::ffff:10.0.0.1')];
    waitLong();
    all.push(accept('10.0.0.1'));
    assert.deepEqual(states(all), [false, true, true]);
  });

  it('has no limit for one client on loopback and on Unix sockets', () => {
    for (const address of ['127.0.0.1', '::ffff:127.0.0.1', '::1', undefined]) accept(address);
    assert.equal(connections.size, limits.total);
  });

  it('forgets closed connections, also of closed clients', () => {
    const all = [accept('10.0.0.1'), accept('10.0.0.1')];
    for (const { fake, end } of all) {
      fake.emit('close');
      end();
    }
    assert.equal(connections.size, 0);
    const next = [accept('10.0.0.1'), accept('10.0.0.1')];
    assert.deepEqual(states([...all, ...next]), [true, true, true, true]);
  });

  it('stays within its limits for 20,000 connections of 2,000 clients', () => {
    const all = Array.from({ length: 20_000 }, (_, index) => accept(`10.1.${index % 2000}.1`));
    assert.equal(connections.size, limits.total);
    assert.equal(states(all).filter(Boolean).length, limits.total);
    for (const { fake } of all) fake.emit('close');
    assert.equal(connections.size, 0);
  });
});
