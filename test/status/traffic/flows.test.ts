import assert from 'node:assert/strict';
import type { DetailedEntry } from '../../../netlink/conntrack/conntrack.ts';
import type { ConntrackEventKind, EventSelection } from '../../../netlink/conntrack/events.ts';
import type { FlowLine } from '../../../status/api/traffic.ts';
import type { FlowFilter } from '../../../status/traffic/flow-filter.ts';
import { FlowFeed, type FlowSources } from '../../../status/traffic/flows.ts';
import { LiveIndex } from '../../../status/traffic/live-index.ts';
import { route } from '../../fixtures.ts';
import { FakeTimers } from '../../sync/fake-timers.ts';
import { entry, FakeRoutes, NO_FILTER, VIP } from './fake-traffic.ts';

/** A feed whose events a test makes. */
function fed(
  sources: Partial<FlowSources> = {},
  onError: (error: unknown) => void = (error) => assert.fail(String(error)),
) {
  const timers = new FakeTimers();
  const routes = new FakeRoutes();
  const selected: (EventSelection | undefined)[] = [];
  const state = { open: 0, dropped: 0, buffer: 0, now: 0, selected };
  let waiting: [ConntrackEventKind, DetailedEntry][] = [];
  const feed = new FlowFeed({
    index: new LiveIndex(routes, timers),
    routesOf: routes.ofService,
    sources: {
      openEvents(receiveBuffer) {
        state.open += 1;
        state.buffer = receiveBuffer;
        return {
          get dropped() {
            return state.dropped;
          },
          read(onEvent) {
            for (const [kind, each] of waiting) onEvent(kind, each);
            waiting = [];
            return false;
          },
          select: (selection) => state.selected.push(selection),
          close: () => {
            state.open -= 1;
          },
        };
      },
      openRefusals: async () => {
        throw new Error('no NFLOG');
      },
      openDenials: undefined,
      ...sources,
    },
    refusalRules: () => ({
      isNodeAddress: () => false,
      nodeAddresses: [],
      rejectsOtherPorts: 'cluster IPs',
      mayBeTranslated: false,
    }),
    policies: undefined,
    timers,
    now: () => state.now,
    onError,
  });
  const happen = (...events: typeof waiting) => {
    waiting.push(...events);
    timers.advance(100);
  };
  return { feed, state, timers, happen, routes };
}

