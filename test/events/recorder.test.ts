import assert from 'node:assert/strict';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { type ObjectRef, serviceRef } from '../../events/event.ts';
import { type DropReason, EventRecorder } from '../../events/recorder.ts';
import type { OpenWriteSession } from '../../events/write.ts';
import { loadClusterConfig } from '../../sources/kubernetes/config.ts';
import { createOpenSession } from '../../sources/kubernetes/session.ts';
import { waitFor } from '../lab/wait.ts';
import { FakeTimers } from '../sync/fake-timers.ts';
import { EventServer } from './event-server.ts';

const START = Date.UTC(2026, 0, 2, 3, 4, 5, 678);
const WEB = serviceRef('default/web', 'uid-1');
const MINUTE = 60_000;

describe('recorder: the recorder of Events', () => {
  let server: EventServer;
  let timers: FakeTimers;
  let dropped: DropReason[];
  let logged: unknown[];
  let opened: number;
  let recorder: EventRecorder;
  let open: OpenWriteSession;

  beforeEach(async () => {
    server = new EventServer();
    await server.listen();
    timers = new FakeTimers();
    [dropped, logged, opened] = [[], [], 0];
    recorder = new EventRecorder({
      nodeName: 'node-a',
      nodes: () => 1,
      onDropped: (reason) => dropped.push(reason),
      log: { warn: (details, message) => logged.push([message, details]) },
      clock: {
        now: () => START + timers.now(),
        random: () => 0.5,
        set: (callback, milliseconds) => timers.set(callback, milliseconds),
        clear: (handle) => timers.clear(handle),
      },
    });
    const sessions = await createOpenSession(await loadClusterConfig({ master: server.url }));
    open = (signal) => {
      opened += 1;
      return (sessions as OpenWriteSession)(signal);
    };
  });
  afterEach(async () => {
    await recorder.stop();
    await server.close();
  });

  /** Advances the fake clock in steps until the condition holds; requests also need real time. */
  const until = async (what: string, condition: () => boolean, step = 100) => {
    const deadline = performance.now() + 10_000;
    while (!condition()) {
      assert.ok(performance.now() < deadline, `timed out waiting until ${what}`);
      timers.advance(step);
      await sleep(1);
    }
  };
  const requests = (count: number) =>
    waitFor(`${count} requests`, () => server.received.length === count);
  const warn = (reason = 'RefusedNodePort', note = 'spec.type: no', regarding: ObjectRef = WEB) =>
    recorder.warning(regarding, reason, note);
  const series = () => [...server.stored.values()].map(({ series: each }) => each);

  it('creates a complete Event', async () => {
    recorder.connect(open);
    warn();
    await requests(1);
    assert.deepEqual(server.received, [
      {
        method: 'POST',
        path: '/apis/events.k8s.io/v1/namespaces/default/events',
        contentType: 'application/json',
        authorization: undefined,
        body: {
          apiVersion: 'events.k8s.io/v1',
          kind: 'Event',
          metadata: { name: 'web.1886caf2450748a0', namespace: 'default' },
          eventTime: '2026-01-02T03:04:05.678000Z',
          reportingController: 'portwide',
          reportingInstance: 'portwide-node-a',
          type: 'Warning',
          reason: 'RefusedNodePort',
          action: 'ServeService',
          note: 'spec.type: no',
          regarding: {
            apiVersion: 'v1',
            kind: 'Service',
            namespace: 'default',
            name: 'web',
            uid: 'uid-1',
          },
        },
      },
    ]);
  });

  it('queues Events until connect, and writes repeated ones once', async () => {
    for (let time = 0; time < 3; time++) {
      warn();
      timers.advance(1000);
    }
    recorder.connect(open);
    await requests(1);
    assert.deepEqual(series(), [{ count: 3, lastObservedTime: '2026-01-02T03:04:07.678000Z' }]);
  });

  it('writes one request for an Event repeated while the session opens', async () => {
    const gate = Promise.withResolvers<void>();
    recorder.connect(async (signal) => {
      await gate.promise;
      return open(signal);
    });
    warn();
    await nextTurn();
    warn();
    gate.resolve();
    await requests(1);
    warn('RefusedPorts');
    await requests(2);
    assert.deepEqual(
      server.received.map(({ method, body }) => [method, body.reason]),
      [
        ['POST', 'RefusedNodePort'],
        ['POST', 'RefusedPorts'],
      ],
    );
  });

  describe('shared Events', () => {
    const others: EventRecorder[] = [];
    let nodes = 3;
    beforeEach(() => {
      nodes = 3;
    });
    afterEach(async () => {
      for (const other of others.splice(0)) await other.stop();
    });
    /**
     * Recorders of several nodes with one API server; `random` is the random value of each, from 0
     * to 1.
     */
    const cluster = (...random: readonly number[]) => {
      for (const [index, chance] of random.entries()) {
        const other = new EventRecorder({
          nodeName: `node-${index}`,
          nodes: () => nodes,
          onDropped: (reason) => dropped.push(reason),
          log: { warn: assert.fail },
          clock: {
            now: () => START + timers.now(),
            random: () => chance,
            set: (callback, milliseconds) => timers.set(callback, milliseconds),
            clear: (handle) => timers.clear(handle),
          },
        });
        other.connect(server.open);
        others.push(other);
      }
    };
    const see = (note = 'spec.type: no') => {
      for (const each of others) each.sharedWarning(WEB, 'RefusedNodePort', note);
    };
    /** Advances the clock in steps, so that one node has written before the next node starts. */
    const pass = async (milliseconds: number) => {
      for (let passed = 0; passed < milliseconds; passed += 500) {
        timers.advance(Math.min(500, milliseconds - passed));
        for (let turn = 0; turn < 10; turn++) await nextTurn();
      }
    };
    const changes = () =>
      server.received
        .filter(({ body }) => Object.keys(body).length > 0)
        .map(({ method }) => method);

    it('are written once, without a node name, when nodes check at different times', async () => {
      cluster(0.1, 0.5, 0.9);
      see();
      await pass(499);
      assert.equal(server.received.length, 0);
      await pass(1);
      assert.deepEqual(changes(), ['POST']);
      await pass(4500);
      assert.equal(server.stored.size, 1);
      const [event] = server.stored.values();
      assert.deepEqual(
        [event?.reason, event?.reportingInstance, event?.series],
        ['RefusedNodePort', 'portwide', undefined],
      );
      assert.deepEqual(changes(), ['POST'], 'the others only checked');
      assert.equal(server.received.length, 4);
      assert.deepEqual(dropped, []);
    });

    it('are checked later in a large cluster, or not at all', async () => {
      nodes = 5000;
      cluster(0.0005, 0.5, 0.999);
      see();
      await pass(5000);
      assert.deepEqual(changes(), ['POST']);
      await pass(110_000);
      assert.equal(server.received.length, 2);
      await pass(30_000);
      assert.equal(server.received.length, 3, 'the second checks after 130 seconds');
      await pass(150_000);
      assert.equal(server.received.length, 4, 'and the third after 255');
      nodes = 1e9;
      see('spec.clusterIP: no');
      await pass(5000);
      assert.equal(timers.pending, 3, 'the ends of three series');
      assert.deepEqual([server.stored.size, dropped], [1, []]);
    });

    it('are queued for an early check even when many wait for a late one', async () => {
      nodes = 100;
      cluster(0.5);
      const [node] = others;
      for (let index = 0; index < 150; index++) {
        node?.sharedWarning(serviceRef(`default/${index}`, 'uid'), 'RefusedOverlap', 'no');
      }
      assert.deepEqual(dropped, [], 'other nodes check early');
      nodes = 3;
      see();
      await pass(5000);
      assert.deepEqual(
        [...server.stored.values()].map(({ reason }) => reason),
        ['RefusedNodePort'],
      );
    });

    it('are not retried when another node writes at the same time', async () => {
      cluster(0.1, 0.5);
      see();
      await pass(5000);
      await pass(60_000);
      server.statusFor = ({ body }) => ('series' in body ? 409 : undefined);
      see();
      await pass(5000);
      assert.deepEqual(dropped, []);
      assert.deepEqual(changes(), ['POST', 'PATCH', 'PATCH']);
    });

    it('are counted once for all nodes, at most once a minute', async () => {
      cluster(0.1, 0.5, 0.9);
      see();
      await pass(5000);
      await pass(30_000);
      see();
      await pass(5000);
      assert.deepEqual(series(), [undefined], 'within a minute');
      await pass(60_000);
      for (const each of others.splice(0)) await each.stop();
      // Restarted agents do not know the Event.
      cluster(0.2, 0.4, 0.6);
      see();
      await pass(5000);
      assert.equal(server.stored.size, 1);
      assert.equal((series()[0] as { count: number }).count, 2);
      assert.equal(changes().filter((method) => method === 'PATCH').length, 1);
    });

    it('are created again after deletion, and once per note', async () => {
      cluster(0.1, 0.5);
      see();
      await pass(5000);
      server.stored.clear();
      see();
      await pass(5000);
      assert.equal(server.stored.size, 1);
      see('spec.clusterIP: no');
      await pass(5000);
      assert.equal(server.stored.size, 2);
    });

    it('are not written after stop', async () => {
      cluster(0.5);
      see();
      await others[0]?.stop();
      await pass(5000);
      assert.equal(server.received.length, 0);
    });
  });

  it('updates a series on the second occurrence, after half an hour, and at its end', async () => {
    recorder.connect(server.open);
    warn();
    await waitFor('it is written', () => server.stored.size === 1);
    timers.advance(1000);
    warn();
    await requests(2);
    const [, patch] = server.received;
    assert.equal(patch?.method, 'PATCH');
    assert.match(patch?.path ?? '', /\/namespaces\/default\/events\/web\.1886caf2450748a0$/);
    assert.deepEqual(patch?.body, {
      series: { count: 2, lastObservedTime: '2026-01-02T03:04:06.678000Z' },
    });
    for (let minute = 1; minute <= 32; minute++) {
      timers.advance(MINUTE);
      warn();
      await nextTurn();
      assert.equal(server.received.length, 2, `${minute} minutes`);
    }
    await until('the continuing series is updated', () => server.received.length === 3, MINUTE);
    const count = (at: number) => {
      const { series: each } = server.received[at]?.body ?? {};
      return (each as { count: number } | undefined)?.count;
    };
    assert.equal(count(2), 34);
    timers.advance(1000);
    warn();
    warn();
    await until('the end of the series is written', () => server.received.length === 4, MINUTE);
    assert.equal(count(3), 36);
    // The ended series is followed by a new Event.
    warn();
    await requests(5);
    assert.equal(server.received[4]?.method, 'POST');
    assert.equal(server.stored.size, 2);
  });

  it('writes a single occurrence only once', async () => {
    recorder.connect(open);
    warn();
    await requests(1);
    for (let minute = 0; minute < 60; minute++) {
      timers.advance(MINUTE);
      await nextTurn();
    }
    warn();
    await requests(2);
    assert.equal(server.received[1]?.method, 'POST');
  });

  it('creates one Event per object, reason and note', async () => {
    recorder.connect(open);
    const others = [
      () => warn('RefusedOverlap', 'a'),
      () => warn('RefusedOverlap', 'b'),
      () => warn('RefusedOverlap', 'a', serviceRef('other/web', 'uid-2')),
      () => warn('RefusedOverlap', 'a', serviceRef('default/web', 'uid-3')),
    ];
    for (const other of others) other();
    await waitFor('all are written', () => server.stored.size === 4);
    assert.equal(server.received.filter(({ method }) => method === 'POST').length, 4);
    assert.match(server.received[2]?.path ?? '', /\/namespaces\/other\/events$/);
  });

  it('creates an Event again when the server has deleted it', async () => {
    recorder.connect(open);
    warn();
    await waitFor('it is written', () => server.stored.size === 1);
    server.stored.clear();
    warn();
    await requests(3);
    assert.deepEqual(
      server.received.map(({ method }) => method),
      ['POST', 'PATCH', 'POST'],
    );
    await waitFor(
      'the Event is created',
      () => (series()[0] as { count?: number } | undefined)?.count === 2,
    );
  });

  it('writes a burst of 25, then one per second', async () => {
    const times: number[] = [];
    server.statusFor = () => void times.push(timers.now());
    recorder.connect(open);
    const objects = ['a', 'b'].map((name) => serviceRef(`default/${name}`, name));
    for (let index = 0; index < 30; index++) warn('RefusedOverlap', `${index}`, objects[index % 2]);
    await requests(25);
    await until('all are written', () => server.received.length === 30);
    for (const [index, time] of times.entries()) {
      assert.ok(index < 25 ? time === 0 : time >= (index - 24) * 1000, `${index}: ${time}`);
    }
    assert.equal(opened, 1);
  });

  it('writes a burst of 25 per object, then one per five minutes, without delaying other objects', async () => {
    recorder.connect(open);
    for (let index = 0; index < 30; index++) warn('RefusedOverlap', `${index}`);
    assert.deepEqual([dropped, logged], [Array(5).fill('object_limit'), []]);
    warn('RefusedOverlap', 'no', serviceRef('default/other', 'uid-2'));
    await until('all are written', () => server.stored.size === 26);
    timers.advance(5 * MINUTE);
    for (const note of ['30', '31']) warn('RefusedOverlap', note);
    await until('one more is written', () => server.stored.size === 27);
    assert.equal(dropped.length, 6);
  });

  it('retries while the server is unreachable, then drops the Event', async () => {
    recorder.connect(open);
    server.statusFor = ({ body }) => (body.reason === 'RefusedHeadless' ? 0 : undefined);
    warn('RefusedHeadless');
    await requests(1);
    const times = [START];
    for (let tries = 2; tries <= 6; tries++) {
      await until(`attempt ${tries}`, () => server.received.length === tries);
      times.push(START + timers.now());
    }
    warn('RefusedNodePort');
    await until('the next is written', () => server.stored.size === 1);
    assert.deepEqual(dropped, ['unreachable']);
    assert.equal(opened, 7, 'each attempt reads the credentials');
    // 1, 2, 4, 8 and 16 seconds plus an eighth of jitter; measured in steps of 100 ms plus a
    // request.
    for (const [index, wait] of [1125, 2250, 4500, 9000, 18_000].entries()) {
      const waited = (times[index + 1] ?? 0) - (times[index] ?? 0);
      assert.ok(waited >= wait, `${waited} < ${wait}`);
    }
    // A dropped Event can be reported again.
    server.statusFor = () => undefined;
    warn('RefusedHeadless');
    await waitFor('it is written as a new Event', () => server.stored.size === 2);
    assert.deepEqual(series(), [undefined, undefined]);
  });

  for (const [status, isRetryableStatus] of [
    [500, true],
    [429, true],
    [401, true],
    [403, false],
    [422, false],
    [404, false],
  ] as const) {
    it(`${isRetryableStatus ? 'retries' : 'drops the Event'} after ${status}`, async () => {
      recorder.connect(open);
      server.statusFor = () => (server.received.length === 1 ? status : undefined);
      warn();
      await requests(1);
      if (isRetryableStatus) {
        await until('it is written', () => server.stored.size === 1);
        assert.deepEqual(dropped, []);
      } else {
        await waitFor('it is dropped', () => dropped.length === 1);
        assert.deepEqual([dropped, server.received.length], [['rejected'], 1]);
      }
    });
  }

  it('treats an Event that already exists as written', async () => {
    recorder.connect(open);
    server.statusFor = () => 409;
    warn();
    await requests(1);
    server.statusFor = () => undefined;
    recorder.warning(WEB, 'RefusedPorts', 'no');
    await requests(2);
    assert.deepEqual([dropped, server.stored.size], [[], 1]);
  });

  it('limits the queue, and logs dropped Events once', async () => {
    for (let index = 0; index < 110; index++) {
      warn('RefusedOverlap', `${index}`, serviceRef(`default/${index % 5}`, 'uid'));
    }
    assert.equal(dropped.length, 10);
    assert.ok(dropped.every((reason) => reason === 'queue_full'));
    assert.equal(logged.length, 1);
    const [[message, details]] = logged as [[string, { object: string; reason: string }]];
    assert.equal(message, 'Event dropped');
    assert.deepEqual([details.object, details.reason], ['Service default/0', 'queue_full']);
    recorder.connect(open);
    await until('the queued Events are written', () => server.stored.size === 100, 1000);
  });

  it('retries when credentials cannot be read', async () => {
    let fails = true;
    recorder.connect(async (signal) => {
      if (fails) throw new Error('no token');
      return open(signal);
    });
    warn();
    await until('an attempt was made', () => timers.now() > 500);
    fails = false;
    await until('it is written', () => server.stored.size === 1);
    assert.deepEqual(dropped, []);
  });

  it('stops during a retry', async () => {
    recorder.connect(open);
    server.statusFor = () => 503;
    for (let index = 0; index < 30; index++) warn('RefusedOverlap', `${index}`);
    await requests(1);
    await recorder.stop();
    warn();
    timers.advance(10 * MINUTE);
    await nextTurn();
    assert.equal(server.received.length, 1);
  });
});