describe('FlowFeed: flows while a client looks', () => {
  it('names Service and endpoint, filters, and skips connections of other programs', async () => {
    const { feed, happen } = fed();
    const gone = new AbortController();
    const stream = feed.follow({ ...NO_FILTER, event: 'opened' }, gone.signal);
    const { value: started } = await stream.next();
    assert.ok(started !== undefined && 'notes' in started);
    assert.deepEqual(started.notes, [
      'rejected and dropped packets are not shown: no NFLOG',
      'packets denied by policies are not shown: set --policy-log-group',
    ]);
    const next = stream.next();
    happen(
      ['destroy', entry()],
      ['new', entry({ origDst: '192.0.2.1' })],
      ['new', entry({ replySrc: VIP, replySrcPort: 80 })],
      ['new', entry({ zone: 1 })],
      ['new', entry({ replyDst: '192.0.2.10' })],
    );
    const { value: opened } = await next;
    assert.ok(opened !== undefined && 'flow' in opened);
    assert.equal(opened.service, 'default/web');
    assert.equal(opened.flow.endpoint, '10.244.1.11');
    assert.equal(opened.flow.masqueraded, true);
    assert.equal(opened.flow.stale, false);
    gone.abort();
    assert.equal((await stream.next()).done, true);
  });

  it('closes everything with the last client, and opens it again for the next', async () => {
    const { feed, state, timers } = fed();
    for (let round = 0; round < 2; round++) {
      const [one, two] = [new AbortController(), new AbortController()];
      const streams = [feed.follow(NO_FILTER, one.signal), feed.follow(NO_FILTER, two.signal)];
      await Promise.all(streams.map((each) => each.next()));
      assert.equal(state.open, 1);
      one.abort();
      await streams[0]?.next();
      assert.equal(feed.isRunning, true);
      await streams[1]?.return();
      assert.equal(feed.isRunning, false);
      assert.equal(state.open, 0);
    }
    timers.advance(120_000);
    assert.equal(timers.pending, 0);
  });

  it('subscribes to the destinations of the Services, if all clients want some', async () => {
    const { feed, state, timers, routes } = fed();
    const none = { destinations: [], destinationPorts: [], addresses: [], ports: [] };
    const web = { ...none, destinations: [VIP] };
    const [one, all] = [new AbortController(), new AbortController()];
    const first = feed.follow({ ...NO_FILTER, service: 'default/web' }, one.signal);
    await first.next();
    assert.deepEqual(state.selected, [web]);
    const second = feed.follow(NO_FILTER, all.signal);
    await second.next();
    assert.deepEqual(state.selected.at(-1), undefined);
    await second.return();
    assert.deepEqual(state.selected.at(-1), web);
    const [before] = routes.list;
    routes.list = [route({ nodePort: 30_080 }, ['10.244.1.11'])];
    for (const listener of routes.listeners) listener(before, routes.list[0]);
    timers.advance(2000);
    assert.deepEqual(state.selected.at(-1), { ...web, destinationPorts: [30_080] });
    await first.return();
  });

  it('subscribes to the addresses and ports that clients want, and to nothing for refused packets', async () => {
    const { feed, state } = fed();
    const none = { destinations: [], destinationPorts: [], addresses: [], ports: [] };
    const streams: ReturnType<typeof feed.follow>[] = [];
    for (const [filter, expected] of [
      [{ event: 'denied' }, none],
      [
        { ip: '198.51.100.1', service: 'default/web' },
        { ...none, addresses: ['198.51.100.1'] },
      ],
      [
        { port: 80, event: 'opened' },
        { ...none, addresses: ['198.51.100.1'], ports: [80] },
      ],
      [{ protocol: 'TCP' }, undefined],
    ] as const) {
      const stream = feed.follow({ ...NO_FILTER, ...filter }, new AbortController().signal);
      streams.push(stream);
      await stream.next();
      assert.deepEqual(state.selected.at(-1), expected);
    }
    for (const stream of streams) await stream.return();
  });

  it('has a buffer whose last event is read within a second', async () => {
    const { feed, state } = fed();
    const stream = feed.follow(NO_FILTER, new AbortController().signal);
    await stream.next();
    // 640 events of 1 KiB are read in a second, and the kernel doubles the number.
    assert.ok(state.buffer > 0 && state.buffer <= 320 << 10, `${state.buffer}`);
    await stream.return();
  });

  it('refuses the client beyond 32', async () => {
    const { feed } = fed();
    const streams = Array.from({ length: 32 }, () =>
      feed.follow(NO_FILTER, new AbortController().signal),
    );
    await Promise.all(streams.map((each) => each.next()));
    assert.throws(() => feed.follow(NO_FILTER, new AbortController().signal), {
      name: 'TooManyRequests',
      message: /32 clients read flows/,
      retryAfter: undefined,
    });
    await feed.close();
    assert.equal(feed.isRunning, false);
  });

  it('does not report lost connections to a client of other events', async () => {
    const { feed, state, happen } = fed();
    const gone = new AbortController();
    const stream = feed.follow({ ...NO_FILTER, event: 'denied' }, gone.signal);
    await stream.next();
    const next = stream.next();
    state.dropped = 7;
    happen();
    gone.abort();
    assert.deepEqual(await next, { done: true, value: undefined });
  });

  it('says which refused packets may be missing, until the sets of VIPs are right again', async () => {
    let error: Error | undefined = new Error('IPv4: no memory');
    const failed: unknown[] = [];
    const refusals = {
      ...{ dropped: 0, read: () => false, close: () => {} },
      failure: new Error('IPv6: no nf_tables'),
      refresh: async () => {
        if (error !== undefined) throw error;
      },
    };
    const { feed, timers } = fed({ openRefusals: async () => refusals }, (each) =>
      failed.push(each),
    );
    const notice = ({ value }: IteratorResult<FlowLine, void>) => {
      assert.ok(value !== undefined && 'notes' in value);
      const { event, notes } = value;
      return [event, ...notes.filter((each) => !each.includes('--policy-log-group'))];
    };
    const without = 'rejected and dropped packets are not shown: IPv6: no nf_tables';
    const missing =
      'rejected and dropped packets to changed Services may be missing: IPv4: no memory';
    const stream = feed.follow(NO_FILTER, new AbortController().signal);
    assert.deepEqual(notice(await stream.next()), ['started', without]);
    let next = stream.next();
    timers.advance(2000);
    assert.deepEqual(notice(await next), ['notes', without, missing]);
    const late = feed.follow(NO_FILTER, new AbortController().signal);
    assert.deepEqual(notice(await late.next()), ['started', without, missing]);
    next = stream.next();
    // Not twice.
    timers.advance(2000);
    await new Promise(setImmediate);
    error = undefined;
    timers.advance(2000);
    assert.deepEqual(notice(await next), ['notes', without]);
    assert.equal(failed.length, 2);
    await Promise.all([stream.return(), late.return()]);
  });

  it('tells before the flows of a late read how late it is', async () => {
    const { feed, timers, happen } = fed();
    const stream = feed.follow(NO_FILTER, new AbortController().signal);
    await stream.next();
    let next = stream.next();
    timers.skip(1200);
    happen(['new', entry()]);
    assert.deepEqual((await next).value, {
      ...{ at: '1970-01-01T00:00:00.000Z', event: 'late' },
      ...{ lost: 0, notes: [], seconds: 1.1 },
    });
    assert.equal((await stream.next()).value?.event, 'opened');
    next = stream.next();
    timers.skip(900);
    happen(['new', entry()]);
    assert.equal((await next).value?.event, 'opened');
    await stream.return();
  });

  it('has the times of the kernel, unless they are of another clock', async () => {
    const { feed, happen, state } = fed();
    state.now = Date.UTC(2026, 0, 2);
    const stream = feed.follow(NO_FILTER, new AbortController().signal);
    await stream.next();
    const next = stream.next();
    const details = { counters: undefined, tcpState: undefined, startedAt: undefined };
    const at = (eventAt?: number) => entry({ details: { ...details, eventAt } });
    happen(
      ['new', at(state.now - 5000)],
      ['destroy', at(state.now - 2000)],
      ['new', at()],
      ['new', at(1000)],
      ['new', at(state.now + 1000)],
    );
    const times = [(await next).value?.at];
    while (times.length < 5) times.push((await stream.next()).value?.at);
    const read = '2026-01-02T00:00:00.000Z';
    const known = ['2026-01-01T23:59:55.000Z', '2026-01-01T23:59:58.000Z'];
    assert.deepEqual(times, [...known, read, read, read]);
    await stream.return();
  });

  it('reports events that the kernel could not deliver', async () => {
    const { feed, state, happen } = fed();
    const stream = feed.follow(NO_FILTER, new AbortController().signal);
    await stream.next();
    const next = stream.next();
    state.dropped = 7;
    happen();
    assert.deepEqual((await next).value, {
      at: '1970-01-01T00:00:00.000Z',
      event: 'lost',
      lost: 7,
      notes: [],
    });
    await stream.return();
  });
});

describe('FlowFeed: denied packets', () => {
  const PREFIX = 'portwide deny network-policy ingress ';

  /** An IPv4 header and ports: TCP from 10.0.0.2 to 10.0.0.1. */
  function packet(port: number): Buffer {
    const bytes = Buffer.alloc(24);
    bytes.writeUInt8(0x45, 0);
    bytes.writeUInt8(6, 9);
    bytes.set([10, 0, 0, 2, 10, 0, 0, 1], 12);
    bytes.writeUInt16BE(port, 22);
    return bytes;
  }

  /** The streams of clients, after `count` packets to port 80 and one to port 81 in one read. */
  async function streamsAfter(count: number, filters: readonly Partial<FlowFilter>[]) {
    let waiting = [...Array<number>(count).fill(80), 81];
    const { feed, timers } = fed({
      openDenials: () => ({
        dropped: 0,
        read(onPacket) {
          for (const port of waiting)
            onPacket({ prefix: PREFIX, bytes: packet(port), original: undefined });
          waiting = [];
          return false;
        },
        close: () => {},
      }),
    });
    const gone = new AbortController();
    const streams = filters.map((filter) => feed.follow({ ...NO_FILTER, ...filter }, gone.signal));
    await Promise.all(streams.map((stream) => stream.next()));
    const firsts = streams.map((stream) => stream.next());
    timers.advance(100);
    gone.abort();
    return Promise.all(
      streams.map(async (stream, index) => {
        const lines = [(await firsts[index])?.value];
        for await (const line of stream) lines.push(line);
        return lines.filter((line) => line !== undefined);
      }),
    );
  }

  const linesAfter = async (count: number, filter: Partial<FlowFilter>) =>
    (await streamsAfter(count, [filter])).flat();

  it('explains packets for each client, and tells only those who want the others that they are lost', async () => {
    const [busy, quiet, both] = await streamsAfter(99, [{ port: 80 }, { port: 81 }, {}]);
    const shown = (lines: readonly FlowLine[] = []) => ({
      denied: lines.filter(({ event }) => event === 'denied').length,
      lost: lines.flatMap((line) => ('lost' in line ? [line.lost] : [])),
    });
    assert.deepEqual(shown(busy), { denied: 64, lost: [35] });
    assert.deepEqual(shown(quiet), { denied: 1, lost: [] });
    assert.deepEqual(shown(both), { denied: 65, lost: [35] });
  });

  it('explains at most 64 of a read, and reports the others as lost', async () => {
    const lines = await linesAfter(99, {});
    assert.equal(lines.filter(({ event }) => event === 'denied').length, 64);
    assert.deepEqual(
      lines.flatMap((line) => ('lost' in line ? [line.lost] : [])),
      [36],
    );
  });

  it('explains only packets that a client wants, so that others take no place', async () => {
    const lines = await linesAfter(99, { port: 81 });
    assert.deepEqual(
      lines.map((line) => ('flow' in line ? line.flow.destinationPort : line.event)),
      [81],
    );
  });
});
